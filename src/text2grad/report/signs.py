"""Signs that a run goes wrong, a line each, at the thresholds of a published review of the method.

The lines say what was found, and what to look at; docs/metrics.md ("Signs of failure") explains them. Nothing is
said where a figure is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.report.folder import MetricRow, read_lines

Row = Mapping[str, Any]
LEAST_AGREED, MOST_UNMATCHED = 0.75, 0.05
LEAST_STEPS = 20
"""Steps below which nothing can be said of how rewards move."""
ALIKE, OPPOSITE = 0.6, -0.45
"""Autocorrelations: steps are like those a period earlier, and unlike some in between: rewards swing in time."""
FEWEST_BLOCKS, MOST_BLOCKS, SWINGS = 12, 96, 4
CLEAR, HALF, TENTH = 6.0, 0.5, 0.1
"""A swing is this many standard errors of a block's mean, half of all that the means range over, and a tenth of the
size of the rewards."""


def of_marks(people: Mapping[str, Row]) -> Iterator[str]:
    """That people find too few critiques, or spans, correct; `people` as `eval.critics.marks.agreement` has it."""
    for aspect, found in people.items():
        if (share := found.get("accuracy")) is not None and share < LEAST_AGREED:
            low, high = found["interval"]
            yield (
                f"people find {share:.0%} of {found['critiques']} {OF_ASPECT.get(aspect, aspect)} correct"
                f" ({low:.0%} to {high:.0%}), below {LEAST_AGREED:.0%}: words and what they are about do not belong"
                " together; read the annotations, and what their prompt asks for"
            )


OF_ASPECT = {"critique": "critiques", "spans": "answers' spans"}


def of_quotes(unmatched: float | None, whose: str) -> Iterator[str]:
    """That too many quotes are not in their answers; `unmatched` is their share."""
    if unmatched is not None and unmatched > MOST_UNMATCHED:
        yield (
            f"{unmatched:.1%} of the quotes {whose} are not in the answer, above {MOST_UNMATCHED:.0%}: they reward"
            " nothing; does the prompt ask for exact quotes, and is decoding grounded (reward_model.grounded)?"
        )


def of_rewards(values: Sequence[float]) -> Iterator[str]:
    """That the mean reward of an answer goes up and down from step to step, and gets nowhere."""
    if oscillates(values):
        yield (
            f"the reward of an answer swings between {min(values):.3g} and {max(values):.3g} and gets nowhere:"
            " token rewards may be noisy; see how precise the spans are (evaluate --task reward-model), and whether"
            " one label outweighs the other (good_tokens, poor_tokens)"
        )


def of_scalar(name: str, scalar: str, ahead: float, interval: Sequence[float]) -> Iterator[str]:
    """That a run on token rewards is below scalar PPO: `ahead` is how far that is ahead, with its 95 % interval."""
    if interval[0] > 0:
        yield (
            f"{name} is below {scalar} by {ahead:.3f} ({interval[0]:.3f} to {interval[1]:.3f}): rewards of the"
            " wrong sign may spoil its gradient (wrong_sign_rate in evaluate --task reward-model); compare with"
            " dense labels (train --config dense)"
        )


def of_run(folder: Path) -> list[str]:
    """The signs in the metrics that a run of PPO has written to a folder."""
    return of_metrics([row.model_dump() for row in read_lines(folder / "metrics.jsonl", MetricRow, [])])


def of_metrics(rows: Sequence[Row]) -> list[str]:
    """The signs in the metrics of a run's steps."""
    unmatched, rewards = (_known(rows, name) for name in ("unmatched_share", "delta_sum"))
    return [*of_quotes(fmean(unmatched) if unmatched else None, "in training"), *of_rewards(rewards)]


def _known(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row.get(name) is not None]


def oscillates(values: Sequence[float]) -> bool:
    """Whether a series swings to and fro: in time; or often and far, with the noise of its steps averaged out."""
    middle = fmean(values) if values else 0.0
    apart = [value - middle for value in values]
    spread = sum(each**2 for each in apart)
    if len(values) < LEAST_STEPS or spread == 0:
        return False
    return _in_time(apart, spread) or any(_swings(values, blocks) for blocks in _block_counts(len(values)))


def _in_time(apart: Sequence[float], spread: float) -> bool:
    count = len(apart)

    def correlation(lag: int) -> float:
        total = sum(a * b for a, b in zip(apart, apart[lag:], strict=False))
        return total / spread * count / (count - lag)

    found = [correlation(lag) for lag in range(1, count // 3 + 1)]
    return any(each >= ALIKE and min(found[:lag]) <= OPPOSITE for lag, each in enumerate(found) if lag)


def _block_counts(steps: int) -> Iterator[int]:
    blocks = FEWEST_BLOCKS
    while blocks <= MOST_BLOCKS and steps // blocks > 1:
        yield blocks
        blocks *= 2


def _swings(values: Sequence[float], blocks: int) -> bool:
    """Whether the means of so many blocks turn round often, each time by more than chance and a little would do."""
    size = len(values) // blocks
    means = [fmean(values[n * size : (n + 1) * size]) for n in range(blocks)]
    steps = fmean((b - a) ** 2 for a, b in pairwise(values)) / 2
    error = (steps / size) ** 0.5
    size_of_rewards = fmean(map(abs, values))
    return turns(means, max(CLEAR * error, HALF * (max(means) - min(means)), TENTH * size_of_rewards)) >= SWINGS


def turns(values: Sequence[float], least: float) -> int:
    """Moves of at least so much, each the other way than the one before."""
    count, low, high, way = 0, values[0], values[0], 0
    for value in values:
        low, high = min(low, value), max(high, value)
        if way <= 0 and value - low >= least:
            count, way, high = count + 1, 1, value
        elif way >= 0 and high - value >= least:
            count, way, low = count + 1, -1, value
    return count
