"""Take the gradient steps on one rollout: epochs of mini-batches (paper, Algorithm 4)."""

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
"""Epsilon of the ratio, largest change of a value per batch, weight of the value loss (paper)."""
KL_HORIZON = 10_000
"""Number of responses over which the KL coefficient adapts."""


def update(
    policy: Policy,
    rollout: Rollout,
    optimizers: Optimizers,
    settings: PPOSettings,
    temperature: float,
    warming: bool,
    size: PassSize | None = None,
) -> dict[str, float]:
    """Make epochs of mini-batches over one rollout; return the mean loss terms.

    Fills `rollout.ratio`. While `warming`, only the value function learns.

    Raises:
        FloatingPointError: the gradient is not finite.
    """
    size = size or PassSize(settings.micro_batch_size)
    totals: dict[str, float] = {}
    updates = 0
    # First optimizer step: pi = pi_old, the plain policy gradient. Later steps use samples of an
    # older policy; the ratio corrects for that, and its clipping bounds how far they go.
    for _ in range(settings.epochs):
        rollout.ratio.zero_()
        shuffled = torch.randperm(len(rollout.loss_mask), device=rollout.loss_mask.device)  # (B,)
        for index in shuffled.tensor_split(settings.mini_batches):
            if not rollout.loss_mask[index].any():
                continue  # for example, all critiques of this mini-batch failed
            terms = accumulate_gradient(policy, rollout, index, settings, temperature, warming, size)
            terms["grad_norm"] = apply_gradient(policy, optimizers, warming)
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
    """Add the gradient of the rows `index` (b,) to the policy's; return the loss terms."""
    # One denominator for the whole mini-batch, so the size of a pass does not change the gradient.
    tokens = float(rollout.loss_mask[index].sum())
    # The rows of the mini-batch, short responses first: the rows of a pass need little padding.
    (by_length,) = rollout.batch.passes(index, len(index), grouped=policy.reader.shares_prompts)

    def terms(rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        part = take_rows(rollout, rows)
        columns = loss_terms(policy, part, settings, temperature, warming)
        rollout.ratio[rows, : part.batch.width] = columns.pop("ratio")
        shares = {name: losses.average(term, part.loss_mask, tokens) for name, term in columns.items()}
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
    """Return the loss terms per token, (B, T) each: policy loss, value loss, and diagnostics.

    `policy` is a `Policy`, or a function with the same arguments and results.
    """
    # fixed: while warming, V is fitted to the returns of a policy that does not change.
    output = policy(part.batch, temperature, fixed=warming, valued=settings.valued)
    logp = output.logp  # (B, T), under the present weights
    policy_loss, clipped = losses.policy_loss(
        logp, part.old_logp, part.advantages, part.loss_mask, CLIP, settings.clip_high
    )
    value_clip = math.inf if warming else VALUE_CLIP  # a new head starts far from the returns
    ratio = (logp - part.old_logp).detach().exp()  # logged only
    return {
        "policy_loss": policy_loss,
        "value_loss": losses.value_loss(output.values, part.values, part.returns, value_clip),
        "clip_fraction": clipped.float(),
        "ratio_change": (ratio - 1).abs(),
        "ratio": ratio,
    }


def apply_gradient(policy: Policy, optimizers: Optimizers, warming: bool) -> float:
    """Clip the gradient, step, and clear; return the norm before clipping.

    Raises:
        FloatingPointError: the gradient is not finite; no parameter was changed.
    """
    trained = policy.value_parameters() if warming else policy.policy_parameters() + policy.value_parameters()
    # One norm over both: a large gradient of V also scales down that of the policy.
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
    """Return the next KL coefficient; fixed without `kl_target`.

    The adaptive controller is that of Ziegler et al. 2019. `kl` is the mean KL of a response,
    summed over its tokens.
    """
    if settings.kl_target is None:
        return coefficient
    return adv.adaptive_kl(coefficient, kl, settings.kl_target, KL_HORIZON, settings.rollouts)
