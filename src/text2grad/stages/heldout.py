"""The held-out curve of a run: its policy measured every few steps while it trains, which changes nothing in it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from text2grad.config import Config
from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep
from text2grad.durable.state import Randomness
from text2grad.errors import UsageError, UserError
from text2grad.policy.model import Policy
from text2grad.sandbox import Runner
from text2grad.stages.evaluate import MAIN, evaluate_policy, measure_with
from text2grad.tasks.base import Task

WAYS = ("greedy", "sampled")


def heldout_curve(config: Config, task: Task, policy: Policy, runner: Runner, ranks: Ranks) -> OnStep | None:
    """What adds `heldout_greedy_*` and `heldout_sampled_*` to the metrics every `ppo.heldout_every` steps and after
    the last: of the task's main measure, as `evaluate` tells it. All processes must call it; the first measures.

    Raises:
        UsageError: the weights are split over processes. UserError: there are no held-out prompts.
    """
    every = config.ppo.heldout_every
    if every is None:
        return None
    if ranks.sharded:
        raise UsageError(
            "ppo.heldout_every needs whole weights in each process", "run.parallel ddp, or leave it out"
        )
    heldout = task.examples("heldout")[: config.evaluate.limit]
    if not heldout:
        raise UserError(
            "no held-out prompts to measure on", "raise task.heldout_share, or leave out ppo.heldout_every"
        )
    measure = measure_with(task, runner)

    def measured() -> dict[str, float]:
        before, started = Randomness.now(), time.perf_counter()
        figures = evaluate_policy(policy, heldout, config, measure).summary.figures
        Randomness.restore(before.tensors(), before.numbers())
        return {**_main(figures), "seconds_heldout": time.perf_counter() - started}

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if (step + 1) % every == 0 or step + 1 == config.ppo.steps:
            with ranks.barrier():
                found = measured() if ranks.first else {}
            metrics.update(ranks.broadcast(found))

    return on_step


def _main(figures: Mapping[str, float]) -> dict[str, float]:
    """The main measure of each way to answer."""
    name = next((each for each in MAIN if f"greedy_{each}" in figures), None)
    names = [f"{way}_{name}" for way in WAYS] if name else [each for each in figures if each.startswith(WAYS)]
    return {f"heldout_{each}": figures[each] for each in names}
