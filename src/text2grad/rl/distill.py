"""A model as its own teacher: the same weights, shown what was wrong with an answer, read that answer again.

Student S is log pi(. | x, y_<t), teacher T is log pi(. | x, f, y_<t), f being the feedback. SDPO (Huebotter et al.
2026, arXiv 2601.20802) moves S towards T; RLSD (arXiv 2604.03128) has the verdict give the sign of each step, and T
its size. Pure functions over response-aligned tensors, see `text2grad.rl.advantage`; the teacher's are constants.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from text2grad.rl.advantage import at_least_float32, check_shapes

Direction = Literal["reverse", "forward"]

WHOLE = -1e-7
"""Log of the most mass that a support may hold, so that its tail has a logarithm."""


def gap(logp: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """A_t = log T(y_t) - log S(y_t), what the feedback says for a sampled token, (B, T); 0 outside the mask.

    A constant: positive where the teacher finds the token likelier than the student did (SDPO, section 3).
    """
    check_shapes(2, logp=logp, teacher=teacher, mask=mask)
    return torch.where(mask, at_least_float32(teacher) - at_least_float32(logp), 0).detach()


def bounded_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor, limit: float) -> Tensor:
    """min(pi / pi_old, limit) of the sampled tokens, a constant (B, T); 1 outside the mask."""
    check_shapes(2, logp=logp, old_logp=old_logp, mask=mask)
    change = torch.where(mask, at_least_float32(logp) - at_least_float32(old_logp), 0).detach()  # (B, T)
    return change.exp().clamp(max=limit)


def sampled_loss(logp: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """-A_t log S(y_t) with A_t of today's student, (B, T), 0 outside the mask.

    Its expected gradient under the student is that of KL(S || T): an estimate from the sampled token alone.
    """
    return -gap(logp, teacher, mask) * torch.where(mask, at_least_float32(logp), 0)


def with_tail(support: Tensor) -> Tensor:
    """Log-probabilities of K tokens and, last, of all others together, (..., K) -> (..., K + 1)."""
    support = at_least_float32(support)
    held = support.logsumexp(dim=-1, keepdim=True).clamp(max=WHOLE)
    return torch.cat([support, (-torch.expm1(held)).log()], dim=-1)


def divergence(student: Tensor, teacher: Tensor, mask: Tensor, direction: Direction = "reverse") -> Tensor:
    """KL between student and teacher over a support of K tokens and the tail, (B, T, K) twice -> (B, T).

    Both hold log-probabilities of the same tokens, those likeliest to the student; `mask` is (B, T), and the result
    0 outside it. `reverse` is KL(S || T), which takes mass from what the teacher does not say, `forward` is
    KL(T || S), which gives mass to what it says. Gradients reach the student alone.

    Raises:
        ValueError: wrong ranks or shapes, or no such direction.
    """
    check_shapes(3, student=student, teacher=teacher)
    check_shapes(2, mask=mask, support=student[..., 0])
    own, shown = with_tail(student), with_tail(teacher.detach())  # (B, T, K + 1) each
    if direction == "reverse":
        found = (own.exp() * (own - shown)).sum(-1)
    elif direction == "forward":
        found = (shown.exp() * (shown - own)).sum(-1)
    else:
        raise ValueError(f"direction is {direction!r}, expected reverse or forward")
    return torch.where(mask, found, 0)


def sized(advantages: Tensor, gaps: Tensor, mask: Tensor, clip: float) -> Tensor:
    """A_t clip(exp(sign(A_t) gap_t), 1 - eps, 1 + eps), (B, T), 0 outside the mask (RLSD).

    The verdict gives the sign; a token that the teacher would rather (of a good answer) or rather not (of a poor
    one) have said is moved further. A gap of 0 leaves the advantage as it is.
    """
    check_shapes(2, advantages=advantages, gaps=gaps, mask=mask)
    advantages = at_least_float32(advantages)
    sizes = (advantages.sign() * at_least_float32(gaps)).exp().clamp(1 - clip, 1 + clip)
    return torch.where(mask, advantages * sizes, 0)
