"""The main job in one command: text2grad beside other methods on a small task, and a report.

A preset of `compare`: SFT, critiques and a reward model, then PPO runs with the same prompts, rollouts,
optimizer steps and critic. What they share runs alone, the rest two at a time. The baselines have recipes:
`scalar` pays the verdict alone, with the discount and KL coefficient that suit it (both were tuned with the same
number of trials on other seeds, docs/LOG.md), `grpo` is for people who have no critic of words. The tiny model is
compared with the first; a pretrained one with both, and with itself untrained.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from text2grad.compare.figures import WAYS, scores_of
from text2grad.compare.methods import (
    BASE,
    METHODS,
    OURS,
    REWARD_MODEL,
    SHARED,
    Work,
    fitted,
    is_shared,
    measure_of,
    measuring,
    ppo_run,
    title_of,
)
from text2grad.compare.seeds import DONE, Seed, side_by_side
from text2grad.config import TINY, Config
from text2grad.eval.metrics import mean
from text2grad.page.report import build_report
from text2grad.page.runs import Sample, read_lines
from text2grad.page.terminal import results_table, reward_model_table, show_samples, show_table
from text2grad.stages.run.results import write_json

AT_ONCE = 2
"""Runs side by side, one thread each."""
RECIPES = {OURS: "", "grpo": "grpo", "scalar_ppo": "scalar"}
"""The PPO runs and their recipes; the longest, whose critiques are written, starts first."""
TITLES = {**METHODS, "scalar_ppo": METHODS["scalar"]}
RATES = ("good_precision", "good_recall", "poor_precision", "poor_recall", "unmatched", "unreadable")


def run_demo(config: Config, seeds: int) -> dict[str, Any]:
    """Run the main job once per seed and show the result; returns the figures of the summary.

    Raises:
        UserError: the task cannot be measured by tests or by references, or a command failed.
    """
    measure, works, root = measure_of(config), works_of_demo(config), config.run.folder
    numbers = range(config.run.seed, config.run.seed + seeds)
    folders = [root / f"seed-{number}" if seeds > 1 else root for number in numbers]
    each = [Seed(config, *place, works, live=True) for place in zip(numbers, folders, strict=True)]
    seconds = []
    for seed in each:
        started = time.perf_counter()
        shutil.rmtree(seed.folder / DONE, ignore_errors=True)  # a demo starts over
        side_by_side([seed], AT_ONCE)
        seconds.append(time.perf_counter() - started)
        _summarise([seed], measure, seconds[-1:])
    figures = _summarise(each, measure, seconds, root)
    page = build_report(root)
    _show(json.loads((root / "summary.json").read_text(encoding="utf-8")), each[0], page)
    return figures


def works_of_demo(config: Config) -> dict[str, Work]:
    """The commands of a seed: what methods share, on as many threads as are set; then the rest, on one each."""
    names = names_of(config)
    runs = {name: fitted(name, ppo_run(name, recipe), config) for name, recipe in RECIPES.items() if name in names}
    shared = {name: replace(SHARED[name], threads=config.run.threads) for name in ("sft", "annotate", REWARD_MODEL)}
    rest = {**runs, **{f"evaluate {name}": measuring(name) for name in names}}
    after = {name: (*work.after, REWARD_MODEL) for name, work in rest.items()}
    return shared | {name: replace(work, after=after[name], verdict_alone=True) for name, work in rest.items()}


def names_of(config: Config) -> list[str]:
    """The policies that are measured, in the order of the table."""
    tiny = config.policy.model == TINY
    return ["sft", "scalar_ppo", OURS] if tiny else [BASE, "sft", "scalar_ppo", "grpo", OURS]


def _summarise(
    seeds: Sequence[Seed], measure: str, seconds: Sequence[float], root: Path | None = None
) -> dict[str, Any]:
    """The figures of seeds, which `--json` prints, and `summary.json` made of them for the report."""
    config, names = seeds[0].config, names_of(seeds[0].config)
    measures = {name: [_reached(seed, name, measure) for seed in seeds] for name in names}
    figures = {name: {**_means(each, WAYS), "seeds": each} for name, each in measures.items()}
    rates = [json.loads((seed.folder / "evaluation" / "reward_model.json").read_bytes()) for seed in seeds]
    more = {
        "reward_model": _means(rates, RATES),
        "seconds": round(sum(seconds), 1),
        "peak_rss_mb": round(max(map(_peak_mb, seeds)), 1),
    }
    model = "" if config.policy.model == TINY else f" --model {config.policy.model}"
    repeated = f" --seeds {len(seeds)}" if len(seeds) > 1 else ""
    summary = {
        "title": f"text2grad demo: {config.task.name}",
        "metric": title_of(measure),
        "rows": [{"name": TITLES[name], **figures[name]} for name in names],
        **more,
        "seeds": [seed.number for seed in seeds],
        "command": f"text2grad demo{model}{repeated}",
    }
    write_json((root or seeds[0].folder) / "summary.json", summary)
    return {**figures, **more}


def _reached(seed: Seed, name: str, measure: str) -> dict[str, float]:
    scores = scores_of(seed, name, measure)
    return {way: mean(list(scores[way].values())) for way in WAYS}


def _means(rows: Sequence[Mapping[str, float]], keys: Sequence[str]) -> dict[str, float]:
    return {key: mean([row[key] for row in rows]) for key in keys}


def _peak_mb(seed: Seed) -> float:
    """An upper bound on the memory at any time: this process, and one command or two side by side."""
    peaks = {name: (seed.done(name) or {}).get("peak_mb", 0.0) for name in seed.works}
    beside = sorted(peak for name, peak in peaks.items() if not is_shared(name))[-AT_ONCE:]
    here: int = psutil.Process().memory_info().rss
    return float(here / 2**20 + max(sum(beside), *peaks.values()))


def _show(summary: Mapping[str, Any], seed: Seed, page: Path) -> None:
    console = Console(stderr=True)
    samples = read_lines(seed.folder / "ppo" / OURS / "samples.jsonl", Sample, [])
    last = max(sample.step for sample in samples)
    show_samples(console, [sample for sample in samples if sample.step == last], 5)
    show_table(console, results_table(summary))
    show_table(console, reward_model_table(summary["reward_model"]))
    console.print(f"report: {page}", soft_wrap=True, highlight=False)
