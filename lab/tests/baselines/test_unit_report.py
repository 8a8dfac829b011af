"""Figures of a unit model: each step counts once, regardless of its length."""

from __future__ import annotations

import pytest

from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critique, Failure, Judgement, Label, Span
from text2grad_lab.baselines.train_units import as_tokens, unit_report

TEXT = "one two three"
PLACES = ((0, 3), (4, 7), (8, 13))


def critique(*labels: Label) -> Critique:
    spans = [
        Span(start=start, end=end, label=label, text=TEXT[start:end])
        for (start, end), label in zip(PLACES, labels, strict=True)
    ]
    return Critique(text="", spans=tuple(spans))


def case(gold: Critique, predicted: Judgement) -> SpanCase:
    return SpanCase(gold, predicted, as_tokens(TEXT, PLACES))


def test_step_figures_by_hand() -> None:
    """Both labels have 2 true positives, 1 false negative and 1 false positive."""
    report = unit_report(
        [case(critique(-1, 1, -1), critique(-1, 1, 1)), case(critique(1, -1, 1), critique(1, -1, -1))]
    )
    assert (report["answers"], report["units"], report["poor_share"], report["unreadable"]) == (2, 6, 0.5, 0)
    for name in ("poor", "good"):
        assert report[f"{name}_precision"] == pytest.approx(2 / 3) == report[f"{name}_recall"]
        assert report[f"{name}_f1"] == pytest.approx(2 / 3)
        assert 0 < report[f"{name}_f1_low"] <= 2 / 3 <= report[f"{name}_f1_high"] < 1
    assert report["always_poor_f1"] == pytest.approx(2 / 3)  # 3 of 6 are poor
    assert 0 < report["random_poor_f1"] < 0.5  # a good span on a poor one cancels it


def test_unreadable_answers_count_as_missed() -> None:
    long = Failure(kind="unsupported", message="too long")
    report = unit_report([case(critique(-1, 1, 1), critique(-1, 1, 1)), case(critique(-1, 1, 1), long)])
    assert (report["unreadable"], report["poor_precision"], report["poor_recall"]) == (0.5, 1, 0.5)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="no critiques"):
        unit_report([])
