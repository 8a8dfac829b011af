"""What `train` measures beside a step: held-out prompts, the critic's noise, and probes of the critic."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import torch

from text2grad.config import Config
from text2grad.critics.probes import Probe, ProbedCritic, hacking, probe_of
from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep
from text2grad.durable.state import same_randomness
from text2grad.errors import UsageError, UserError
from text2grad.eval.measures import measure_with
from text2grad.feedback import Critic
from text2grad.policy.model import Policy
from text2grad.sandbox import Runner
from text2grad.stages.measure.evaluate import evaluate_policy
from text2grad.stages.run.results import MAIN
from text2grad.tasks.base import Task

WAYS = ("greedy", "sampled")


def counts_of(critic: Critic, ranks: Ranks) -> OnStep | None:
    """Add to the metrics of a step what the critic counted since the last one, where it has a method `counts`.

    All processes must call it.
    """
    counts = getattr(critic, "counts", None)
    return (lambda step, metrics: metrics.update(ranks.all_reduce(counts()))) if counts else None


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
        started = time.perf_counter()
        with same_randomness():
            figures = evaluate_policy(policy, heldout, config, measure).summary.figures
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


def probes_of(critic: Critic, every: int, ranks: Ranks) -> OnStep | None:
    """What probes the critic every so many steps, adds what it finds to the metrics, and names reward hacking once.

    All processes must call it. What a probe draws at random, training does not notice. Later probes are compared
    with the first one since the run was started or resumed.
    """
    if not isinstance(critic, ProbedCritic):
        return None
    probes: list[Probe] = []
    named: list[str] = []

    def look(step: int, metrics: dict[str, float]) -> None:
        if step % every:
            return
        with torch.random.fork_rng(range(torch.cuda.device_count())), ranks.barrier():
            sums = critic.probe(step)
        now = probe_of(step, metrics["delta_sum"], ranks.all_reduce(sums))
        found = {"probe_spoiled": now.spoiled_praised, "probe_likeness": now.likeness}
        metrics.update({name: value for name, value in found.items() if value is not None})
        probes.append(now)
        if (words := hacking(probes[0], now)) and not named and ranks.first:
            print(f"{words} (text2grad sample shows answers; raise ppo.kl_coefficient, or stop)", file=sys.stderr)
            named.append(words)

    return look
