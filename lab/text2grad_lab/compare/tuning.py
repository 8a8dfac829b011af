"""Tune the learning rate of every method with the same number of tries, on unreported seeds.

All methods try the same multiples of the configured rate. The best rate has the highest measure of
sampled answers on the held-out problems of the tuning seeds. If `evaluate.temperatures` has several
values, the best temperature counts, so that a policy gains nothing by being more certain. Reported
seeds have other problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.config import Config
from text2grad.errors import UsageError
from text2grad.settings import is_set, with_values
from text2grad.stages.run_folder import RunFolder, write_json
from text2grad.tasks.base import question_key
from text2grad_lab.compare.figures import BEST, scores_of
from text2grad_lab.compare.methods import Methods, run_name, tunable, tuning_works
from text2grad_lab.compare.seeds import Seed, run_parallel

FACTORS = (1.0, 2.0, 0.5, 0.25, 4.0)
"""Factors on a rate, in the order of the tries."""
TUNING_SEED_OFFSET = 100
"""The difference between the first reported seed and the default tuning seed."""


class Extent(NamedTuple):
    """The reported seeds, the factors on learning rates, and the seeds that they are tuned on."""

    seeds: Sequence[int]
    factors: Sequence[float] = (1.0,)
    tuning_seeds: Sequence[int] = ()

    @classmethod
    def of(cls, first: int, seeds: int, tries: int = 1) -> Extent:
        """Return consecutive reported seeds, and the first factors on the default tuning seed."""
        return cls(range(first, first + seeds), FACTORS[:tries], (first + TUNING_SEED_OFFSET,))


def tuning_seeds(config: Config, methods: Methods, extent: Extent) -> list[Seed]:
    """Return the tuning seeds with their works; none if there is a single factor.

    Raises:
        UsageError: a seed or its problems would be both tuned on and reported, or a rate is not
            set.
    """
    if len(extent.factors) == 1:
        return []
    if set(extent.seeds) & set(extent.tuning_seeds):
        raise UsageError("a seed cannot be both tuned on and reported", "choose other seeds")
    if unset := sorted({work.rate for work in tunable(methods).values() if not is_set(config, work.rate)}):
        raise UsageError(f"{unset[0]} is not set, so there is no rate to try multiples of", f"--{unset[0]} RATE")
    tuned_on = [_heldout(config, seed) for seed in extent.tuning_seeds]
    if any(_heldout(config, seed) in tuned_on for seed in extent.seeds):
        problem = "the held-out problems are the same for every seed, so tuning would see them"
        raise UsageError(problem, "--tries 1, with rates that were tuned on other problems")
    unwatched = with_values(config, {"ppo.heldout_every": None})
    works, root = tuning_works(methods, extent.factors), config.run.folder
    return [Seed(unwatched, number, root / f"tuning-{number}", works) for number in extent.tuning_seeds]


def _heldout(config: Config, seed: int) -> set[str]:
    """Return the keys of the held-out problems of a seed."""
    task = RunFolder.of(with_values(config, {"task.seed": seed})).task()
    return {question_key(example) for example in task.examples("heldout")}


def tune_rates(config: Config, methods: Methods, extent: Extent, measure: str, at_once: int) -> dict[str, float]:
    """Run missing tries, write `tuning.json`, and return the best factor of every method."""
    seeds = tuning_seeds(config, methods, extent)
    if not seeds:
        return dict.fromkeys(tunable(methods), extent.factors[0])
    run_parallel(seeds, at_once)
    choices = {name: _choose_factor(seeds, name, extent.factors, measure) for name in tunable(methods)}
    write_json(config.run.folder / "tuning.json", {"seeds": [seed.number for seed in seeds], "methods": choices})
    return {name: choice["chosen"] for name, choice in choices.items()}


def _choose_factor(seeds: Sequence[Seed], method: str, factors: Sequence[float], measure: str) -> dict[str, Any]:
    """Return the setting of a method, the measure at each factor, and the best (first) factor."""

    def score(factor: float) -> float:
        by_seed = [scores_of(seed, run_name(method, factor), measure) for seed in seeds]
        return fmean(fmean(scores.get(BEST, scores["sampled"]).values()) for scores in by_seed)

    tried = {factor: score(factor) for factor in factors}
    return {
        "setting": seeds[0].works[run_name(method, factors[0])].rate,
        "tried": {f"{factor:g}": round(value, 4) for factor, value in tried.items()},
        "chosen": max(tried, key=tried.__getitem__),
    }
