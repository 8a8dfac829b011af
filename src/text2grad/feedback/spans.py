"""Labelled spans of a response, and counts of the quotes without a span."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from text2grad.feedback.transcripts import Record, Transcript

Tolerance = Literal["exact", "normalised", "any_case"]
"""Tolerance of matching a quote with the response.

`exact`: every character must match. `normalised`: the form of quotation marks, dashes, whitespace,
accents and full-width letters may differ. `any_case`: if that finds nothing, case may differ too.
"""
Label = Literal[1, 0, -1]
Place = tuple[int, int]
"""The characters [start, end) of a text."""


class Span(Record):
    """A labelled character interval of a response.

    Attributes:
        start: the first character, in Unicode code points.
        end: the character after the last.
        label: 1 (good), -1 (poor), or 0 (right but improvable, the paper's improvement
            suggestions), which gives no reward.
        text: the quoted characters, so that a record can be checked without trusting its offsets.
        reason: why the words have this label, in the critic's words.
        weight: confidence in the label, such as the share of judgements that agree; written only
            if not 1.
    """

    start: int = Field(ge=0)
    end: int
    label: Label
    text: str
    reason: str = ""
    weight: float = Field(default=1.0, gt=0, le=1, exclude_if=lambda weight: weight == 1.0)

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"empty span [{self.start}, {self.end})")
        return self


def sort_by_place(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans in the order of the response; of equal places, good before poor."""
    return tuple(sorted(spans, key=lambda span: (span.start, span.end, -span.label)))


class LabelledPlace(NamedTuple):
    """The place of a span, its label (0: neither good nor poor), and its `Span.weight`."""

    start: int
    end: int
    label: int
    weight: float = 1.0


def spans_at(places: Iterable[LabelledPlace], text: str) -> tuple[Span, ...]:
    """Return the good and poor places of a text as spans."""
    return tuple(
        Span(start=start, end=end, label=1 if label > 0 else -1, text=text[start:end], weight=weight)
        for start, end, label, weight in places
        if label
    )


class QuoteCounts(Record):
    """Counts of a critique's quotes without a span or with an inexact match; `+` adds them.

    Attributes:
        unmatched: not in the response.
        foreign: unmatched quotes of a tool or a user.
        ambiguous: occur several times without naming an occurrence.
        normalised: matched in another form (`Tolerance`).
        no_polarity: neither praise nor criticism.
        repeated: repeat another quote.
    """

    unmatched: int = 0
    foreign: int = Field(default=0, exclude_if=lambda count: count == 0)
    ambiguous: int = 0
    normalised: int = 0
    no_polarity: int = 0
    repeated: int = 0

    def __add__(self, other: QuoteCounts) -> QuoteCounts:
        return QuoteCounts(**{name: count + getattr(other, name) for name, count in self})


def within_turns(spans: tuple[Span, ...], response: str) -> tuple[Span, ...]:
    """Split spans at the turn boundaries of a `Transcript`."""
    if not isinstance(response, Transcript):
        return spans
    edges = (
        (span, max(span.start, turn.start), min(span.end, turn.end)) for span in spans for turn in response.turns
    )
    return tuple(
        span.model_copy(update={"start": start, "end": end, "text": response[start:end]})
        for span, start, end in edges
        if start < end
    )
