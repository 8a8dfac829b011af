"""What `train` does beside each step: it changes nothing in the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from text2grad.config import Config
from text2grad.critics.probes import Probe, ProbedCritic, hacking, probe_of
from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep, save_policy
from text2grad.durable.state import Randomness
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Critic
from text2grad.policy.model import Policy
from text2grad.policy.shard import assembled
from text2grad.sandbox import Runner
from text2grad.stages.evaluate import evaluate_policy, measure_with
from text2grad.stages.results import MAIN
from text2grad.tasks.base import Task

WAYS = ("greedy", "sampled")
LEAST_ENTROPY = 0.05
"""Nats a token below which a policy whose answers to a prompt are all the same will hardly ever write another."""
LENGTHS_APART, MOST_CORRELATION = 2.0, 0.8
"""How many times as long or short answers are, and how well their length tells their reward, before it is said."""


def on_step_of(*hooks: OnStep | None) -> OnStep | None:
    """One hook that calls those that there are, in their order."""
    known = [hook for hook in hooks if hook]

    def on_step(step: int, metrics: dict[str, float]) -> None:
        for hook in known:
            hook(step, metrics)

    return on_step if known else None


def counts_of(critic: Critic, ranks: Ranks) -> OnStep | None:
    """Add to the metrics of a step what the critic counted since the last one, where it has a method `counts`.

    All processes must call it.
    """
    counts = getattr(critic, "counts", None)
    return (lambda step, metrics: metrics.update(ranks.all_reduce(counts()))) if counts else None


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


def length_watched(ranks: Ranks) -> OnStep:
    """What says once that a run learns how long to answer; compared with the first step since it was started or
    resumed."""
    first: list[float] = []
    named: list[str] = []

    def look(step: int, metrics: dict[str, float]) -> None:
        if not first:
            first.append(metrics["response_length"])
        words = learns_length(first[0], metrics["response_length"], metrics["reward_length_correlation"])
        if words and not named and ranks.first:
            cure = "credit.scheme spans with credit.weighting span or balanced pays no more for more words"
            print(f"{words} ({cure}; or raise ppo.kl_coefficient, or stop)", file=sys.stderr)
            named.append(words)

    return look


def variety_watched(config: Config, ranks: Ranks) -> OnStep | None:
    """What looks at the answers of the first step: where those to a prompt are all the same, nothing is compared.

    A teacher, which judges each token, needs no comparison.

    Raises:
        UserError: they are the same because the policy is sure of every token, so that no step would change it.
    """
    if config.ppo.teacher.kind != "none":
        return None

    def look(step: int, metrics: dict[str, float]) -> None:
        words = says_one_thing(metrics, config.ppo.samples_per_prompt) if step == 0 else ""
        if words and metrics["entropy"] < LEAST_ENTROPY:
            cure = "text2grad sft --restart --sft.least_loss 0.3 ends earlier, or keep the policy that there is"
            raise UserError(f"{words}: there is nothing to compare, and training would change nothing", cure)
        if words and ranks.first:
            print(f"{words}: there is little to compare (--generation.temperature)", file=sys.stderr)

    return look


def says_one_thing(metrics: Mapping[str, float], answers: int) -> str:
    """That all answers to each prompt of a step are the same, or, with one to each, that the policy is sure of it.

    Empty where neither is so.
    """
    entropy = f"entropy {metrics['entropy']:.3f} nats a token"
    if "same_answers" not in metrics:
        sure = metrics["entropy"] < LEAST_ENTROPY / 5
        return f"the policy has one answer to each prompt ({entropy})" if sure else ""
    same = metrics["same_answers"] == 1
    return f"all {answers} answers to each prompt are the same ({entropy})" if same else ""


def learns_length(before: float, now: float, correlation: float) -> str:
    """That the mean length of answers, in tokens, went to where the reward is, and hardly anything else pays; empty
    where it did not. `correlation` is that of the summed token rewards with the length, -1 to 1."""
    shorter = correlation <= -MOST_CORRELATION and now * LENGTHS_APART <= before
    longer = correlation >= MOST_CORRELATION and now >= before * LENGTHS_APART
    if not shorter and not longer:
        return ""
    return (
        f"answers went from {before:.0f} to {now:.0f} tokens, and their reward is their length: r {correlation:.2f}"
    )
