"""`train`: NL-gradient PPO against the configured critic."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from text2grad.config import Config, with_tiny_rates
from text2grad.critics.noise import NoisyCritic
from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep, ResumeMode, RunOptions
from text2grad.durable.state import seed_everything
from text2grad.feedback import Critic
from text2grad.policy.load import load_policy
from text2grad.stages.critics import critic_inputs, open_critic, refuse_unfit, runner_of
from text2grad.stages.folder import note_settings, prepare, processes, run_inputs, start_policy, task_of
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
            policy = load_policy(start_policy(config))
            seed_everything(config.run.seed)
            runner = stack.enter_context(runner_of(config))
            journal = folder / "ppo" / name / f"critic.{ranks.rank}.journal"
            critic = stack.enter_context(open_critic(config, config.critic.kind, task, runner, policy, journal))
            if ranks.first:
                for place in (folder, folder / "ppo" / name):
                    note_settings(config, place, begins=True)
        options = RunOptions(
            folder / "ppo" / name,
            name,
            config.run.seed,
            resume,
            run_inputs(config, config.policy, **critic_inputs(config)),
            ranks,
            noise_of(critic, ranks),
            config.run.loggers,
        )
        ppo = with_tiny_rates(config).ppo
        train_ppo(policy, examples, critic, ppo, config.credit, config.generation, options)
        if ranks.first:
            note_settings(config, folder / "ppo" / name)
    return TrainSummary(steps=config.ppo.steps, out=str(folder / "ppo" / name / "policy"))


def noise_of(critic: Critic, ranks: Ranks) -> OnStep | None:
    """What adds the noise of a step to its metrics, where the critic has some; all processes must call it."""
    if not isinstance(critic, NoisyCritic):
        return None
    return lambda step, metrics: metrics.update(ranks.all_reduce(critic.counts()))
