"""Make the optimizers and learning-rate schedules of the training loops.

A parameter in half precision has a float32 master: the master is stepped, then copied into the
parameter. A step smaller than half the distance to the next half-precision number would otherwise
be lost, as nearly all steps are at a learning rate of 1e-6.
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
"""Largest norm of a step's gradient, as in the paper."""


@dataclass
class Optimizers:
    """The optimizer of the policy with the shared trunk, and that of the value function alone."""

    policy: torch.optim.Optimizer
    value: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR


def make_optimizers(policy: Policy, settings: PPOSettings) -> Optimizers:
    """Make AdamW optimizers; the value function may have its own learning rate.

    Raises:
        UserError: the policy is in float16.
    """
    refuse_float16(policy)
    trunk = torch.optim.AdamW(policy.policy_parameters(), lr=settings.lr, weight_decay=0.0, fused=True)
    head = torch.optim.AdamW(
        policy.value_parameters(), lr=settings.value_lr or settings.lr, weight_decay=0.0, fused=True
    )
    for optimizer in (trunk, head):
        add_master_weights(optimizer, policy)
    # An upper bound: a mini-batch whose loss mask is empty makes no step.
    updates = max(1, settings.steps - settings.warmup_steps) * settings.epochs * settings.mini_batches
    factor = learning_rate_factor(settings.schedule, 0.0, updates)
    return Optimizers(trunk, head, torch.optim.lr_scheduler.LambdaLR(trunk, factor))


def add_master_weights(optimizer: torch.optim.Optimizer, policy: Policy) -> None:
    """Make a new optimizer step float32 copies of the policy's half-precision parameters.

    Around each step, gradients are copied to the masters and results back to the parameters.
    `policy.exact` has values that half precision had to round; masters start from these. Without
    half-precision parameters nothing changes.
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

    def copy_gradients(*_: Any) -> None:
        for half, master in pairs:
            master.grad = None if half.grad is None else half.grad.float()
            half.grad = None  # memory for one of the two gradients at a time

    @torch.no_grad()
    def copy_weights(*_: Any) -> None:
        for half, master in pairs:
            half.copy_(master)
            master.grad = None

    if pairs:
        optimizer.register_step_pre_hook(copy_gradients)
        optimizer.register_step_post_hook(copy_weights)


def refuse_float16(policy: Policy) -> None:
    """Raise a `UserError` if a parameter of the policy is float16."""
    if any(parameter.dtype == torch.float16 for parameter in policy.parameters()):
        raise UserError(
            "float16 cannot be trained: without loss scaling, small gradients become 0",
            "--policy.dtype bfloat16",
        )


def clip_gradient(parameters: Iterable[torch.nn.Parameter]) -> float:
    """Scale the gradient to a norm of at most `MAX_GRAD_NORM`; return the norm before."""
    return float(torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM))


def learning_rate_factor(schedule: Schedule, warmup: float, steps: int) -> Callable[[int], float]:
    """Return a function from step to the factor on the learning rate.

    Linear warm-up over the share `warmup` of the steps, then constant, or linear or cosine decay
    to 0.
    """
    rising = max(1, round(steps * warmup)) if warmup else 0

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)  # above 0, so that no batch is wasted
        done = (step - rising) / max(1, steps - rising)
        if schedule == "constant":
            return 1.0
        return max(0.0, 1 - done) if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return factor
