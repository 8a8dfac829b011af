"""Gradient steps on one rollout: epochs of mini-batches on the clipped objective (paper, Algorithm 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from text2grad.policy.model import Policy
from text2grad.policy.shard import whole
from text2grad.rl import advantage as adv
from text2grad.rl import loss as losses
from text2grad.train.guard import PassSize, refuse_float16
from text2grad.train.ranks import ALONE, Ranks
from text2grad.train.rollout import Rollout, take_rows
from text2grad.train.run import learning_rate_factor
from text2grad.train.settings import PPOSettings


@dataclass
class Optimizers:
    """One for the policy (with the shared trunk), one for what belongs to the value function alone."""

    policy: torch.optim.Optimizer
    value: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LambdaLR


def make_optimizers(policy: Policy, settings: PPOSettings) -> Optimizers:
    """AdamW for both; the value function may have a learning rate of its own.

    Raises:
        UserError: the policy is in float16.
    """
    refuse_float16(policy.parameters())
    decay = settings.weight_decay
    trunk = torch.optim.AdamW(policy.policy_parameters(), lr=settings.lr, weight_decay=decay, fused=True)
    head = torch.optim.AdamW(
        policy.value_parameters(), lr=settings.value_lr or settings.lr, weight_decay=decay, fused=True
    )
    updates = max(1, settings.steps - settings.warmup_steps) * settings.epochs * settings.mini_batches
    factor = learning_rate_factor(settings.schedule, 0.0, updates)
    return Optimizers(trunk, head, torch.optim.lr_scheduler.LambdaLR(trunk, factor))


def update(
    policy: Policy,
    rollout: Rollout,
    optimizers: Optimizers,
    settings: PPOSettings,
    temperature: float,
    warming: bool,
    ranks: Ranks = ALONE,
    size: PassSize | None = None,
) -> dict[str, float]:
    """Epochs of mini-batches over one rollout. While `warming`, only the value function learns."""
    totals: dict[str, float] = {}
    updates = 0
    for _ in range(settings.epochs):
        device = rollout.learned.device
        shuffled = ranks.of_first(torch.randperm(len(rollout.learned), device=device).cpu()).to(device)
        for index in shuffled.tensor_split(settings.mini_batches):
            if not rollout.learned[index].any():
                continue
            terms = accumulate_gradient(policy, rollout, index, settings, temperature, warming, ranks, size)
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
    ranks: Ranks = ALONE,
    size: PassSize | None = None,
) -> dict[str, float]:
    """Gradient of one mini-batch, in passes of `size` (`micro_batch_size`) responses of similar length.

    The denominators are those of the whole mini-batch, so that neither the size of a pass nor the number of
    processes changes anything. All processes make as many passes; one that has run out of rows counts for nothing.
    """
    learned = rollout.learned[index]
    tokens = float(learned.sum())
    weight = tokens if settings.loss_average == "token" else float(learned.any(dim=1).sum())
    (by_length,) = rollout.batch.passes(index, len(index))
    mine = by_length[ranks.rank :: ranks.count]  # all lengths in every process

    def passes(rows_each: int) -> dict[str, float]:
        totals: dict[str, float] = {}
        for number in range(ranks.passes(len(index), rows_each)):
            rows = mine[number * rows_each : (number + 1) * rows_each]
            counted = 1.0 if len(rows) else 0.0
            part = take_rows(rollout, rows if counted else by_length[:1])
            terms = loss_terms(policy, part, settings, temperature, warming)
            shares = {
                name: counted * losses.average(term, part.learned, settings.loss_average, weight)
                for name, term in terms.items()
            }
            value_share = settings.value_weight * shares["value_loss"]
            loss = value_share if warming else shares["policy_loss"] + shares["entropy_loss"] + value_share
            loss.backward()  # type: ignore[no-untyped-call]
            totals = {n: totals.get(n, 0.0) + float(share.detach()) for n, share in shares.items()}
        return totals

    size = size or PassSize(settings.micro_batch_size)
    with ranks.passing():
        totals = size.fitting(passes, undo=partial(policy.zero_grad, set_to_none=True))
    ranks.sum_gradients(policy.parameters())
    return ranks.total(totals)


def loss_terms(
    policy: Policy, part: Rollout, settings: PPOSettings, temperature: float, warming: bool = False
) -> dict[str, Tensor]:
    """The terms of the objective per token (B, T): policy, entropy and value, and what is logged beside them."""
    output = policy(part.batch, temperature, entropy=settings.entropy_coefficient > 0, fixed=warming)
    logp = output.logp
    policy_loss, clipped = losses.policy_loss(logp, part.old_logp, part.advantages, part.learned, settings.clip)
    entropy_loss = torch.zeros_like(policy_loss)
    value_clip = math.inf if warming else settings.value_clip  # a new head is far from its returns
    if output.entropy is not None:
        entropy_loss = losses.entropy_term(output.entropy, settings.entropy_coefficient, settings.entropy_sign)
    return {
        "policy_loss": policy_loss,
        "entropy_loss": entropy_loss,
        "value_loss": losses.value_loss(output.values, part.values, part.returns, value_clip),
        "clip_fraction": clipped.float(),
        "ratio_change": ((logp - part.old_logp).detach().exp() - 1).abs(),
    }


def apply_gradient(policy: Policy, optimizers: Optimizers, settings: PPOSettings, warming: bool) -> float:
    """Clip, step, clear; returns the norm before clipping. A gradient that is not a number changes nothing.

    Raises:
        FloatingPointError: the gradient is not a number.
    """
    trained = policy.value_parameters() if warming else policy.policy_parameters() + policy.value_parameters()
    norm = float(whole(torch.nn.utils.clip_grad_norm_(trained, settings.max_grad_norm)))
    if not math.isfinite(norm):
        raise FloatingPointError("the gradient is not a number, no parameter was changed by it")
    optimizers.value.step()
    if not warming:
        optimizers.policy.step()
        optimizers.schedule.step()
    policy.zero_grad(set_to_none=True)
    return norm


def next_coefficient(coefficient: float, kl: float, settings: PPOSettings) -> float:
    """The adaptive controller (Ziegler et al. 2019) on the mean KL of a sequence; fixed without a target."""
    if settings.kl_target is None:
        return coefficient
    return adv.adaptive_kl(coefficient, kl, settings.kl_target, settings.kl_horizon, settings.rollouts)
