"""Labels of the units of an answer, its steps or tokens: the loss of a unit model, and what it decides."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from text2grad.rl.advantage import at_least_float32


def unit_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-log p(label) of each unit, (N,): cross-entropy over poor, neither and good.

    Args:
        logits: (N, 3), of the labels -1, 0 and 1, in this order.
        labels: (N,), of -1, 0 and 1.

    Raises:
        ValueError: other shapes.
    """
    if logits.shape != (*labels.shape, 3) or labels.dim() != 1:
        raise ValueError(
            f"logits are {tuple(logits.shape)} for labels {tuple(labels.shape)}, expected (N, 3), (N,)"
        )
    return cross_entropy(at_least_float32(logits), labels.long() + 1, reduction="none")


def unit_labels(logits: Tensor, neutral: bool) -> Tensor:
    """The likeliest label of each unit, (N,) of -1, 0 and 1; without `neutral` the likelier of -1 and 1.

    Of equal ones the better.
    """
    poor, neither, good = logits.unbind(dim=-1)
    best = torch.where(good >= poor, 1, -1)
    return torch.where((neither > torch.maximum(good, poor)) & neutral, 0, best)
