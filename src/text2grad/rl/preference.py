"""Losses over pairs of answers, a chosen and a rejected one to the same prompt (paper, appendix N).

A scalar reward model and DPO minimise one loss, that of Bradley and Terry (1952): the first on the scores of a
model, the second on the rewards that a policy implies.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from text2grad.rl.advantage import at_least_float32, check_shapes


def implicit_rewards(log_ratio: Tensor, mask: Tensor, beta: float) -> Tensor:
    """beta (log pi(y | x) - log pi_ref(y | x)), (B,): the reward of each answer that a policy implies.

    Log-probabilities are summed over the tokens of an answer, not averaged (Rafailov et al. 2023, section 4).

    Args:
        log_ratio: (B, T) log pi - log pi_ref of each token (`advantage.kl_k1`); the reference has no gradient.
        mask: (B, T).
        beta: how near the policy stays to its reference.
    """
    check_shapes(2, log_ratio=log_ratio, mask=mask)
    return beta * torch.where(mask, at_least_float32(log_ratio), 0).sum(dim=-1)


def pair_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(r_c - r_r) of each pair, (N,): minus the log-probability of the choice (Bradley-Terry).

    With the scores of a reward model this is its loss (paper, appendix N); with `implicit_rewards`, that of DPO
    (Rafailov et al. 2023, equation 7).

    Args:
        chosen, rejected: (N,) rewards of the two answers.
    """
    check_shapes(1, chosen=chosen, rejected=rejected)
    return -logsigmoid(at_least_float32(chosen) - at_least_float32(rejected))


def pair_accuracy(chosen: Tensor, rejected: Tensor) -> Tensor:
    """1 where the chosen answer has the higher reward, 0 where the rejected one has, half where they are equal."""
    check_shapes(1, chosen=chosen, rejected=rejected)
    return (torch.sign(chosen - rejected) + 1) / 2
