"""`eval.metrics` against hand-computed numbers and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from text2grad.eval.metrics import correlation, mean_with_interval, rouge


def test_rouge_by_hand() -> None:
    """3 of 4 and 3 of 3 words: P 1, R 3/4; bigrams 1 of 2 and of 3; longest common subsequence
    3."""
    scores = rouge(["the cat sat down"], ["the cat down"])
    assert scores == pytest.approx({"rouge1": 6 / 7, "rouge2": 2 / 5, "rouge_l": 6 / 7})


def test_rouge_is_the_mean_over_texts_and_stems_by_default() -> None:
    assert rouge(["a b", "c d"], ["a b", ""])["rouge1"] == pytest.approx(0.5)
    assert rouge(["cats running"], ["cat runs"])["rouge1"] == 1.0
    assert rouge(["cats running"], ["cat runs"], stemmer=False)["rouge1"] == 0.0


def test_rouge_refuses_nothing_and_uneven_lists() -> None:
    with pytest.raises(ValueError, match="no texts"):
        rouge([], [])
    with pytest.raises(ValueError, match="shorter"):
        rouge(["a", "b"], ["a"])


def test_interval_of_a_known_distribution() -> None:
    """400 values of a standard normal: mean +- 1.96 * s / 20, to the noise of 2,000 resamples."""
    values = np.random.default_rng(1).standard_normal(400).tolist()
    mean, low, high = mean_with_interval(values)
    half = 1.96 * np.std(values) / 20
    assert mean == pytest.approx(np.mean(values), abs=1e-12)
    assert (mean - low, high - mean) == (pytest.approx(half, rel=0.1), pytest.approx(half, rel=0.1))
    narrow = mean_with_interval(values, confidence=0.5)
    assert narrow.high - narrow.low == pytest.approx(2 * half * 0.6745 / 1.96, rel=0.1)


def test_interval_depends_on_the_seed_alone() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0, 0.5, 0.25]
    assert mean_with_interval(values) == mean_with_interval(values)
    assert mean_with_interval(values, resamples=50) != mean_with_interval(values, resamples=50, seed=1)
    assert mean_with_interval([0.25]) == (0.25, 0.25, 0.25)


def test_interval_refuses_nothing_and_odd_confidence() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_with_interval([])
    with pytest.raises(ValueError, match="confidence"):
        mean_with_interval([1.0], confidence=95)


def test_correlation_by_hand() -> None:
    """Deviations (-1, 0, 1, 0) and (-1, 1, 1, -1): r = 2 / sqrt(8); with four pairs z has a
    standard error of 1."""
    found = correlation([1.0, 2.0, 3.0, 2.0], [0.0, 2.0, 2.0, 0.0])
    assert found is not None and found.r == pytest.approx(2 / np.sqrt(8), abs=1e-12)
    z = np.arctanh(found.r)
    assert (found.low, found.high) == pytest.approx((np.tanh(z - 1.96), np.tanh(z + 1.96)), abs=1e-12)


def test_the_interval_of_a_correlation_covers_the_true_one_as_often_as_it_says() -> None:
    """2,000 samples of 30 pairs with r = 0.6: 95 % of the intervals hold it."""
    rng, r, covered = np.random.default_rng(3), 0.6, 0
    for _ in range(2000):
        x, e = rng.standard_normal((2, 30))
        found = correlation(x.tolist(), (r * x + np.sqrt(1 - r * r) * e).tolist())
        covered += found is not None and found.low <= r <= found.high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_what_has_no_correlation() -> None:
    assert correlation([], []) is None and correlation([1.0], [2.0]) is None
    assert correlation([1.0, 1.0, 1.0], [0.0, 1.0, 2.0]) is None
    assert correlation([float(n) for n in range(60)], [-0.6] * 60) is None  # whose mean is not -0.6 to the last bit
    assert correlation([0.0, 1.0, 2.0], [2.0, 1.0, 0.0]) == pytest.approx((-1.0, -1.0, 1.0))
    assert correlation([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]) == pytest.approx((1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="2 values and 1"):
        correlation([1.0, 2.0], [1.0])
