"""Repeated and distinct n-grams, counted by hand."""

from __future__ import annotations

from pytest import approx

from text2grad.align.variety import distinct, measure_variety, repetition


def test_repetition_by_hand() -> None:
    assert repetition([1, 2, 3]) == 0.0  # no four tokens
    assert repetition([1, 2, 3, 4, 5]) == 0.0
    assert repetition([7] * 8) == approx(4 / 5)  # five 4-grams, one of them new
    assert repetition([1, 2, 1, 2, 1, 2, 1], n=2) == approx(4 / 6)  # 12 21 12 21 12 21


def test_distinct_by_hand() -> None:
    answers = [[1, 2, 3], [1, 2], [4]]
    assert distinct(answers, 1) == approx(4 / 6)
    assert distinct(answers, 2) == approx(2 / 3)  # 12 23 12; no pair spans two answers
    assert distinct([], 1) == distinct([[5]], 2) == 0.0


def test_variety_is_a_mean_over_answers_and_distinct_over_all() -> None:
    found = measure_variety([[7] * 8, [1, 2, 3, 4, 5]])
    assert found == {"repetition": approx(0.4), "distinct_1": approx(6 / 13), "distinct_2": approx(5 / 11)}
