"""Compute the loss of learning from logged answers.

Pure functions over response-aligned (B, T) tensors, as in `text2grad.rl.advantage`. The policy in
training did not sample the answers. There is no importance ratio: a critic's judgement of a token
holds for any author.
"""

from __future__ import annotations

import torch
from torch import Tensor

from text2grad.rl.advantage import at_least_float32, check_shapes

NEARLY_ONE = 1 - 1e-6
"""Factor on pi in log(1 - pi): a poor token with pi = 1 has a loss of 13.8 nats, not infinity."""


def offline_loss(logp: Tensor, start_logp: Tensor, weights: Tensor, mask: Tensor, limit: float) -> Tensor:
    """Return the weighted loss of each logged token, (B, T), 0 outside the mask.

    Good tokens (w > 0): -w log pi. Poor tokens (w < 0): -|w| (1 - pi_0) / pi_0 log(1 - pi).

    The good term has the gradient of Definition 1 for delta > 0. Its mirror image for poor tokens,
    |w| log pi, has no minimum: its gradient by the token's logit, 1 - pi, is largest for tokens
    that are already ruled out. Unlikelihood, -log(1 - pi) (Welleck et al. 2020, equation 4), is
    bounded and its gradient vanishes with pi. But it pushes tokens with pi near 1 hardest, and most
    tokens of a poor span are such: right in their place, with no better alternative, so that their
    mass spreads over the vocabulary. The factor (1 - pi_0) / pi_0 corrects this. The gradient by
    log pi is then |w| times the odds of pi over the odds of pi_0: equal to Definition 1 at the
    start, and falling with pi.

    Args:
        logp: (B, T) log-probabilities of the logged tokens under the policy pi.
        start_logp: (B, T), the same under pi_0, the policy before training; no gradient.
        weights: (B, T), w, of any sign; 0 leaves a token out. No gradient.
        mask: (B, T).
        limit: largest value of the factor, so that tokens with a small pi_0 cannot outweigh all
            others.

    Raises:
        ValueError: the shapes differ, or `limit` is not positive.
    """
    check_shapes(2, logp=logp, start_logp=start_logp, weights=weights, mask=mask)
    if not limit > 0:
        raise ValueError(f"limit is {limit}, expected > 0")
    logp = torch.where(mask, at_least_float32(logp), 0)
    start = torch.where(mask, at_least_float32(start_logp.detach()), 0)
    weights = torch.where(mask, at_least_float32(weights.detach()), 0)
    # (1 - pi_0) / pi_0 = exp(-log pi_0) - 1; expm1 is exact for pi_0 near 1, log1p for a small pi.
    factor = (-start).expm1().clamp(max=limit)
    unlikelihood = -torch.log1p(-NEARLY_ONE * logp.exp())
    return weights.clamp(min=0) * -logp + weights.clamp(max=0).abs() * factor * unlikelihood
