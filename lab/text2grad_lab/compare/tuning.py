"""Choose the learning rate of every method by the same number of tries, on seeds that are not
reported.

The tries are the configuration's rate and the same multiples of it for all. The best has the
highest measure on the held-out problems of the tuning seeds, sampled, at the best temperature where
`evaluate.temperatures` has several (a policy that is only more certain gains nothing there). The
seeds in the table have other problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.config import Config
from text2grad.errors import UsageError
from text2grad.settings import is_set, with_values
from text2grad.stages.run_folder import write_json
from text2grad_lab.compare.figures import BEST, scores_of
from text2grad_lab.compare.methods import Methods, run_name, trying, tunable
from text2grad_lab.compare.seeds import Seed, side_by_side

FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25)
"""Factors on a rate, in the order of the tries."""
APART = 100
"""Added to the first seed, the tuning seed, if none is named."""


class Extent(NamedTuple):
    """How much is run: the seeds of the table, the factors on rates, and the seeds that choose
    among them."""

    seeds: Sequence[int]
    factors: Sequence[float] = (1.0,)
    tuning_seeds: Sequence[int] = ()

    @classmethod
    def of(cls, first: int, seeds: int, tries: int = 1) -> Extent:
        """`seeds` seeds from the first, and `tries` tries on another seed."""
        return cls(range(first, first + seeds), FACTORS[:tries], (first + APART,))


def tuning_seeds(config: Config, methods: Methods, extent: Extent) -> list[Seed]:
    """The seeds that rates are chosen on, with their works; none with one try.

    Raises:
        UsageError: a seed would be both tuned on and reported, or a rate is not set.
    """
    if len(extent.factors) == 1:
        return []
    if set(extent.seeds) & set(extent.tuning_seeds):
        raise UsageError("a seed cannot be both tuned on and reported", "take other seeds")
    if unset := sorted({own.rate for own in tunable(methods).values() if not is_set(config, own.rate)}):
        raise UsageError(f"nothing sets {unset[0]}, so there is no rate to try multiples of", f"--{unset[0]} RATE")
    unwatched = with_values(config, {"ppo.heldout_every": None})
    works, root = trying(methods, extent.factors), config.run.folder
    return [Seed(unwatched, number, root / f"tuning-{number}", works) for number in extent.tuning_seeds]


def tuned(config: Config, methods: Methods, extent: Extent, measure: str, at_once: int) -> dict[str, float]:
    """The best factor of every method that has a rate; runs what is missing, and writes
    `tuning.json`."""
    seeds = tuning_seeds(config, methods, extent)
    if not seeds:
        return dict.fromkeys(tunable(methods), extent.factors[0])
    side_by_side(seeds, at_once)
    choices = {name: _tried(seeds, name, extent.factors, measure) for name in tunable(methods)}
    write_json(config.run.folder / "tuning.json", {"seeds": [seed.number for seed in seeds], "methods": choices})
    return {name: each["chosen"] for name, each in choices.items()}


def _tried(seeds: Sequence[Seed], method: str, factors: Sequence[float], measure: str) -> dict[str, Any]:
    """The setting of a method, the measure at each factor, and the best factor; of equal ones the
    first tried."""

    def score(factor: float) -> float:
        each = [scores_of(seed, run_name(method, factor), measure) for seed in seeds]
        return fmean(fmean(scores.get(BEST, scores["sampled"]).values()) for scores in each)

    tried = {factor: score(factor) for factor in factors}
    return {
        "setting": seeds[0].works[run_name(method, factors[0])].rate,
        "tried": {f"{factor:g}": round(value, 4) for factor, value in tried.items()},
        "chosen": max(tried, key=tried.__getitem__),
    }
