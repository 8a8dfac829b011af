"""Labelled places of a response, and counts of the quotes that gave none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from text2grad.feedback.transcripts import Record, Transcript

Tolerance = Literal["exact", "normalised", "any_case"]
"""How far a quote may be from the letter of the response: not at all; with quotes, dashes,
whitespace, accents and full width in another form; or in other capitals too, where that finds
nothing."""
Label = Literal[1, 0, -1]
Place = tuple[int, int]
"""The characters [start, end) of a text."""


class Span(Record):
    """A labelled character interval of a response.

    `start` and `end` are Unicode code points, `end` exclusive; `text` is the quote itself, so that
    a record can be checked without trusting its offsets. `label` is +1 (good), -1 (poor), or 0:
    right, but could be better (the paper's improvement suggestions), which pays nothing; `reason`
    says why. `weight` is the confidence in the label, such as the share of judgements that agree;
    it is written only if not 1.
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


class LabelledPlace(NamedTuple):
    """The place of a span, its label (0: neither good nor poor), and the confidence in it
    (`Span.weight`)."""

    start: int
    end: int
    label: int
    weight: float = 1.0


def spans_at(places: Iterable[LabelledPlace], text: str) -> tuple[Span, ...]:
    """Return the good and the poor places of a text as spans."""
    return tuple(
        Span(start=start, end=end, label=1 if label > 0 else -1, text=text[start:end], weight=weight)
        for start, end, label, weight in places
        if label
    )


class QuoteCounts(Record):
    """Counts of the quotes of a critique that gave no span, or were found in another form. `+` adds
    them up.

    No span: `unmatched` quotes are not in the response (`foreign`: those of a tool or a user among
    them), `ambiguous` ones occur more than once without saying which, `no_polarity` ones are
    neither praise nor blame, `repeated` ones repeat another. Found in another form (`Tolerance`):
    `normalised`.
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
    """Cut spans at the ends of the turns of a `Transcript`."""
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
