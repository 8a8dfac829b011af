"""Several methods on one task, from the same feedback: shared work once per seed, then each method, then one table.

Stages run as commands of their own with one thread, several at once. What has succeeded is noted with a digest of
its settings, so that the same command resumes where it was stopped. Figures are on held-out problems; the
differences to text2grad are paired by seed and problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from text2grad.config import Config, dump_config
from text2grad.demo import measure_of, title_of
from text2grad.stages.run_folder import write_json, write_whole
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

    With more than one factor in `extent` every method first chooses its learning rate (`compare.tuning`). `wanted`
    names the measure, where it is not the task's main one. The settings are written to `compare.yaml`.

    Raises:
        UsageError: an unknown method, or one that cannot be run here; a measure that the task does not have.
        UserError: the task cannot be measured, or a command failed; what had succeeded is not done again.
    """
    methods, measure = methods_of(names, config), measure_of(config, wanted)
    root = config.run.folder
    write_whole(root / SETTINGS, dump_config(config, only_set=True))
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
        write_whole(root / "curves.svg", drawn(figures["curves"], starts, title_of(measure)))
    write_json(root / "compare.json", figures)
    write_whole(root / "compare.md", table_of(figures, title_of(measure), len(seeds)))
    return figures


def seeds_of(
    config: Config, methods: Methods, numbers: Sequence[int], factors: Mapping[str, float] | None = None
) -> list[Seed]:
    """The seeds of the table, each with all its works."""
    works = works_of(methods, factors)
    return [Seed(config, number, config.run.folder / f"seed-{number}", works) for number in numbers]


def plan_of(config: Config, names: Sequence[str], extent: Extent, at_once: int) -> dict[str, Any]:
    """The work that a comparison has left.

    `works`: for each kind how many are left, and the mean seconds of those that have ended (null: none).
    `seconds`: the time left, divided by how many run at once; a kind that never ran counts like others of its sort
    (a run of PPO like those of other methods, ...). Null while there is a sort of which nothing has run.
    """
    methods = methods_of(names, config)
    each = [*seeds_of(config, methods, extent.seeds), *tuning_seeds(config, methods, extent)]
    works = {name: work for seed in each for name, work in seed.works.items()}
    notes = {name: [seed.done(name) for seed in each if name in seed.works] for name in works}
    seconds = {name: [note["seconds"] for note in notes_of_work if note] for name, notes_of_work in notes.items()}
    alike: dict[tuple[str, bool], list[float]] = {}
    for name, work in works.items():
        alike.setdefault(work.sort, []).extend(seconds[name])
    known = all(alike[work.sort] for name, work in works.items() if None in notes[name])
    left = [fmean(seconds[name] or alike[works[name].sort]) * notes[name].count(None) for name in works if known]
    rows = {
        name: {
            "left": notes[name].count(None),
            "seconds": round(fmean(seconds[name]), 1) if seconds[name] else None,
        }
        for name in works
    }
    runs = sum(work.trains_by_sampling for seed in each for work in seed.works.values())
    return {
        "works": rows,
        "rollouts": runs * config.ppo.steps * config.ppo.rollouts,
        "seconds": sum(left) / at_once if known else None,
    }
