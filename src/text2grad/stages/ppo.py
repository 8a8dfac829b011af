"""`train`: NL-gradient PPO against the configured critic."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from text2grad.config import Config, with_tiny_rates
from text2grad.critics.noise import NoisyCritic
from text2grad.feedback import Critic
from text2grad.policy.model import load_policy
from text2grad.stages.critics import critic_inputs, open_critic, runner_of
from text2grad.stages.folder import note_settings, prepare, processes, resuming, start_policy, task_of
from text2grad.train.ppo import train_ppo
from text2grad.train.ranks import Ranks
from text2grad.train.run import OnStep, ResumeMode, seed_everything


def run_train(config: Config, name: str, resume: ResumeMode = "auto") -> dict[str, Any]:
    """NL-gradient PPO against the critic; writes `ppo/<name>`, or goes on with it where it is unfinished."""
    with processes(config) as ranks, ExitStack() as stack:
        with ranks.agreeing():
            folder = prepare(config)
            task = task_of(config)
            policy = load_policy(start_policy(config))
            seed_everything(config.run.seed)
            runner = stack.enter_context(runner_of(config))
            journal = folder / "ppo" / name / f"critic.{ranks.rank}.journal"
            critic = stack.enter_context(open_critic(config, config.critic.kind, task, runner, policy, journal))
            if ranks.first:
                for place in (folder, folder / "ppo" / name):
                    note_settings(config, place, begins=True)
        train_ppo(
            policy,
            task.examples("train"),
            critic,
            with_tiny_rates(config).ppo,
            config.credit,
            config.generation,
            folder / "ppo" / name,
            config.run.seed,
            name,
            on_step=noise_of(critic, ranks),
            resume=resuming(config, resume, config.policy, **critic_inputs(config)),
            ranks=ranks,
        )
        if ranks.first:
            note_settings(config, folder / "ppo" / name)
    return {"steps": config.ppo.steps, "out": str(folder / "ppo" / name / "policy")}


def noise_of(critic: Critic, ranks: Ranks) -> OnStep | None:
    """What adds the noise of a step to its metrics, where the critic has some; all processes meet there."""
    if not isinstance(critic, NoisyCritic):
        return None
    return lambda step, metrics: metrics.update(ranks.total(critic.counts()))
