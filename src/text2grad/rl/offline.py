"""The loss of learning from logged answers: weighted likelihood, and an unlikelihood that is
bounded.

Pure functions over response-aligned (B, T) tensors, see `text2grad.rl.advantage`. The answers were
not sampled by the policy in training, so there is no ratio to an old policy to correct by, and none
is wanted: what the critic said of a token holds whoever wrote it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from text2grad.rl.advantage import at_least_float32, check_shapes

NEARLY_ONE = 1 - 1e-6
"""Factor on a probability whose complement is taken: a poor token of which the policy is sure costs
13.8 nats, times its weight and factor.
"""


def offline_loss(logp: Tensor, start_logp: Tensor, weights: Tensor, mask: Tensor, limit: float) -> Tensor:
    """-w log pi of good tokens (w > 0), and -|w| (1 - pi_0) / pi_0 log(1 - pi) of poor ones (w <
    0), per token.

    The first has the gradient of Definition 1 for delta > 0. Its mirror image, |w| log pi, falls
    without end: the gradient by the token's own logit, 1 - pi, is largest where the token is ruled
    out already. Unlikelihood (Welleck et al. 2020, equation 4) is bounded and has the gradient pi
    there; but then it pushes hardest the tokens of which the policy is sure, and most of a poor
    span is made of those: what should stand in their place nobody says, and the push spreads over
    the vocabulary. With the factor (1 - pi_0) / pi_0 the gradient by log pi is |w| times the odds
    of the token over those at the start: at the start exactly that of Definition 1, and falling
    with the token.

    Args:
        logp, start_logp: (B, T) log-probabilities of the logged tokens under the policy pi, and
            under the policy pi_0 that it started from, a constant.
        weights: (B, T), constants: one number per token, of any sign; 0 is in no loss.
        mask: (B, T).
        limit: of the factor. A token that was rare at the start and is not any more cannot outweigh
            all others.

    Returns:
        the loss (B, T), 0 outside the mask.

    Raises:
        ValueError: shapes that differ, or a limit that is not positive.
    """
    check_shapes(2, logp=logp, start_logp=start_logp, weights=weights, mask=mask)
    if not limit > 0:
        raise ValueError(f"limit is {limit}, expected > 0")
    logp = torch.where(mask, at_least_float32(logp), 0)
    start = torch.where(mask, at_least_float32(start_logp.detach()), 0)
    weights = torch.where(mask, at_least_float32(weights.detach()), 0)
    factor = (-start).expm1().clamp(max=limit)
    unlikelihood = -torch.log1p(-NEARLY_ONE * logp.exp())
    return weights.clamp(min=0) * -logp + weights.clamp(max=0).abs() * factor * unlikelihood
