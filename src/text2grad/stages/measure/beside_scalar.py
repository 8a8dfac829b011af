"""Runs on token rewards beside runs of scalar PPO that were measured on the same held-out prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from text2grad.config import Config, load_config
from text2grad.errors import UserError
from text2grad.eval.metrics import mean_with_interval
from text2grad.page import signs
from text2grad.stages.run.results import SCORES, main_measure, measured_on


def below_scalar(config: Config, name: str) -> Iterator[str]:
    """The signs (`page.signs`) that a run on token rewards is below scalar PPO, sampled, beyond chance; of the
    pairs of runs that `name` is one of."""
    place = config.run.folder / "evaluation" / measured_on(config)
    runs = [each.parent for each in sorted(config.run.folder.glob("ppo/*/config.yaml"))]
    kinds = {run.name: _kind(run) for run in runs if (place / f"{run.name}{SCORES}").is_file()}
    of_tokens, scalar = ([run for run, kind in kinds.items() if kind == one] for one in ("tokens", "scalar"))
    for own, other in product(of_tokens, scalar):
        apart = _apart(place, own, other) if name in (own, other) else []
        if apart:
            ahead, *interval = mean_with_interval(apart)
            yield from signs.scalar_warnings(own, other, ahead, interval)


def _kind(run: Path) -> str:
    """`tokens` or `scalar` of a run of PPO, by what it was paid for; "" of anything else."""
    metrics = run / "metrics.jsonl"
    with metrics.open(encoding="utf-8") if metrics.is_file() else (run / "config.yaml").open() as lines:
        if "delta_sum" not in next(lines, ""):
            return ""
    try:
        settings = load_config(run / "config.yaml")
    except UserError:  # of another version: no run of today to compare with
        return ""
    if not settings.credit.by_score:
        return "tokens"
    return "scalar" if settings.ppo.advantage != "group" else ""


def _apart(place: Path, own: str, other: str) -> list[float]:
    """How far the other one is ahead on each problem that both have answered, sampled, by the main measure."""
    ours, theirs = (
        json.loads((place / f"{run}{SCORES}").read_text(encoding="utf-8")).get("sampled", {})
        for run in (own, other)
    )
    both = [(ours[id], theirs[id]) for id in ours if id in theirs and ours[id].keys() & theirs[id].keys()]
    if not both:
        return []
    shared = [name for name in both[0][0] if name in both[0][1]]
    measure = main_measure({name: sum(max(h.get(name, 0), t.get(name, 0)) for h, t in both) for name in shared})
    return [there[measure] - here[measure] for here, there in both if measure in here and measure in there]
