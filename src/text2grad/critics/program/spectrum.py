"""Spectrum-based fault localisation: which lines the failing tests run and the passing ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class Ran:
    """One test: whether it passed, and the lines of the program (from 1) that it executed."""

    passed: bool
    lines: frozenset[int]


def ochiai(runs: Sequence[Ran]) -> dict[int, float]:
    """Suspiciousness of every executed line, in [0, 1] (Ochiai; Abreu et al. 2007).

    failed(line) / sqrt(failed * (failed(line) + passed(line))), where failed is the number of failing tests
    and failed(line), passed(line) count those that execute the line. Without a failing test nothing is suspicious.
    """
    failed = sum(not run.passed for run in runs)
    scores: dict[int, float] = {}
    for line in sorted(set().union(*(run.lines for run in runs))):
        by_failing = sum(line in run.lines for run in runs if not run.passed)
        by_passing = sum(line in run.lines for run in runs if run.passed)
        scores[line] = by_failing / sqrt(failed * (by_failing + by_passing)) if by_failing else 0.0
    return scores


def cleared(runs: Sequence[Ran]) -> list[int]:
    """Lines that some passing test runs and no failing test does."""
    passing = set().union(*(run.lines for run in runs if run.passed))
    failing = set().union(*(run.lines for run in runs if not run.passed))
    return sorted(passing - failing)
