"""`train`: NL-gradient PPO against the configured critic."""

from __future__ import annotations

from typing import Any

from text2grad.config import Config, with_tiny_rates
from text2grad.critics.noise import NoisyCritic
from text2grad.feedback import Critic
from text2grad.policy.model import load_policy
from text2grad.stages.critics import critic_inputs, make_critic, runner_of
from text2grad.stages.folder import note_settings, prepare, resuming, start_policy, task_of
from text2grad.train.ppo import train_ppo
from text2grad.train.run import OnStep, ResumeMode, seed_everything


def run_train(config: Config, name: str, resume: ResumeMode = "auto") -> dict[str, Any]:
    """NL-gradient PPO against the critic; writes `ppo/<name>`, or goes on with it where it is unfinished."""
    folder = prepare(config)
    task = task_of(config)
    policy = load_policy(start_policy(config))
    seed_everything(config.run.seed)
    with runner_of(config) as runner:
        critic = make_critic(config, config.critic.kind, task, runner, policy)
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
            on_step=noise_of(critic),
            resume=resuming(config, resume, **critic_inputs(config)),
        )
    note_settings(config, folder / "ppo" / name)
    return {"steps": config.ppo.steps, "out": str(folder / "ppo" / name / "policy")}


def noise_of(critic: Critic) -> OnStep | None:
    """What adds the noise of a step to its metrics, where the critic has some."""
    if not isinstance(critic, NoisyCritic):
        return None
    return lambda step, metrics: metrics.update(critic.counts())
