"""Accuracy of rewards on pairs, by question, and the correlation with length."""

from __future__ import annotations

import math

import pytest

from text2grad.eval.critics.preference import preference_report


def test_figures_by_hand() -> None:
    """Question a: right, wrong; b: a tie. Accuracy (1/2 + 1/2) / 2; the longer answer: (1 + 0) / 2."""
    report = preference_report(
        chosen=[1.0, 0.0, 3.0],
        rejected=[0.0, 1.0, 3.0],
        lengths=[(2, 1), (4, 2), (5, 6)],
        questions=["a", "a", "b"],
    )
    assert (report["pairs"], report["questions"]) == (3, 2)
    assert report["accuracy"] == report["accuracy_low"] == report["accuracy_high"] == 0.5
    assert report["longer_accuracy"] == 0.5
    loss = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(1)) + math.log(2)) / 3
    assert report["loss"] == pytest.approx(loss)
    # rewards 1 0 3 0 1 3 (mean 4/3), lengths 2 4 5 1 2 6 (mean 10/3)
    assert report["length_correlation"] == pytest.approx(31 / 3 / math.sqrt((28 / 3) * (58 / 3)), abs=1e-12)


def test_a_constant_reward_has_no_correlation() -> None:
    assert "length_correlation" not in preference_report([0.0], [0.0], [(1, 2)], ["a"])
    with pytest.raises(ValueError):
        preference_report([], [], [], [])
