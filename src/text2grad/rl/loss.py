"""The losses of NL-gradient PPO (paper, section 3.5 and Algorithm 4), all of them minimised.

Pure functions over response-aligned (B, T) tensors, see `text2grad.rl.advantage`. The loss terms
come per token, so that the trainer can log and add them; `average` is the only place where tokens
are summed.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from text2grad.rl.advantage import at_least_float32, check_shapes


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip: float,
    clip_high: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate, negated: -min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps_high) A_t)
    (section 3.5).

    Args:
        logp, old_logp: (B, T) log-probabilities of the sampled tokens under pi_theta and
            pi_theta_old; rho_t = exp(logp - old_logp).
        advantages: (B, T), constants: no gradient flows into them.
        mask: (B, T).
        clip: eps; `inf` switches clipping off.
        clip_high: eps_high, with which a rare token may grow further than a likely one may shrink
            (DAPO, Yu et al. 2025, section 3.1); None: eps.

    Returns:
        the loss per token (B, T), 0 outside the mask, and a boolean (B, T): where clipping decided
        the loss and the gradient is 0 (its mean over the mask is the clip fraction).
    """
    check_shapes(2, logp=logp, old_logp=old_logp, advantages=advantages, mask=mask)
    log_ratio = torch.where(mask, at_least_float32(logp) - at_least_float32(old_logp), 0)
    ratio = log_ratio.exp()
    advantages = torch.where(mask, at_least_float32(advantages.detach()), 0)
    unclipped = -advantages * ratio
    high = clip if clip_high is None else clip_high
    clipped = -advantages * ratio.clamp(1 - clip, 1 + high)
    return torch.maximum(unclipped, clipped), (clipped > unclipped) & mask


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """0.5 * max((V - R)^2, (clip(V, V_old - eps, V_old + eps) - R)^2) per token, (B, T).

    Algorithm 4, line 24, with the value clipping of the published code; `returns` are constants.
    """
    check_shapes(2, values=values, old_values=old_values, returns=returns)
    values, old_values = at_least_float32(values), at_least_float32(old_values.detach())
    returns = at_least_float32(returns.detach())
    near = torch.clamp(values, old_values - clip, old_values + clip)
    return 0.5 * torch.maximum((values - returns).square(), (near - returns).square())


def entropy_term(entropy: Tensor, coefficient: float) -> Tensor:
    """What to add to the loss for the entropy H_t: -beta H, (B, T). Minimising it keeps the policy
    random.

    A negative beta gives +|beta| H, which follows from the paper's maximised objective L - beta H
    (section 3.5).
    """
    check_shapes(2, entropy=entropy)
    return -coefficient * at_least_float32(entropy)


def nl_gradient_loss(logp: Tensor, delta: Tensor, mask: Tensor) -> Tensor:
    """The scalar whose gradient is minus Definition 1: -1/B sum_b sum_t delta_t log pi(y_t | x,
    y_<t).

    (B, T) three times -> scalar; `delta` are constants. The sum runs over the tokens of a response,
    the mean over the B responses, so that a step downhill is a step along the mean NL-gradient.
    """
    check_shapes(2, logp=logp, delta=delta, mask=mask)
    logp = torch.where(mask, at_least_float32(logp), 0)
    return -(torch.where(mask, at_least_float32(delta.detach()), 0) * logp).sum() / logp.shape[0]


def average(per_token: Tensor, mask: Tensor, how: Literal["token", "sequence"], denominator: float) -> Tensor:
    """One micro-batch's share of the loss over the whole update batch, a scalar.

    Args:
        per_token: (B, T) losses of this micro-batch.
        mask: (B, T).
        how: `token`: every response token of the update batch weighs the same; `sequence`: every
            response does, and its tokens share that weight.
        denominator: response tokens (`token`) or responses (`sequence`) in the *whole* update
            batch, not in this micro-batch: then the shares of all micro-batches add up to the
            full-batch loss, and their gradients to its gradient, however the batch was cut.

    Raises:
        ValueError: unknown `how`, or a denominator that is not positive.
    """
    check_shapes(2, per_token=per_token, mask=mask)
    if not denominator > 0:
        raise ValueError(f"denominator is {denominator}, expected > 0: the update batch has no tokens to learn")
    kept = torch.where(mask, at_least_float32(per_token), 0)
    if how == "token":
        return kept.sum() / denominator
    if how == "sequence":
        return (kept.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / denominator
    raise ValueError(f"loss average is {how!r}, expected token or sequence")
