"""Measure the variety of sampled answers, which drops when a policy collapses."""

from __future__ import annotations

from collections.abc import Sequence

REPETITION_N = 4
"""Length of the n-grams of `repetition`, as in Welleck et al. 2020."""


def measure_variety(answers: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return `repetition` (mean over the answers), `distinct_1` and `distinct_2`."""
    repeated = sum(repetition(ids) for ids in answers) / max(1, len(answers))
    return {"repetition": repeated, "distinct_1": distinct(answers, 1), "distinct_2": distinct(answers, 2)}


def repetition(ids: Sequence[int], n: int = REPETITION_N) -> float:
    """Return the share of an answer's n-grams that are repeats; 0 for fewer than n tokens.

    seq-rep-n: 1 - (different n-grams) / (n-grams) (Welleck et al. 2020, section 4.3).
    """
    ngrams = _ngrams(ids, n)
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def distinct(answers: Sequence[Sequence[int]], n: int) -> float:
    """Return distinct-n: different n-grams of all answers over all their n-grams; 0 without any.

    From Li et al. 2016, section 5.4. It falls as the number of answers grows, so compare equal
    numbers of answers only.
    """
    ngrams = [ngram for ids in answers for ngram in _ngrams(ids, n)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 0.0


def _ngrams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
