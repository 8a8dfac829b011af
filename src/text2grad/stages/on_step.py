"""What `train` does beside each step: it changes nothing in the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from text2grad.config import Config
from text2grad.critics.noise import NoisyCritic
from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep, save_policy
from text2grad.durable.state import Randomness
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Critic
from text2grad.policy.model import Policy
from text2grad.policy.shard import assembled
from text2grad.sandbox import Runner
from text2grad.stages.evaluate import MAIN, evaluate_policy, measure_with
from text2grad.tasks.base import Task

WAYS = ("greedy", "sampled")


def on_step_of(*hooks: OnStep | None) -> OnStep | None:
    """One hook that calls those that there are, in their order."""
    known = [hook for hook in hooks if hook]

    def on_step(step: int, metrics: dict[str, float]) -> None:
        for hook in known:
            hook(step, metrics)

    return on_step if known else None


def noise_of(critic: Critic, ranks: Ranks) -> OnStep | None:
    """What adds the noise of a step to its metrics, where the critic has some; all processes must call it."""
    if not isinstance(critic, NoisyCritic):
        return None
    return lambda step, metrics: metrics.update(ranks.all_reduce(critic.counts()))


def kept_policies(config: Config, policy: Policy, folder: Path, ranks: Ranks) -> OnStep | None:
    """What writes the policy every `ppo.keep_every` steps: `folder/<its name>-step-<steps>`, which `evaluate` takes
    as any other policy. All processes must call it; the first writes."""
    every = config.ppo.keep_every
    if every is None:
        return None

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if (step + 1) % every == 0:
            whole = assembled(policy, keep=ranks.first)
            with ranks.barrier():
                if whole is not None:
                    save_policy(whole, folder / f"{folder.name}-step-{step + 1}")

    return on_step


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
