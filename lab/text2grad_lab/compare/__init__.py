"""Compare methods on one task with the same feedback.

Shared work is done once per seed, then each method runs. Stages run as separate single-threaded
commands, several in parallel. Each success is recorded with a digest of its settings, so that the
same command resumes where it stopped. Figures are on held-out problems; differences to text2grad
are paired by seed and problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from text2grad.config import Config, dump_config
from text2grad.demo import measure_of, title_of
from text2grad.stages.run_folder import write_atomically, write_json
from text2grad_lab.compare.curves import curves_of, draw_curves, rollout_shares
from text2grad_lab.compare.figures import collapsed, rows_of, signs_of, table_of, times_of
from text2grad_lab.compare.methods import Methods, methods_of, works_of
from text2grad_lab.compare.seeds import Seed, run_parallel
from text2grad_lab.compare.tuning import Extent, tune_rates, tuning_seeds

SETTINGS = "compare.yaml"
"""The settings of a comparison, in its folder."""


def run_compare(
    config: Config, names: Sequence[str], extent: Extent, at_once: int, measure_name: str | None = None
) -> dict[str, Any]:
    """Run missing work, and write and return the figures (`compare.json`, `compare.md`).

    With several factors in `extent`, the learning rate of every method is tuned first
    (`compare.tuning`). The settings are written to `compare.yaml`.

    Args:
        config: the configuration that all methods share.
        names: the methods (see `methods_of`).
        extent: the seeds and the factors on learning rates.
        at_once: the number of parallel commands.
        measure_name: the measure to compare by; None: the task's main one.

    Raises:
        UsageError: a method is unknown or not applicable, or the task lacks the measure.
        UserError: the task has no measure, or a command failed; finished work is not repeated.
    """
    methods, measure = methods_of(names, config), measure_of(config, measure_name)
    root = config.run.folder
    write_atomically(root / SETTINGS, dump_config(config, only_set=True))
    factors = tune_rates(config, methods, extent, measure, at_once)
    seeds = seeds_of(config, methods, extent.seeds, factors)
    run_parallel(seeds, at_once)
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
        write_atomically(root / "curves.svg", draw_curves(figures["curves"], starts, title_of(measure)))
    write_json(root / "compare.json", figures)
    write_atomically(root / "compare.md", table_of(figures, title_of(measure), len(seeds)))
    return figures


def seeds_of(
    config: Config, methods: Methods, numbers: Sequence[int], factors: Mapping[str, float] | None = None
) -> list[Seed]:
    """Return the reported seeds, each with all its works."""
    works = works_of(methods, factors)
    return [Seed(config, number, config.run.folder / f"seed-{number}", works) for number in numbers]


def plan_of(config: Config, names: Sequence[str], extent: Extent) -> dict[str, Any]:
    """Return the remaining work of a comparison.

    `works` has the number of remaining commands and the mean seconds of finished ones (null: none)
    by kind; `rollouts` is the total of all PPO runs.
    """
    methods = methods_of(names, config)
    seeds = [*seeds_of(config, methods, extent.seeds), *tuning_seeds(config, methods, extent)]
    works = {name: work for seed in seeds for name, work in seed.works.items()}
    rows = {}
    for name in works:
        results = [seed.done(name) for seed in seeds if name in seed.works]
        seconds = [result["seconds"] for result in results if result]
        rows[name] = {"left": results.count(None), "seconds": round(fmean(seconds), 1) if seconds else None}
    runs = sum(work.trains_by_sampling for seed in seeds for work in seed.works.values())
    return {"works": rows, "rollouts": runs * config.ppo.steps * config.ppo.rollouts}
