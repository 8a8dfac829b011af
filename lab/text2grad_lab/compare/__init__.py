"""Several methods on one task, from the same feedback: shared work once per seed, then each method,
then one table.

Stages run as commands of their own with one thread, several at once. What has succeeded is noted
with a digest of its settings, so that the same command resumes where it was stopped. Figures are on
held-out problems; the differences to text2grad are paired by seed and problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from text2grad.config import Config, dump_config
from text2grad.demo import measure_of, title_of
from text2grad.stages.run_folder import write_atomically, write_json
from text2grad_lab.compare.curves import curves_of, drawn, rollout_shares
from text2grad_lab.compare.figures import collapsed, rows_of, signs_of, table_of, times_of
from text2grad_lab.compare.methods import Methods, methods_of, works_of
from text2grad_lab.compare.seeds import Seed, side_by_side
from text2grad_lab.compare.tuning import Extent, tuned, tuning_seeds

SETTINGS = "compare.yaml"
"""The settings of a comparison, in its folder."""


def run_compare(
    config: Config, names: Sequence[str], extent: Extent, at_once: int, wanted: str | None = None
) -> dict[str, Any]:
    """Run what is missing, and write and return the figures: `compare.json`, `compare.md`.

    With more than one factor in `extent` every method first chooses its learning rate
    (`compare.tuning`). `wanted` names the measure, where it is not the task's main one. The
    settings are written to `compare.yaml`.

    Raises:
        UsageError: an unknown method, or one that cannot be run here; a measure that the task does
            not have.
        UserError: the task cannot be measured, or a command failed; what had succeeded is not done
            again.
    """
    methods, measure = methods_of(names, config), measure_of(config, wanted)
    root = config.run.folder
    write_atomically(root / SETTINGS, dump_config(config, only_set=True))
    factors = tuned(config, methods, extent, measure, at_once)
    seeds = seeds_of(config, methods, extent.seeds, factors)
    side_by_side(seeds, at_once)
    figures: dict[str, Any] = {
        "methods": rows_of(methods, seeds, measure),
        "collapsed": list(collapsed(methods, seeds, measure)),
        "rates": factors,
        "curves": curves_of(methods, seeds, measure),
        "times": times_of(methods, seeds),
    }
    figures["signs"] = list(signs_of(figures["methods"]))
    if "sft" in methods and figures["curves"]:
        starts = figures["methods"]["sft"]["seeds"]
        figures["rollout_shares"] = rollout_shares(figures["curves"], starts)
        write_atomically(root / "curves.svg", drawn(figures["curves"], starts, title_of(measure)))
    write_json(root / "compare.json", figures)
    write_atomically(root / "compare.md", table_of(figures, title_of(measure), len(seeds)))
    return figures


def seeds_of(
    config: Config, methods: Methods, numbers: Sequence[int], factors: Mapping[str, float] | None = None
) -> list[Seed]:
    """The seeds of the table, each with all its works."""
    works = works_of(methods, factors)
    return [Seed(config, number, config.run.folder / f"seed-{number}", works) for number in numbers]


def plan_of(config: Config, names: Sequence[str], extent: Extent) -> dict[str, Any]:
    """Return the work that a comparison has left.

    `works`: for each kind how many are left, and the mean seconds of those that have ended (null:
    none). `rollouts`: those of all runs of PPO.
    """
    methods = methods_of(names, config)
    seeds = [*seeds_of(config, methods, extent.seeds), *tuning_seeds(config, methods, extent)]
    works = {name: work for seed in seeds for name, work in seed.works.items()}
    rows = {}
    for name in works:
        notes = [seed.done(name) for seed in seeds if name in seed.works]
        seconds = [note["seconds"] for note in notes if note]
        rows[name] = {"left": notes.count(None), "seconds": round(fmean(seconds), 1) if seconds else None}
    runs = sum(work.trains_by_sampling for seed in seeds for work in seed.works.values())
    return {"works": rows, "rollouts": runs * config.ppo.steps * config.ppo.rollouts}
