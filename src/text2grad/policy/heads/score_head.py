"""A head that reads one number for a whole answer: all of a scalar reward model, the verdict of one that writes z.

A scalar model (paper, appendix N) has only this, learned from preferences, read after the answer. A reward model
with `reward_model.verdict: head` learns it beside z from the annotator's scores (Critique-out-Loud, Ankner et al.
2024), and is read before z: behind it, training would show the spans of the annotator, and use those of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

STEP = 0.1
"""About what one AdamW step may add to a score: the learning rate of the linear map is this over its width."""
STEP_OF_VERDICTS = 0.3
"""The same of a reward model's head: on 200 critiques .1 learns too little in 100 steps, 1 learns them by heart."""


class ScoreHead(nn.Module):
    """A linear map from a state of the trunk to a score of any size. Starts at zero, so all answers are equal.

    A constant added to all scores changes no preference, so there is none to learn. As a verdict, in [-1, 1], a
    score x is tanh(x / 2) = 2 sigmoid(x) - 1.
    """

    def __init__(self, hidden: int, step: float = STEP) -> None:
        super().__init__()
        self.step = step
        self.map = nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.map.weight)

    def forward(self, states: Tensor) -> Tensor:
        """(B, H) -> (B,), in float32 whatever the trunk's type."""
        score: Tensor = self.map(states.float()).squeeze(-1)
        return score

    def verdict(self, states: Tensor) -> Tensor:
        """(B, H) -> (B,), in [-1, 1]."""
        return torch.tanh(self(states) / 2)

    def loss(self, states: Tensor, verdicts: Tensor) -> Tensor:
        """Sum over the answers with a verdict of the cross-entropy of (1 + verdict) / 2, in nats.

        Args:
            states: (B, H).
            verdicts: (B,), in [-1, 1], or NaN for an answer without one.
        """
        known = ~verdicts.isnan()
        targets = (1 + verdicts[known]) / 2
        return nn.functional.binary_cross_entropy_with_logits(self(states)[known], targets, reduction="sum")

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW for this head alone, at its own learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=self.step / self.map.in_features, weight_decay=0.0)
