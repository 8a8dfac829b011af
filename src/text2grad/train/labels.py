"""A second loss for the reward model: the label of every response token, read off a layer below the last.

Most of z can be guessed from the question: a small model learns to write the lines it expects, and hardly looks at
those that are there. This loss asks at each token of the response whether it is good, poor or neither, so that what
z needs is known where later layers find it. What answers is a linear map that is there while the model trains, and
is not saved with it. Ours, not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from text2grad.policy.model import Policy

UNLABELLED = -100
"""The label of a token that is not asked about."""
DEPTH = 0.75
"""The layer that is read, as a share of all: above it there must be layers that can use what it knows."""
POOR = 3.0
"""What a poor token counts: they are the rare class."""
STEP = 2.0
"""What one AdamW step may add to a logit, about: the learning rate of the linear map is this over its width."""


@dataclass(frozen=True)
class LabelLoss:
    """The loss, `weight` beside the loss of z."""

    weight: float

    def prepare(self, policy: Policy) -> None:
        """Give the policy the linear map, before its weights are shared out to processes."""
        policy.label_head = LabelHead(int(policy.model.config.get_text_config().hidden_size)).to(policy.device)

    def optimizer(self, policy: Policy) -> torch.optim.Optimizer:
        """Of the linear map alone."""
        assert policy.label_head is not None
        width = int(policy.model.config.get_text_config().hidden_size)
        return torch.optim.AdamW(policy.label_head.parameters(), lr=STEP / width, weight_decay=0.0)

    def sum_over(self, policy: Policy, layers: tuple[Tensor, ...], labels: Tensor) -> Tensor:
        """Sum over the labelled tokens of -log p(label), a poor one counting `POOR` times.

        Args:
            policy: with its linear map.
            layers: (B, L, H) of the embeddings and of each layer.
            labels: (B, L), +1, -1, 0 or `UNLABELLED`.
        """
        assert policy.label_head is not None
        asked = labels != UNLABELLED
        logits = policy.label_head(layers[int(DEPTH * (len(layers) - 1))][asked])
        classes = logits.new_tensor([POOR, 1.0, 1.0])
        return torch.nn.functional.cross_entropy(logits, labels[asked] + 1, classes, reduction="sum")

    def identity(self) -> dict[str, str]:
        """What a run that uses it depends on."""
        return {"reward_model.label_weight": str(self.weight)}


class LabelHead(nn.Module):
    """(n, H) hidden states of any size -> (n, 3) logits of poor, neither and good, in float32. Starts at zero."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.map = nn.Linear(hidden, 3)
        nn.init.zeros_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, states: Tensor) -> Tensor:
        states = states.float()
        states = states * torch.rsqrt(states.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        logits: Tensor = self.map(states)
        return logits
