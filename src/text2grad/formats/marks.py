"""What the formats share: marks with a label become spans, edits become spans, and what cannot is counted."""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from text2grad.feedback import Critique, Example, Feedback, Judgement, Label, Message, QuoteCounts, Source, Span
from text2grad.unicode_words import units
from text2grad.wire.quotes import in_order

LABELS: dict[Label, str] = {1: "good", -1: "poor"}
"""The names that are written; `POLARITY` has those that are read, in whatever case."""
GOOD_WORDS = ("good", "positive", "praise", "correct", "strength", "+", "+1", "1")
POOR_WORDS = ("poor", "bad", "negative", "wrong", "error", "incorrect", "weakness", "fault", "-", "-1")
POLARITY: dict[str, Label] = {**dict.fromkeys(GOOD_WORDS, 1), **dict.fromkeys(POOR_WORDS, -1)}
RESPONSE_KEYS = ("response", "text", "completion", "answer", "summary", "candidate", "output")
PROMPT_KEYS = ("prompt", "question", "instruction", "source", "post", "input")


class Mark(NamedTuple):
    """A marked interval: code points, end exclusive; `text` is what the annotator saw there, "" if unknown."""

    start: int
    end: int
    label: str
    text: str = ""
    reason: str = ""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Mark:
        """A mark written with these names as keys.

        Raises:
            ValueError: its offsets are not whole numbers.
        """
        start, end = value["start"], value["end"]
        if not isinstance(start, int) or not isinstance(end, int):
            raise ValueError(f"offsets {start!r} and {end!r} are not whole numbers")
        label, text, reason = (str(value.get(name) or "") for name in ("label", "text", "reason"))
        return cls(start, end, label, text, reason)


def placed(marks: Iterable[Mark], response: str) -> tuple[tuple[Span, ...], QuoteCounts]:
    """The spans of marks, in order, and how many marks gave none and why."""
    counts: Counter[str] = Counter()
    spans: dict[tuple[int, int, int], Span] = {}
    for start, end, name, text, reason in marks:
        label = POLARITY.get(name.strip().casefold())
        found = response[start:end]
        if not 0 <= start < end <= len(response) or (text and found != text):
            counts["unmatched"] += 1
        elif label is None:
            counts["no_polarity"] += 1
        elif (start, end, label) in spans:
            counts["repeated"] += 1
        else:
            spans[start, end, label] = Span(start=start, end=end, label=label, text=found, reason=reason)
    return in_order(spans.values()), QuoteCounts(**counts)


def marked_record(
    id: str, prompt: str, response: str, critique: Critique, marks: Iterable[Mark], meta: Mapping[str, Any]
) -> Feedback:
    """`human_record` of a critique whose spans are marks; the results of the marks are counted."""
    spans, counts = placed(marks, response)
    return human_record(id, prompt, response, critique.model_copy(update={"spans": spans, "quotes": counts}), meta)


def human_record(
    id: str, prompt: str | tuple[Message, ...], response: str, judgement: Judgement, meta: Mapping[str, Any]
) -> Feedback:
    """A record of what a person said. Of `meta`, what is empty or zero is left out (False is kept)."""
    turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    told = {name: value for name, value in meta.items() if value or isinstance(value, bool)}
    return Feedback.of(Example(id=id, prompt=turns, meta=told), response, judgement, Source(kind="human"))


def first_text(row: Mapping[str, Any], keys: Sequence[str], needed: bool = False) -> str:
    """The first of `keys` that holds text, be it blank; else "".

    Raises:
        ValueError: none does, and one is needed.
    """
    found = next((row[key] for key in keys if isinstance(row.get(key), str) and row[key]), "")
    if needed and not found:
        raise ValueError(f"no text in {', '.join(map(repr, keys))}")
    return found


def score_of(value: Any) -> float | None:
    """A number in [-1, 1] as a score; anything else is none."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and -1 <= value <= 1
    return float(value) if fits else None


def edits(response: str, corrected: str, reason: str = "") -> tuple[tuple[Span, ...], tuple[str, ...]]:
    """What a person's corrected text says of the response: words they took out or replaced are poor spans, words
    they only put in are omissions. Of scripts without spaces, characters are compared; composed or not is no edit.
    """
    before, after = list(units(response)), list(units(corrected))
    matcher = difflib.SequenceMatcher(
        None,
        [unicodedata.normalize("NFC", response[start:end]) for start, end in before],
        [unicodedata.normalize("NFC", corrected[start:end]) for start, end in after],
        autojunk=False,
    )
    spans: list[Span] = []
    missing: list[str] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        put_in = corrected[after[k][0] : after[m - 1][1]] if m > k else ""
        if kind in ("delete", "replace"):
            start, end = before[i][0], before[j - 1][1]
            why = reason or (f"should be: {put_in}" if put_in else "to be removed")
            spans.append(Span(start=start, end=end, label=-1, text=response[start:end], reason=why))
        elif kind == "insert":
            missing.append(put_in)
    return tuple(spans), tuple(missing)
