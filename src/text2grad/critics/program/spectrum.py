"""Spectrum-based fault localisation: which lines the failing tests run and the passing ones do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from text2grad.sandbox import TestResult


def ochiai(runs: Sequence[TestResult]) -> dict[int, float]:
    """Suspiciousness of every executed line, in [0, 1] (Ochiai; Abreu et al. 2007).

    failed(line) / sqrt(failed * (failed(line) + passed(line))), where failed is the number of failing tests
    and failed(line), passed(line) count those that execute the line. Without a failing test nothing is suspicious.
    """
    failed = sum(not run.passed for run in runs)
    bad, good = (
        Counter(n for run in runs if run.passed is passed for n in set(run.lines)) for passed in (False, True)
    )
    return {n: bad[n] / sqrt(failed * (bad[n] + good[n])) if bad[n] else 0.0 for n in sorted(bad | good)}


def cleared(runs: Sequence[TestResult]) -> list[int]:
    """Lines that some passing test runs and no failing test does."""
    passing: set[int] = set().union(*(run.lines for run in runs if run.passed))
    return sorted(passing.difference(*(run.lines for run in runs if not run.passed)))
