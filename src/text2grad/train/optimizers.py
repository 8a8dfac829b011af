"""Optimizers and learning-rate schedules of both training loops.

A parameter in a half type has a float32 master: the master is stepped, then copied into the
parameter. Otherwise a step smaller than half the distance to the next number of the half type would
be lost, as nearly all are at a learning rate of 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from text2grad.durable.settings import Schedule
from text2grad.errors import UserError
from text2grad.policy.model import Policy
from text2grad.train.ppo_settings import PPOSettings

MAX_GRAD_NORM = 1.0
"""The largest norm of a step's gradient, as in the paper."""


@dataclass
class Optimizers:
    """One for the policy (with the shared trunk), one for what belongs to the value function
    alone."""

    policy: torch.optim.Optimizer
    value: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR


def make_optimizers(policy: Policy, settings: PPOSettings) -> Optimizers:
    """AdamW for both; the value function may have a learning rate of its own.

    Raises:
        UserError: the policy is in float16.
    """
    refuse_float16(policy)
    trunk = torch.optim.AdamW(policy.policy_parameters(), lr=settings.lr, weight_decay=0.0, fused=True)
    head = torch.optim.AdamW(
        policy.value_parameters(), lr=settings.value_lr or settings.lr, weight_decay=0.0, fused=True
    )
    for optimizer in (trunk, head):
        keep_masters(optimizer, policy)
    # At most so many: a mini-batch without learned tokens makes no step.
    updates = max(1, settings.steps - settings.warmup_steps) * settings.epochs * settings.mini_batches
    factor = learning_rate_factor(settings.schedule, 0.0, updates)
    return Optimizers(trunk, head, torch.optim.lr_scheduler.LambdaLR(trunk, factor))


def keep_masters(optimizer: torch.optim.Optimizer, policy: Policy) -> None:
    """Have a new optimizer step float32 copies of the parameters of `policy` that are in a half
    type.

    Gradients are taken from the parameters and results copied back, around each step.
    `policy.exact` has the values that the half type had to round. Nothing changes where all
    parameters are float32.
    """
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
    for group in optimizer.param_groups:
        for index, half in enumerate(group["params"]):
            if half.dtype in (torch.bfloat16, torch.float16):
                exact = policy.exact.pop(names[id(half)], None)
                start = half.detach().float() if exact is None else exact.to(half.device)
                group["params"][index] = master = nn.Parameter(start)
                pairs.append((half, master))

    def take_gradients(*_: Any) -> None:
        for half, master in pairs:
            master.grad = None if half.grad is None else half.grad.float()
            half.grad = None  # one of the two at a time

    @torch.no_grad()
    def give_back(*_: Any) -> None:
        for half, master in pairs:
            half.copy_(master)
            master.grad = None

    if pairs:
        optimizer.register_step_pre_hook(take_gradients)
        optimizer.register_step_post_hook(give_back)


def refuse_float16(policy: Policy) -> None:
    """Raises UserError: the policy is in float16."""
    if any(parameter.dtype == torch.float16 for parameter in policy.parameters()):
        raise UserError(
            "float16 cannot be trained here: without loss scaling small gradients become 0",
            "--policy.dtype bfloat16",
        )


def clip_gradient(parameters: Iterable[torch.nn.Parameter], limit: float = MAX_GRAD_NORM) -> float:
    """Scale the gradient to a norm of at most `limit`; returns its norm before."""
    return float(torch.nn.utils.clip_grad_norm_(parameters, limit))


def learning_rate_factor(schedule: Schedule, warmup: float, steps: int) -> Callable[[int], float]:
    """Factor on the learning rate at a step: linear warm-up, then constant, linear or cosine decay
    to zero."""
    rising = max(1, round(steps * warmup)) if warmup else 0

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        done = (step - rising) / max(1, steps - rising)
        if schedule == "constant":
            return 1.0
        return max(0.0, 1 - done) if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return factor
