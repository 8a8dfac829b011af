"""The figures of a comparison: means, differences to text2grad, intervals, and costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from text2grad.errors import UserError
from text2grad.eval.metrics import mean_with_interval
from text2grad.page import signs
from text2grad.page.runs import read_metrics
from text2grad.stages.run_folder import SCORES, RunFolder, results_folder_name
from text2grad_lab.compare import times
from text2grad_lab.compare.methods import (
    BASE,
    METHODS,
    NOTHING,
    OURS,
    REFLECTION,
    SHARED,
    Methods,
    Work,
)
from text2grad_lab.compare.seeds import Seed

WAYS = ("greedy", "sampled")
BEST = "best_temperature"
"""Sampling at the best of `evaluate.temperatures`; absent if none are set."""
REFLECTED = "sft_reflect"
"""The name of the reflecting policy in results."""
MODELS = ("policy", "critic")
SPENT = ("rollouts", "optimizer_steps", "sampled_tokens", "critic_tokens")


def rows_of(methods: Methods, seeds: Sequence[Seed], measure: str) -> dict[str, dict[str, Any]]:
    """Return the figures of each method.

    They are the mean of the sampled measure with its interval, the values by seed, and the paired
    difference to text2grad; the same for greedy answers and for the best temperature; and the costs
    beyond shared work.
    """
    scores = {name: [scores_of(seed, name, measure) for seed in seeds] for name in methods}
    return {name: _row(name, scores, seeds) for name in methods}


def metrics_of(seed: Seed, method: str) -> list[dict[str, Any]]:
    """Return the metrics of the steps of a method's run; empty if it trains nothing."""
    folder = seed.folder / method if method in SHARED else seed.folder / "ppo" / method
    return read_metrics(folder / "metrics.jsonl")


def times_of(methods: Methods, seeds: Sequence[Seed]) -> dict[str, dict[str, float]]:
    """Return the seconds per step of PPO runs, by phase and relative to scalar PPO."""
    return times.seconds_a_step(
        {name: [row for seed in seeds for row in metrics_of(seed, name)] for name in methods}
    )


Scores = dict[str, dict[str, float]]
"""The mean measure by way to answer and problem."""


def scores_of(seed: Seed, method: str, measure: str) -> Scores:
    """Return the measure of a seed's policy on each problem.

    Raises:
        UserError: none of its answers has the measure.
    """
    policy = {BASE: Path(seed.config.policy.model).name, REFLECTION: REFLECTED}.get(method, method)
    file = seed.folder / "evaluation" / results_folder_name(seed.config.task) / f"{policy}{SCORES}"
    data: dict[str, dict[str, dict[str, float]]] = json.loads(file.read_text(encoding="utf-8"))
    ways = (way for way in (*WAYS, BEST) if way in data)
    scores = {way: {id: row[measure] for id, row in data[way].items() if measure in row} for way in ways}
    if without := [way for way, values in scores.items() if not values]:
        problem = f"no {without[0]} answer of {method} in {seed.folder.name} has the measure {measure!r}"
        raise UserError(problem, "return it for every answer from the task's scores(), or choose another --measure")
    return scores


def _row(name: str, scores: Mapping[str, Sequence[Scores]], seeds: Sequence[Seed]) -> dict[str, Any]:
    by_seed, text2grad_scores = scores[name], scores.get(OURS)
    row: dict[str, Any] = {}
    for way in (*WAYS, *([BEST] if all(BEST in seed_scores for seed_scores in by_seed) else [])):
        means = [fmean(seed_scores[way].values()) for seed_scores in by_seed]
        measure = mean_with_interval(over_problems(by_seed, way))
        row[way] = {"metric": fmean(means), "interval": [measure.low, measure.high], "seeds": means}
        if text2grad_scores and name != OURS:
            difference = mean_with_interval(over_problems(by_seed, way, text2grad_scores))
            row[way] |= {"difference": difference.mean, "difference_interval": [difference.low, difference.high]}
    return {**row.pop("sampled"), **row, **cost_of(name, seeds)}


def over_problems(by_seed: Sequence[Scores], way: str, other: Sequence[Scores] | None = None) -> list[float]:
    """Return the mean over seeds of each problem's measure, or of its difference to `other`."""
    values: dict[str, list[float]] = {}
    for number, scores in enumerate(by_seed):
        baseline = other[number][way] if other else dict.fromkeys(scores[way], 0.0)
        for problem in filter(baseline.__contains__, scores[way]):
            values.setdefault(problem, []).append(scores[way][problem] - baseline[problem])
    return [fmean(differences) for differences in values.values()]


