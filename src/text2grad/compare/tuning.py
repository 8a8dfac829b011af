"""As many tries of its learning rate for every method, on a seed that is not reported.

The tries are the configuration's rate and the same multiples of it for all; the best is that with the most on the
held-out problems of the tuning seed, sampled. These are other problems than those of the seeds in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from text2grad.compare.figures import scores_of
from text2grad.compare.methods import run_name, trying, tunable
from text2grad.compare.seeds import Seed, side_by_side
from text2grad.config import Config
from text2grad.stages.results import write_json

FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25)
"""What a rate is multiplied by, in the order of the tries."""
APART = 100
"""The tuning seed is the first seed and this."""


def tuning_seed(config: Config, methods: Sequence[str], tries: int) -> Seed:
    """The seed that rates are chosen on, with all that is run there."""
    number = config.run.seed + APART
    works = trying(methods, FACTORS[:tries]) if tries > 1 else {}
    unwatched = config.model_copy(update={"ppo": config.ppo.model_copy(update={"heldout_every": None})})
    return Seed(unwatched, number, config.run.folder / f"tuning-{number}", works)


def tuned(config: Config, methods: Sequence[str], tries: int, measure: str, at_once: int) -> dict[str, float]:
    """The best factor of every method; runs what is missing, and writes `tuning.json`. Nothing with one try."""
    seed = tuning_seed(config, methods, tries)
    if not seed.works:
        return {}
    side_by_side([seed], at_once)
    found = {name: _tried(seed, name, FACTORS[:tries], measure) for name in tunable(methods)}
    write_json(config.run.folder / "tuning.json", {"seed": seed.number, "methods": found})
    return {name: each["chosen"] for name, each in found.items()}


def _tried(seed: Seed, method: str, factors: Sequence[float], measure: str) -> dict[str, Any]:
    """The setting of a method, what each multiple of it reached, and the best; of equal ones the first tried."""
    reached = {
        factor: fmean(scores_of(seed, run_name(method, factor), measure)["sampled"].values()) for factor in factors
    }
    return {
        "setting": seed.works[method].rate,
        "tried": {f"{factor:g}": round(value, 4) for factor, value in reached.items()},
        "chosen": max(reached, key=reached.__getitem__),
    }
