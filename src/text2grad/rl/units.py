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


def unit_labels(logits: Tensor, neutral: bool, poor_threshold: float | None = None) -> Tensor:
    """The likeliest label of each unit, (N,) of -1, 0 and 1; without `neutral` the likelier of -1 and 1.

    Of equal ones the better. With a threshold a unit is poor from this probability on, whatever is likelier. Where
    the best F1 that can be had is F, the threshold that has it is F / 2 (Lipton, Elkan and Naryanaswamy 2014).
    """
    poor, neither, good = at_least_float32(logits).unbind(dim=-1)  # (N,) each
    rest = torch.where((neither > good) & neutral, 0, 1)
    if poor_threshold is None:
        return torch.where(poor > (torch.maximum(neither, good) if neutral else good), -1, rest)
    others = torch.logaddexp(neither, good) if neutral else good
    return torch.where((poor - others).sigmoid() >= poor_threshold, -1, rest)
