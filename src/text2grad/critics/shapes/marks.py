"""What the shapes share: marks with a label become spans, edits become spans, and what cannot is counted."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.feedback import Critique, Example, Feedback, Label, Message, QuoteCounts, Source, Span
from text2grad.wire.quotes import in_order

GOOD_WORDS = frozenset({"good", "positive", "praise", "correct", "strength", "+", "+1", "1"})
POOR_WORDS = frozenset({"poor", "bad", "negative", "wrong", "error", "incorrect", "weakness", "fault", "-", "-1"})
RESPONSE_KEYS = ("response", "text", "completion", "answer", "summary", "candidate", "output")
PROMPT_KEYS = ("prompt", "question", "instruction", "source", "post", "input")
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Mark:
    """An interval somebody marked: code points, end exclusive; `text` is what they saw there, "" if not told."""

    start: int
    end: int
    label: str
    text: str = ""
    reason: str = ""


def polarity_of(label: str) -> Label | None:
    """+1 or -1 by the label's name, None where it names neither."""
    word = label.strip().casefold()
    if word in GOOD_WORDS:
        return 1
    return -1 if word in POOR_WORDS else None


def placed(marks: Iterable[Mark], response: str) -> tuple[tuple[Span, ...], QuoteCounts]:
    """The spans of marks, in order, and how many marks gave none and why."""
    counts: Counter[str] = Counter()
    spans: dict[tuple[int, int, int], Span] = {}
    for mark in marks:
        label = polarity_of(mark.label)
        inside = 0 <= mark.start < mark.end <= len(response)
        if not inside or (mark.text and response[mark.start : mark.end] != mark.text):
            counts["unmatched"] += 1
        elif label is None:
            counts["no_polarity"] += 1
        elif (mark.start, mark.end, label) in spans:
            counts["repeated"] += 1
        else:
            text = response[mark.start : mark.end]
            span = Span(start=mark.start, end=mark.end, label=label, text=text, reason=mark.reason)
            spans[mark.start, mark.end, label] = span
    return in_order(spans.values()), QuoteCounts(**counts)


def human_record(
    id: str,
    prompt: str | Sequence[Message],
    response: str,
    critique: Critique,
    meta: Mapping[str, Any],
    annotator: str = "",
) -> Feedback:
    """A record of what a person said; `annotator` tells who, as far as the data does."""
    turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else tuple(prompt)
    whole = {**meta, "annotator": annotator}
    told = {name: value for name, value in whole.items() if value or isinstance(value, bool)}
    return Feedback.of(Example(id=id, prompt=turns, meta=told), response, critique, Source(kind="human"))


def first_text(row: Mapping[str, Any], keys: Sequence[str], needed: bool = False) -> str:
    """The first of `keys` that holds text.

    Raises:
        ValueError: none does, and one is needed.
    """
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value:
            return value
    if needed:
        raise ValueError(f"no text in {', '.join(map(repr, keys))}")
    return ""


def code_points(text: str) -> list[int]:
    """UTF-16 offset -> code point, for every offset from 0 to the end; JavaScript counts in UTF-16 units."""
    return [index for index, char in enumerate(text) for _ in range(1 + (ord(char) > 0xFFFF))] + [len(text)]


def utf16_offsets(text: str) -> list[int]:
    """Code point -> UTF-16 offset, for every position from 0 to the end."""
    offsets = [0]
    for char in text:
        offsets.append(offsets[-1] + 1 + (ord(char) > 0xFFFF))
    return offsets


def edits(response: str, corrected: str, reason: str = "") -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """What a person's corrected text says of the response: words they took out or replaced are poor spans, words
    they only put in are omissions.
    """
    before, after = list(_WORD.finditer(response)), list(_WORD.finditer(corrected))
    matcher = difflib.SequenceMatcher(
        None, [word[0] for word in before], [word[0] for word in after], autojunk=False
    )
    spans: list[Span] = []
    missing: list[str] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        put_in = corrected[after[k].start() : after[m - 1].end()] if m > k else ""
        if kind in ("delete", "replace"):
            start, end = before[i].start(), before[j - 1].end()
            why = reason or (f"should be: {put_in}" if put_in else "to be removed")
            spans.append(Span(start=start, end=end, label=-1, text=response[start:end], reason=why))
        elif kind == "insert":
            missing.append(put_in)
    return tuple(spans), tuple(missing)


def numbered(rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Records from 1, as errors name them."""
    return enumerate(rows, start=1)
