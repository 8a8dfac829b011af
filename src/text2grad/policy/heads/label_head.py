"""A head that labels tokens good, poor or neither: all of a unit model, and a second loss for the reward model.

A unit model (`policy.heads.units`) reads it off the last layer and is saved with it. The reward model reads the
label of every response token off a layer below the last.

Most of z can be guessed from the question: a small model learns to write the lines it expects and hardly looks at
those that are there. This loss asks of each token of the response whether it is good, poor or neither, so that the
layers above find what z needs. The linear map that answers exists only during training and is not saved with the
model. Ours, not the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

UNLABELLED = -100
"""The label of a token that is not asked about."""
DEPTH = 0.75
"""The layer that is read, as a share of all: the layers above it can use what it knows."""
POOR = 3.0
"""Weight of a poor token in the loss: they are the rare class."""
STEP = 2.0
"""About what one AdamW step may add to a logit: the learning rate of the linear map is this over its width."""
STEP_OF_UNITS = 0.1
"""The same of a unit model's head, which is all that it says."""


class LabelHead(nn.Module):
    """(n, H) hidden states of any size -> (n, 3) logits of poor, neither and good, in float32. Starts at zero."""

    def __init__(self, hidden: int, step: float = STEP) -> None:
        super().__init__()
        self.step = step
        self.map = nn.Linear(hidden, 3)
        nn.init.zeros_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, states: Tensor) -> Tensor:
        states = states.float()
        states = states * torch.rsqrt(states.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        logits: Tensor = self.map(states)
        return logits

    def loss(self, layers: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Sum over the labelled tokens of -log p(label), a poor one counting `POOR` times.

        Args:
            layers: (B, L, H) of the embeddings and of each layer.
            labels: (B, L), +1, -1, 0 or `UNLABELLED`.
        """
        asked = labels != UNLABELLED
        logits = self(layers[int(DEPTH * (len(layers) - 1))][asked])
        classes = logits.new_tensor([POOR, 1.0, 1.0])
        return nn.functional.cross_entropy(logits, labels[asked] + 1, classes, reduction="sum")

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW for this head alone, at its own learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=self.step / self.map.in_features, weight_decay=0.0)
