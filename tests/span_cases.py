"""Spans over one sentence of nine words, for the tests of what compares spans."""

from __future__ import annotations

import re

import numpy as np

from text2grad.align import Aligned
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critique, Failure, Judgement, Label, QuoteCounts, Span

TEXT = "the cat sat on the mat and the dog slept"
UNREADABLE = Failure(kind="invalid", message="not JSON")


def words_aligned(text: str) -> Aligned:
    """Tokens as a byte-level tokenizer makes them of plain words: a word with the space before
    it."""
    found = list(re.finditer(r"\s?(\S+)", text))
    columns = [
        [match.start() for match in found],
        [match.end() for match in found],
        [match.start(1) for match in found],
        [match.end(1) for match in found],
    ]
    starts, ends, core_starts, core_ends = (np.array(column, dtype=np.int64) for column in columns)
    return Aligned(text=text, starts=starts, ends=ends, core_starts=core_starts, core_ends=core_ends)


def word_span(label: Label, first: int, last: int) -> Span:
    """The words `first` to `last` of TEXT, counted from 0, as one span."""
    words = list(re.finditer(r"\S+", TEXT))
    start, end = words[first].start(), words[last].end()
    return Span(start=start, end=end, label=label, text=TEXT[start:end])


def critique(*spans: Span, unmatched: int = 0, ambiguous: int = 0, forced: int = 0) -> Critique:
    return Critique(
        text="because", spans=spans, quotes=QuoteCounts(unmatched=unmatched, ambiguous=ambiguous), forced=forced
    )


def case(gold: Critique, predicted: Judgement) -> SpanCase:
    return SpanCase(gold, predicted, words_aligned(TEXT))
