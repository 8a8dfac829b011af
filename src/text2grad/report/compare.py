"""Before and after: the answers of several policies to one prompt, compared line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from text2grad.report.curves import number
from text2grad.report.folder import Answer, BeforeAfter
from text2grad.report.samples import message_views
from text2grad.report.visible import visible

MAX_SHOWN = 40
SIGNS = {"same": " ", "added": "+", "gone": "−"}


@dataclass(frozen=True)
class Verdict:
    """One score of an answer; `passed` is None unless the score is exactly 0 or 1."""

    name: str
    value: str
    passed: bool | None


@dataclass(frozen=True)
class DiffLine:
    """A line of an answer: "same", "added", or "gone" (only in the answer compared against)."""

    kind: str
    text: str

    @property
    def sign(self) -> str:
        """The cue beside the colour."""
        return SIGNS[self.kind]


@dataclass(frozen=True)
class AnswerView:
    """An answer with its scores, as lines of a diff against the first answer."""

    name: str
    verdicts: list[Verdict]
    lines: list[DiffLine]


@dataclass(frozen=True)
class Comparison:
    """All answers to one prompt."""

    id: str
    task: str
    prompt: list[dict[str, str]]
    reference: str
    answers: list[AnswerView]


def shown(items: Sequence[BeforeAfter]) -> list[BeforeAfter]:
    """The first `MAX_SHOWN`; of several tasks the first of each, an equal share."""
    share = MAX_SHOWN // max(1, len({item.task for item in items}))
    seen: Counter[str] = Counter()
    kept = []
    for item in items:
        seen[item.task] += 1
        if seen[item.task] <= max(1, share):
            kept.append(item)
    return kept


def comparison(item: BeforeAfter) -> Comparison:
    """The view of one prompt; every answer is compared with the first."""
    first = item.answers[0].response if item.answers else ""
    return Comparison(
        id=visible(item.id),
        task=visible(item.task),
        prompt=message_views(item.prompt),
        reference=visible(item.reference),
        answers=[
            AnswerView(visible(answer.name), _verdicts(answer), line_diff(first, answer.response))
            for answer in item.answers
        ],
    )


def line_diff(before: str, after: str) -> list[DiffLine]:
    """The lines of `after` in order, with the lines of `before` that are gone shown where they stood."""
    old, new = _lines(before), _lines(after)
    result: list[DiffLine] = []
    for kind, a_start, a_end, b_start, b_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            result += _marked("same", new[b_start:b_end])
        else:
            result += _marked("gone", old[a_start:a_end]) + _marked("added", new[b_start:b_end])
    return result


def _lines(text: str) -> list[str]:
    return visible(text).removesuffix("\n").split("\n") if text else []


def _marked(kind: str, lines: Sequence[str]) -> list[DiffLine]:
    return [DiffLine(kind, line) for line in lines]


def _verdicts(answer: Answer) -> list[Verdict]:
    return [
        Verdict(name, number(value), bool(value) if value in (0, 1) else None)
        for name, value in answer.scores.items()
    ]
