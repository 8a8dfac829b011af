"""`train`: NL-gradient PPO against the configured critic."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from text2grad.config import Config, with_tiny_rates
from text2grad.critics.noise import NoisyCritic
from text2grad.critics.probes import Probe, ProbedCritic, hacking, probe_of
from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep, ResumeMode, RunOptions
from text2grad.durable.state import seed_everything
from text2grad.feedback import Critic
from text2grad.policy.load import load_policy
from text2grad.stages.critics import critic_inputs, open_critic, refuse_unfit, runner_of
from text2grad.stages.folder import note_settings, prepare, processes, run_inputs, start_policy, task_of
from text2grad.stages.gate import refuse_unfit_reward_model
from text2grad.stages.settle import facts_of_prompts, settled
from text2grad.stages.summary import Summary
from text2grad.train.ppo import train_ppo


@dataclass(frozen=True, kw_only=True)
class TrainSummary(Summary):
    """Steps that were trained, the policy's folder, and the processes where another program started them."""

    steps: int
    out: str
    workers: int | None = None


def run_train(config: Config, name: str, resume: ResumeMode = "auto") -> TrainSummary:
    """NL-gradient PPO against the critic; writes `ppo/<name>`, or resumes an unfinished one."""
    with processes(config) as ranks, ExitStack() as stack:
        with ranks.barrier():
            folder = prepare(config)
            task = task_of(config)
            examples = task.examples("train")
            refuse_unfit(config.critic.kind, examples)
            refuse_unfit_reward_model(config, tell=ranks.first)
            policy = load_policy(start_policy(config))
        place, data = folder / "ppo" / name, facts_of_prompts(policy, examples[: config.ppo.prompts])
        config = settled(config, "ppo", place, policy, data, resume, ranks)
        with ranks.barrier():
            seed_everything(config.run.seed)
            runner = stack.enter_context(runner_of(config))
            journal = place / f"critic.{ranks.rank}.journal"
            opened = stack.enter_context(open_critic(config, config.critic.kind, task, runner, policy, journal))
            probed = config.critic.kind == "reward_model" and config.ppo.probe_every and not ranks.sharded
            critic = ProbedCritic(opened, config.run.seed) if probed else opened
            if ranks.first:
                for each in (folder, place):
                    note_settings(config, each, begins=True)
        options = RunOptions(
            place,
            name,
            config.run.seed,
            resume,
            run_inputs(config, config.policy, **critic_inputs(config)),
            ranks,
            beside(noise_of(opened, ranks), probes_of(critic, config.ppo.probe_every, ranks)),
        )
        ppo = with_tiny_rates(config).ppo
        train_ppo(policy, examples, critic, ppo, config.credit, config.generation, options)
        if ranks.first:
            note_settings(config, place)
    return TrainSummary(steps=config.ppo.steps, out=str(place / "policy"))


def beside(*each: OnStep | None) -> OnStep | None:
    """All of these after a step, in their order."""
    wanted = [one for one in each if one]

    def call(step: int, metrics: dict[str, float]) -> None:
        for one in wanted:
            one(step, metrics)

    return call if wanted else None


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


def noise_of(critic: Critic, ranks: Ranks) -> OnStep | None:
    """What adds the noise of a step to its metrics, where the critic has some; all processes must call it."""
    if not isinstance(critic, NoisyCritic):
        return None
    return lambda step, metrics: metrics.update(ranks.all_reduce(critic.counts()))