def cost_of(name: str, seeds: Sequence[Seed]) -> dict[str, float]:
    """Return the mean costs of a method, and of the work that it shares.

    `SPENT` and `seconds` belong to the method alone, `shared_*` to shared work; `peak_mb` is the
    maximum over all commands.
    """
    works = seeds[0].with_prerequisites(f"evaluate {name}")
    results = [{key: seed.done(key) or {} for key in works} for seed in seeds]
    spent = [_spent(seed, name) for seed in seeds]

    def seconds(keys: Callable[[str], bool]) -> float:
        return round(fmean(sum(done[key].get("seconds", 0.0) for key in done if keys(key)) for done in results), 1)

    return {
        **{key: fmean(counts[key] for counts in spent) for key in SPENT},
        "shared_answers": fmean(_count_judged(seed, works) for seed in seeds),
        "seconds": seconds(lambda key: key == name or key == f"evaluate {REFLECTION}"),
        "shared_seconds": seconds(lambda key: key in SHARED and key != name),
        "peak_mb": max(done[key].get("peak_mb", 0.0) for done in results for key in done),
    }


def _spent(seed: Seed, method: str) -> Counter[str]:
    """Return `SPENT` of a method: during training, or for reflection, while answering."""
    if method == REFLECTION:
        results = RunFolder.of(seed.config).read_results(REFLECTED)
        tokens = {
            model: sum(results.get(f"{model}_{way}put_tokens", 0) for way in ("in", "out")) for model in MODELS
        }
        return Counter(sampled_tokens=tokens["policy"], critic_tokens=tokens["critic"])
    rows = metrics_of(seed, method)
    sampling = [row for row in rows if "response_length" in row]
    ppo = seed.settings(seed.works[method]).ppo if sampling else seed.config.ppo
    is_sdpo = bool(sampling) and seed.works[method].words[0] == "train-sdpo"  # one update of each batch
    updates = 1 if is_sdpo else ppo.epochs * ppo.mini_batches
    return Counter(
        rollouts=ppo.rollouts * len(sampling),
        optimizer_steps=updates * len(sampling) + len(rows) - len(sampling),
        sampled_tokens=sum(round(ppo.rollouts * row["response_length"]) for row in sampling),
        critic_tokens=sum(round(row.get("critic_tokens", 0)) for row in sampling),
    )


def _count_judged(seed: Seed, works: Mapping[str, Work]) -> int:
    """Count the answers that a critic judged before a method was trained."""
    files = {"annotate": "feedback.jsonl", "refine": "refined.jsonl"}
    return sum((seed.folder / file).read_bytes().count(b"\n") for work, file in files.items() if work in works)


def collapsed(methods: Methods, seeds: Sequence[Seed], measure: str) -> Iterator[str]:
    """Yield the runs that ended below the SFT policy of their seed (sampled answers)."""
    if "sft" not in methods:
        return
    for seed in seeds:
        start = fmean(scores_of(seed, "sft", measure)["sampled"].values())
        for name, work in methods.items():
            if work is not NOTHING and fmean(scores_of(seed, name, measure)["sampled"].values()) < start:
                yield f"{name} {seed.config.run.seed}"


def signs_of(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield warnings that text2grad is significantly below scalar PPO (`page.signs`)."""
    for name in (name for name in times.SCALAR if "difference" in rows.get(name, {})):
        yield from signs.scalar_warnings(
            OURS, METHODS[name], rows[name]["difference"], rows[name]["difference_interval"]
        )


COSTS = {
    "rollouts": "rollouts",
    "optimizer_steps": "optimizer steps",
    "sampled_tokens": "sampled tokens",
    "critic_tokens": "critic tokens",
    "seconds": "seconds",
    "peak_mb": "MB",
}
HEAD = ("method", "sampled", "95 %", "greedy", "best temperature", "difference to text2grad", *COSTS.values())


def cells_of(figures: Mapping[str, Any]) -> list[list[str]]:
    """Return the table under `HEAD`, a row per method."""
    return [_cells(METHODS.get(name, name), row) for name, row in figures["methods"].items()]


def _cells(title: str, row: Mapping[str, Any]) -> list[str]:
    difference = "–"
    if "difference" in row:
        difference = f"{row['difference']:+.3f} ({_range(row['difference_interval'], '+.3f')})"
    best = f"{row[BEST]['metric']:.3f}" if BEST in row else "–"
    measures = [f"{row['metric']:.3f}", _range(row["interval"]), f"{row['greedy']['metric']:.3f}", best]
    return [title, *measures, difference, *(f"{row[key]:,.0f}" for key in COSTS)]


def table_of(figures: Mapping[str, Any], metric: str, seeds: int) -> str:
    """Return the table as Markdown."""
    lines = [f"{metric}, {seeds} seed{'s' if seeds > 1 else ''}", "", _line(HEAD), _line(["---"] * len(HEAD))]
    lines += map(_line, cells_of(figures))
    if shares := {name: share for name, share in figures.get("rollout_shares", {}).items() if share is not None}:
        reached = ", ".join(f"{METHODS.get(name, name)} {share:.3f}" for name, share in shares.items())
        lines += ["", f"share of scalar PPO's rollouts needed to reach its last sampled measure: {reached}"]
    if rows := times.time_rows(figures.get("times", {}), METHODS):
        lines += ["", _line(times.HEAD), _line(["---"] * len(times.HEAD)), *map(_line, rows)]
    return "\n".join([*lines, *(f"\nwarning: {line}" for line in figures.get("signs", ()))]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _range(bounds: Sequence[float], form: str = ".3f") -> str:
    low, high = bounds
    return f"{low:{form}} to {high:{form}}"
