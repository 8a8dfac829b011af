"""Gradient steps on one rollout: epochs of mini-batches on the clipped objective (paper, Algorithm
4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from text2grad.policy.model import Policy, PolicyOutput
from text2grad.rl import advantage as adv
from text2grad.rl import loss as losses
from text2grad.train.optimizers import Optimizers, clip_gradient
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import Rollout, take_rows

CLIP, VALUE_CLIP, VALUE_COEFFICIENT = 0.2, 0.2, 0.1
"""Epsilon of the policy ratio, the most a value may move in one batch, and the weight of the value
loss (paper)."""
KL_HORIZON = 10_000
"""Responses over which the KL coefficient adapts."""


def update(
    policy: Policy,
    rollout: Rollout,
    optimizers: Optimizers,
    settings: PPOSettings,
    temperature: float,
    warming: bool,
    size: PassSize | None = None,
) -> dict[str, float]:
    """Epochs of mini-batches over one rollout; returns the mean terms of the loss, and fills
    `rollout.ratio`.

    While `warming`, only the value function learns.

    Raises:
        FloatingPointError: the gradient is not finite.
    """
    size = size or PassSize(settings.micro_batch_size)
    totals: dict[str, float] = {}
    updates = 0
    for _ in range(settings.epochs):
        rollout.ratio.zero_()
        shuffled = torch.randperm(len(rollout.learned), device=rollout.learned.device)  # the batch's rows
        for index in shuffled.tensor_split(settings.mini_batches):
            if not rollout.learned[index].any():
                continue  # all critiques of this mini-batch failed: no step
            terms = accumulate_gradient(policy, rollout, index, settings, temperature, warming, size)
            terms["grad_norm"] = apply_gradient(policy, optimizers, settings, warming)
            totals = {name: totals.get(name, 0.0) + value for name, value in terms.items()}
            updates += 1
    return {name: value / max(1, updates) for name, value in totals.items()}


def accumulate_gradient(
    policy: Policy,
    rollout: Rollout,
    index: Tensor,
    settings: PPOSettings,
    temperature: float,
    warming: bool,
    size: PassSize | None = None,
) -> dict[str, float]:
    """Add the gradient of one mini-batch, the responses `index`, to the policy's; the terms of its
    loss."""
    learned = rollout.learned[index]  # (b, T)
    # The denominator of the loss, over the whole mini-batch: the size of a pass changes nothing.
    tokens = float(learned.sum())
    # The rows of the mini-batch, short responses first.
    (by_length,) = rollout.batch.passes(index, len(index), grouped=policy.reader.shares)

    def terms(rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        part = take_rows(rollout, rows)
        columns = loss_terms(policy, part, settings, temperature, warming)
        rollout.ratio[rows, : part.batch.width] = columns.pop("ratio")
        shares = {name: losses.average(term, part.learned, "token", tokens) for name, term in columns.items()}
        value_share = VALUE_COEFFICIENT * settings.valued * shares["value_loss"]
        return value_share if warming else shares["policy_loss"] + value_share, shares

    return accumulate(policy, by_length, terms, size or PassSize(settings.micro_batch_size))


def loss_terms(
    policy: Callable[..., PolicyOutput],
    part: Rollout,
    settings: PPOSettings,
    temperature: float,
    warming: bool = False,
) -> dict[str, Tensor]:
    """The terms of the objective per token (B, T): policy and value, and what is recorded beside
    them.

    `policy` is a `Policy`, or reads a batch as one does.
    """
    output = policy(part.batch, temperature, fixed=warming, valued=settings.valued)
    logp = output.logp  # (B, T), under the weights as they are now
    policy_loss, clipped = losses.policy_loss(
        logp, part.old_logp, part.advantages, part.learned, CLIP, settings.clip_high
    )
    value_clip = math.inf if warming else VALUE_CLIP  # a new head is far from its returns
    ratio = (logp - part.old_logp).detach().exp()
    return {
        "policy_loss": policy_loss,
        "value_loss": losses.value_loss(output.values, part.values, part.returns, value_clip),
        "clip_fraction": clipped.float(),
        "ratio_change": (ratio - 1).abs(),
        "ratio": ratio,
    }


def apply_gradient(policy: Policy, optimizers: Optimizers, settings: PPOSettings, warming: bool) -> float:
    """Clip, step, clear; returns the norm before clipping. A gradient that is not finite changes
    nothing.

    Raises:
        FloatingPointError: the gradient is not finite.
    """
    trained = policy.value_parameters() if warming else policy.policy_parameters() + policy.value_parameters()
    norm = clip_gradient(trained)
    if not math.isfinite(norm):
        raise FloatingPointError("the gradient is not finite, no parameter was changed by it")
    optimizers.value.step()
    if not warming:
        optimizers.policy.step()
        optimizers.schedule.step()
    policy.zero_grad(set_to_none=True)
    return norm


def next_coefficient(coefficient: float, kl: float, settings: PPOSettings) -> float:
    """The adaptive controller (Ziegler et al. 2019) on the mean KL of a sequence; fixed without a
    target."""
    if settings.kl_target is None:
        return coefficient
    return adv.adaptive_kl(coefficient, kl, settings.kl_target, KL_HORIZON, settings.rollouts)
