"""Critiques of short texts whose tokens are words, and the rewards that credit schemes pay for
them."""

from __future__ import annotations

from typing import Any

import numpy as np

from text2grad.align import Aligned, CreditSettings, credit
from text2grad.feedback import Critique, Label, Span


def words(text: str) -> Aligned:
    """A text with its words as tokens, the space before each included, and an empty last token
    (EOS)."""
    pieces = text.replace(" ", "\0 ").split("\0")
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = ends - [len(piece) for piece in pieces]
    return Aligned.of(text, np.append(starts, len(text)), np.append(ends, len(text)))


def span(text: str, quote: str, label: Label) -> Span:
    start = text.index(quote)
    return Span(start=start, end=start + len(quote), label=label, text=quote)


def critique(
    text: str, good: tuple[str, ...] = (), poor: tuple[str, ...] = (), score: float | None = None
) -> Critique:
    spans = [span(text, quote, 1) for quote in good] + [span(text, quote, -1) for quote in poor]
    return Critique(text="", spans=tuple(spans), score=score)


def delta(text: str, case: Critique, **settings: Any) -> list[float]:
    chosen = CreditSettings(**{"weighting": "span", "outcome_weight": 0.0, **settings})
    return [round(value, 4) for value in credit(case, words(text), chosen).delta.tolist()]
