"""Compute the losses of NL-gradient PPO (paper, section 3.5 and Algorithm 4); all are minimised.

Pure functions over response-aligned (B, T) tensors, as in `text2grad.rl.advantage`. Loss terms are
per token, so that the trainer can log and add them; `average` is the only place that sums tokens.
"""

from __future__ import annotations

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
    """Return the negated clipped surrogate per token, and where clipping was active.

    -min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps_high) A_t) with rho_t = exp(logp - old_logp)
    (paper, section 3.5).

    Args:
        logp: (B, T) log-probabilities of the sampled tokens under pi_theta.
        old_logp: (B, T), the same under pi_theta_old, which sampled the tokens.
        advantages: (B, T); no gradient flows into them.
        mask: (B, T).
        clip: eps; `inf` switches clipping off.
        clip_high: eps_high, None for eps. A larger one lets rare tokens grow further than likely
            tokens may shrink (DAPO, Yu et al. 2025, section 3.1).

    Returns:
        The loss per token (B, T), 0 outside the mask, and a boolean (B, T) that is True where the
        clipped term was chosen and the gradient is 0. Its mean is the clip fraction.
    """
    check_shapes(2, logp=logp, old_logp=old_logp, advantages=advantages, mask=mask)
    # Masked before exp: padding may hold any number, and exp of a large one is infinite.
    log_ratio = torch.where(mask, at_least_float32(logp) - at_least_float32(old_logp), 0)
    ratio = log_ratio.exp()
    advantages = torch.where(mask, at_least_float32(advantages.detach()), 0)
    unclipped = -advantages * ratio
    high = clip if clip_high is None else clip_high
    clipped = -advantages * ratio.clamp(1 - clip, 1 + high)
    # The larger loss is the smaller surrogate, a lower bound on the gain (Schulman et al. 2017,
    # equation 7). A token that has moved far enough in its direction has no gradient left; one that
    # moved the wrong way always has.
    return torch.maximum(unclipped, clipped), (clipped > unclipped) & mask


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Return 0.5 * max((V - R)^2, (clip(V, V_old - eps, V_old + eps) - R)^2) per token, (B, T).

    Algorithm 4, line 24, with the value clipping of the published code. No gradient flows into
    `returns`.
    """
    check_shapes(2, values=values, old_values=old_values, returns=returns)
    values, old_values = at_least_float32(values), at_least_float32(old_values.detach())
    returns = at_least_float32(returns.detach())
    clipped_values = torch.clamp(values, old_values - clip, old_values + clip)
    # Once V has moved eps towards R, the clipped error is the larger one, and constant: V stops.
    return 0.5 * torch.maximum((values - returns).square(), (clipped_values - returns).square())


def entropy_term(entropy: Tensor, coefficient: float) -> Tensor:
    """Return the entropy bonus -beta H_t, (B, T), to be added to the loss.

    Minimising it keeps the policy random. A negative beta gives +|beta| H, which the paper's
    maximised objective L - beta H amounts to (section 3.5).
    """
    check_shapes(2, entropy=entropy)
    return -coefficient * at_least_float32(entropy)


def nl_gradient_loss(logp: Tensor, delta: Tensor, mask: Tensor) -> Tensor:
    """Return -1/B sum_b sum_t delta_t log pi(y_t | x, y_<t), whose gradient is minus Definition 1.

    Three times (B, T) -> scalar; no gradient flows into `delta`. Tokens of a response are summed
    and the B responses averaged, so a step downhill is a step along the mean NL-gradient.
    """
    check_shapes(2, logp=logp, delta=delta, mask=mask)
    logp = torch.where(mask, at_least_float32(logp), 0)
    return -(torch.where(mask, at_least_float32(delta.detach()), 0) * logp).sum() / logp.shape[0]


def average(per_token: Tensor, mask: Tensor, denominator: float) -> Tensor:
    """Return one micro-batch's share of the token mean of an update batch, a scalar.

    Every token of the update batch has the same weight. The shares of all micro-batches add up to
    the loss of the update batch, and their gradients to its gradient, for any division into
    micro-batches.

    Args:
        per_token: (B, T) losses of this micro-batch.
        mask: (B, T).
        denominator: tokens in the whole update batch, not in this micro-batch.

    Raises:
        ValueError: the denominator is not positive.
    """
    check_shapes(2, per_token=per_token, mask=mask)
    if not denominator > 0:
        raise ValueError(f"denominator is {denominator}, expected > 0: the update batch has no tokens to learn")
    masked = torch.where(mask, at_least_float32(per_token), 0)
    return masked.sum() / denominator
