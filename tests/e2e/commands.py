"""How the tests of the command line speak to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TOY = (
    *("--task.name", "toy_task:ToyTask", "--run.threads", "1"),
    *("--tiny.vocabulary", "320", "--generation.max_new_tokens", "24"),
    *("--sft.epochs", "250", "--sft.batch_size", "16", "--sft.lr", "1e-2"),
    *("--ppo.steps", "2", "--ppo.rollouts", "8", "--ppo.value_warmup", "0", "--ppo.max_failed", "1"),
    *("--reward_model.training.epochs", "4", "--reward_model.max_new_tokens", "24"),
    *("--evaluate.limit", "3", "--evaluate.samples", "2", "--annotate.samples_per_prompt", "2"),
    *("--critic.reward_model.gate", "false"),
)
"""Overrides of the `demo` preset: a smaller model on a smaller task, too small for its reward model
to be fit."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and what it said."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]
