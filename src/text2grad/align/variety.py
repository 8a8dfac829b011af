"""How varied sampled answers are, by their token ids: what falls when a policy collapses onto a few
phrases."""

from __future__ import annotations

from collections.abc import Sequence

REPEATED = 4
"""Tokens of the n-grams of `repetition`, as in Welleck et al."""


def variety(answers: Sequence[Sequence[int]]) -> dict[str, float]:
    """`repetition`: mean over the answers of their `repetition`; `distinct_1` and `distinct_2`: see
    `distinct`."""
    repeated = sum(repetition(ids) for ids in answers) / max(1, len(answers))
    return {"repetition": repeated, "distinct_1": distinct(answers, 1), "distinct_2": distinct(answers, 2)}


def repetition(ids: Sequence[int], n: int = REPEATED) -> float:
    """Share of the n-grams of one answer that occurred in it before; 0 of an answer shorter than n
    tokens.

    seq-rep-n: 1 - (different n-grams) / (n-grams) (Welleck et al. 2020, section 4.3).
    """
    found = _ngrams(ids, n)
    return 1 - len(set(found)) / len(found) if found else 0.0


def distinct(answers: Sequence[Sequence[int]], n: int) -> float:
    """distinct-n: different n-grams of all answers over their number (Li et al. 2016, section 5.4);
    0 of none.

    It falls as more answers are read, so compare equal numbers of answers only.
    """
    found = [each for ids in answers for each in _ngrams(ids, n)]
    return len(set(found)) / len(found) if found else 0.0


def _ngrams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]
