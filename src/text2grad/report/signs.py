"""Warnings about a run, a line each, at the thresholds of a published review of the method.

docs/metrics.md ("Signs of failure") explains them. A figure that is not known gives no warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.report.folder import read_metrics
from text2grad.report.verdict import values_of

Row = Mapping[str, Any]
LEAST_AGREED, MOST_UNMATCHED = 0.75, 0.05
LEAST_STEPS = 20
"""Fewest steps that show how rewards move."""
ALIKE, OPPOSITE = 0.6, -0.45
"""Autocorrelations of a periodic swing: at a period, and between."""
BLOCKS, SWINGS = (12, 24, 48, 96), 4
CLEAR, HALF, TENTH = 6.0, 0.5, 0.1
"""Least swing: in standard errors of a block's mean, in the range of means, in the size of the rewards."""


def of_marks(people: Mapping[str, Row]) -> Iterator[str]:
    """People find too few critiques, or spans, correct; `people` as `eval.critics.marks.agreement` has it."""
    for aspect, marks in people.items():
        if (share := marks.get("accuracy")) is not None and share < LEAST_AGREED:
            low, high = marks["interval"]
            yield (
                f"people find {share:.0%} of {marks['critiques']} {OF_ASPECT.get(aspect, aspect)} correct"
                f" ({low:.0%} to {high:.0%}), below {LEAST_AGREED:.0%}: critiques and spans do not match;"
                " read the annotations and their prompt"
            )


OF_ASPECT = {"critique": "critiques", "spans": "answers' spans"}


def of_quotes(unmatched: float | None, whose: str) -> Iterator[str]:
    """Too many quotes are not in their answers; `unmatched` is their share."""
    if unmatched is not None and unmatched > MOST_UNMATCHED:
        yield (
            f"{unmatched:.1%} of the quotes {whose} are not in the answer, above {MOST_UNMATCHED:.0%}: they reward"
            " nothing; ask for exact quotes, or ground the decoding (reward_model.grounded)"
        )


def of_rewards(values: Sequence[float]) -> Iterator[str]:
    """The mean reward of an answer goes up and down from step to step, without progress."""
    if oscillates(values):
        yield (
            f"the reward of an answer swings between {min(values):.3g} and {max(values):.3g} and gets nowhere:"
            " check the precision of spans (evaluate --task reward-model), good_tokens and poor_tokens"
        )


def of_scalar(name: str, scalar: str, ahead: float, interval: Sequence[float]) -> Iterator[str]:
    """A run on token rewards is below scalar PPO, which is `ahead` by that much, with its 95 % interval."""
    if interval[0] > 0:
        yield (
            f"{name} is below {scalar} by {ahead:.3f} ({interval[0]:.3f} to {interval[1]:.3f}): check"
            " wrong_sign_rate (evaluate --task reward-model), compare with dense labels (train --config dense)"
        )


def of_run(folder: Path) -> list[str]:
    """The signs in the metrics that a run of PPO has written to a folder."""
    return of_metrics(read_metrics(folder / "metrics.jsonl"))


def of_metrics(rows: Sequence[Row]) -> list[str]:
    """The signs in the metrics of a run's steps."""
    unmatched = values_of(rows, "unmatched_share")
    quotes = of_quotes(fmean(unmatched) if unmatched else None, "in training")
    return [*quotes, *of_rewards(values_of(rows, "delta_sum"))]


def oscillates(values: Sequence[float]) -> bool:
    """Whether a series swings: periodically; or often and far, with the noise of its steps averaged out."""
    middle = fmean(values) if values else 0.0
    apart = [value - middle for value in values]
    spread = sum(each**2 for each in apart)
    if len(values) < LEAST_STEPS or spread == 0:
        return False
    return _in_time(apart, spread) or any(_swings(values, blocks) for blocks in BLOCKS if len(values) // blocks > 1)


def _in_time(apart: Sequence[float], spread: float) -> bool:
    count = len(apart)

    def correlation(lag: int) -> float:
        total = sum(a * b for a, b in zip(apart, apart[lag:], strict=False))
        return total / spread * count / (count - lag)

    correlations = [correlation(lag) for lag in range(1, count // 3 + 1)]
    return any(
        each >= ALIKE and min(correlations[:lag]) <= OPPOSITE for lag, each in enumerate(correlations) if lag
    )


def _swings(values: Sequence[float], blocks: int) -> bool:
    """Whether the means of so many blocks reverse often, each time by more than noise."""
    size = len(values) // blocks
    means = [fmean(values[n * size : (n + 1) * size]) for n in range(blocks)]
    steps = fmean((b - a) ** 2 for a, b in pairwise(values)) / 2
    error = (steps / size) ** 0.5
    size_of_rewards = fmean(map(abs, values))
    return turns(means, max(CLEAR * error, HALF * (max(means) - min(means)), TENTH * size_of_rewards)) >= SWINGS


def turns(values: Sequence[float], least: float) -> int:
    """The number of moves of at least `least`, each opposite to the one before."""
    count, low, high, way = 0, values[0], values[0], 0
    for value in values:
        low, high = min(low, value), max(high, value)
        if way <= 0 and value - low >= least:
            count, way, high = count + 1, 1, value
        elif way >= 0 and high - value >= least:
            count, way, low = count + 1, -1, value
    return count
