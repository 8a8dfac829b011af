"""Ratings are predicted from features only where held-out answers confirm it."""

from __future__ import annotations

import numpy as np
import pytest

from text2grad.eval.ratings import FOLDS, RatingModel, heldout_correlation

COUNT, WIDTH = 60, 40


def data(signal: float) -> tuple[np.ndarray, np.ndarray, list[str]]:  # type: ignore[type-arg]
    """Features of unit variance, ratings that follow one of them, and a question for each."""
    random = np.random.default_rng(0)
    features = random.standard_normal((COUNT, WIDTH))
    ratings = signal * features[:, 0] + random.standard_normal(COUNT)
    return features, ratings, [f"q{number}" for number in range(COUNT)]


def test_a_signal_is_found_and_noise_is_not() -> None:
    found, none = heldout_correlation(*data(4.0)), heldout_correlation(*data(0.0))
    assert found is not None and found.low > 0
    assert none is not None and none.low <= 0


def test_answers_to_one_question_are_held_out_together() -> None:
    """Equal answers to one question would otherwise be predicted from each other."""
    features, ratings, _ = data(0.0)
    twice = np.concatenate([features, features]), np.concatenate([ratings, ratings])
    apart = heldout_correlation(*twice, [f"q{number}" for number in range(2 * COUNT)])
    together = heldout_correlation(*twice, [f"q{number}" for number in range(COUNT)] * 2)
    assert apart is not None and together is not None
    assert together.r < 0.3 < apart.r


@pytest.mark.parametrize("questions", [FOLDS - 1, FOLDS])
def test_too_few_questions_have_no_correlation(questions: int) -> None:
    features, ratings, _ = data(4.0)
    correlation = heldout_correlation(features, ratings, [f"q{n % questions}" for n in range(COUNT)])
    assert (correlation is None) == (questions < FOLDS)


def test_the_prediction_is_the_ridge_solution() -> None:
    """The dual form equals (Z^T Z / H + I)^-1 Z^T y / H on standardised features."""
    features, ratings, _ = data(1.0)
    standardised = (features - features.mean(0)) / (features.std(0) + 1e-6)
    primal = standardised.T @ standardised / WIDTH + np.eye(WIDTH)
    weights = np.linalg.solve(primal, standardised.T @ (ratings - ratings.mean()) / WIDTH)
    expected = ratings.mean() + standardised @ weights
    assert RatingModel.fit(features, ratings).predict(features) == pytest.approx(expected)
