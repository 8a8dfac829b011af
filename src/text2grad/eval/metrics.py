"""ROUGE, and means and correlations with confidence intervals. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import atanh, sqrt, tanh
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from text2grad.tasks.base import rouge_scores


def rouge(references: Sequence[str], candidates: Sequence[str], stemmer: bool = True) -> dict[str, float]:
    """Return mean ROUGE of `candidates[i]` against `references[i]`, in [0, 1] (paper, Table 2).

    Returns:
        `rouge1`, `rouge2` and `rouge_l` (the longest common subsequence of the text) by the
        rouge-score package, which reads words of a to z and 0 to 9. If references have other words,
        also `rouge1_unicode`, `rouge2_unicode` and `rouge_l_unicode`, averaged over those
        references (`tasks.base.rouge_scores`).

    Raises:
        ValueError: no texts, or lists of different lengths.
    """
    if not references:
        raise ValueError("no texts to score")
    pairs = zip(references, candidates, strict=True)
    scores = [rouge_scores(reference, text, stemmer) for reference, text in pairs]
    names = dict.fromkeys(name for score in scores for name in score)
    return {name: mean([score[name] for score in scores if name in score]) for name in names}


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; 0 without values."""
    return sum(values) / len(values) if values else 0.0


class Interval(NamedTuple):
    """A mean and the bounds of its bootstrap interval."""

    mean: float
    low: float
    high: float


def mean_with_interval(
    values: Sequence[float], confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the mean of `values` with a percentile bootstrap interval (Efron 1979).

    Equal seeds give equal bounds. The values are resampled independently: if several samples belong
    to one problem, pass one value per problem.

    Raises:
        ValueError: no values, or a confidence outside (0, 1).
    """
    if not values:
        raise ValueError("no values to average")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}, expected between 0 and 1")
    data = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = [data[rng.integers(len(data), size=len(data))].mean() for _ in range(resamples)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(data.mean()), float(low), float(high))


def by_length(
    measured: Sequence[tuple[float, float]], accuracy: Callable[[NDArray[np.float64]], float]
) -> list[dict[str, float]]:
    """Report the accuracy by quartile of length, shortest first (paper, Table 19).

    Args:
        measured: pairs of a length and a figure.
        accuracy: computes the accuracy of a quartile, an array of pairs (n, 2).

    Returns:
        Up to four rows of almost equal size: the number of `spans`, the lengths `from` and `to`,
        and the `accuracy`.
    """
    quarters = np.array_split(np.array(sorted(measured), dtype=np.float64).reshape(-1, 2), 4)
    return [
        {
            "spans": len(quarter),
            "from": int(quarter[0, 0]),
            "to": int(quarter[-1, 0]),
            "accuracy": accuracy(quarter),
        }
        for quarter in quarters
        if len(quarter)
    ]


class Correlation(NamedTuple):
    """Pearson's r and the bounds of its 95 % interval."""

    r: float
    low: float
    high: float


def correlation(xs: Sequence[float], ys: Sequence[float]) -> Correlation | None:
    """Return Pearson's r of two columns with Fisher's interval (Fisher 1921).

    artanh r has the standard error 1 / sqrt(n - 3); the interval of up to three pairs is [-1, 1].
    None if a column is constant or shorter than two.

    Raises:
        ValueError: columns of different lengths.
    """
    if len(xs) != len(ys):
        raise ValueError(f"{len(xs)} values and {len(ys)}")
    if min(len(set(xs)), len(set(ys))) < 2:
        return None
    r = max(-1.0, min(1.0, float(np.corrcoef(xs, ys)[0, 1])))
    if len(xs) <= 3:
        return Correlation(r, -1.0, 1.0)
    if abs(r) == 1.0:
        return Correlation(r, r, r)
    width = 1.96 / sqrt(len(xs) - 3)
    return Correlation(r, tanh(atanh(r) - width), tanh(atanh(r) + width))
