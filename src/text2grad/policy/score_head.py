"""The head of a scalar reward model: one number for a whole answer (paper, appendix N)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEP = 0.1
"""About what one AdamW step may add to a score: the learning rate of the linear map is this over its width."""


class ScoreHead(nn.Module):
    """A linear map from the state of an answer's last token to its score. Starts at zero, so all answers are equal.

    A constant added to all scores changes no preference, so there is none to learn.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.map = nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.map.weight)

    def forward(self, states: Tensor) -> Tensor:
        """(B, H) -> (B,), in float32 whatever the trunk's type."""
        score: Tensor = self.map(states.float()).squeeze(-1)
        return score

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW for this head alone, at its own learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=STEP / self.map.in_features, weight_decay=0.0)
