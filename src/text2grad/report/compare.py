"""Before and after: which answers of several policies the page shows, and how two of them differ line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from text2grad.report.folder import BeforeAfter

MAX_SHOWN = 40


class DiffLine(NamedTuple):
    """A line of an answer: "same", "added", or "gone" (only in the answer compared with); `sign` is its cue."""

    kind: str
    sign: str
    text: str


def shown(items: Sequence[BeforeAfter]) -> list[BeforeAfter]:
    """The first `MAX_SHOWN`; of several tasks the first of each, an equal share."""
    share = max(1, MAX_SHOWN // max(1, len({item.task for item in items})))
    seen: Counter[str] = Counter()
    kept = []
    for item in items:
        seen[item.task] += 1
        if seen[item.task] <= share:
            kept.append(item)
    return kept


def line_diff(before: str, after: str) -> list[DiffLine]:
    """The lines of `after` in order, with removed lines of `before` shown in their old places."""
    old, new = _lines(before), _lines(after)
    result: list[DiffLine] = []
    for kind, a_start, a_end, b_start, b_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            result += [DiffLine("same", " ", line) for line in new[b_start:b_end]]
        else:
            result += [DiffLine("gone", "−", line) for line in old[a_start:a_end]]
            result += [DiffLine("added", "+", line) for line in new[b_start:b_end]]
    return result


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []
