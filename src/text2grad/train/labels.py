"""A second loss for the reward model: the label of every response token, read off a layer below the last.

Most of z can be guessed from the question: a small model learns to write the lines it expects, and hardly looks at
those that are there. This loss asks at each token of the response whether it is good, poor or neither, so that what
z needs is known where later layers find it. Nothing is added to the model: the three answers are three directions
of its own hidden states, fixed and always the same. Ours, not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

UNLABELLED = -100
"""The label of a token that is not asked about."""
DEPTH = 0.75
"""The layer that is read, as a share of all: above it there must be layers that can use what it knows."""


@dataclass(frozen=True)
class LabelLoss:
    """The loss and what it counts: `weight` beside the loss of z, a poor token `poor_weight` times in it."""

    weight: float
    poor_weight: float = 1.0

    def sum_over(self, layers: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        """Sum over the labelled tokens of -log p(label).

        Args:
            layers: (B, L, H) of the embeddings and of each layer.
            labels: (B, L), +1, -1, 0 or `UNLABELLED`.
        """
        asked = labels != UNLABELLED
        states = layers[int(DEPTH * (len(layers) - 1))][asked].float()
        states = states * torch.rsqrt(states.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        logits = states @ directions(states.shape[-1]).to(states.device).T
        weights = logits.new_tensor([self.poor_weight, 1.0, 1.0])
        return torch.nn.functional.cross_entropy(logits, labels[asked] + 1, weights, reduction="sum")

    def identity(self) -> dict[str, str]:
        """What a run that uses it depends on."""
        return {"reward_model.label_weight": str(self.weight), "reward_model.poor_weight": str(self.poor_weight)}


@lru_cache(maxsize=4)
def directions(width: int) -> Tensor:
    """(3, width): orthonormal directions of poor, neither and good."""
    chance = torch.Generator().manual_seed(0)
    found: Tensor = torch.linalg.qr(torch.randn(width, 3, generator=chance)).Q.T
    return found
