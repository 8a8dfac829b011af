"""Linear heads that map a trunk's states to scores of answers or labels of tokens.

A model with only a score head is a scalar reward model (paper, appendix N); the head reads the
state after the answer. With `reward_model.score_head` a reward model that writes z also learns the
annotator's scores (Critique-out-Loud, Ankner et al. 2024). That head reads the state before z:
after z it would see the annotator's spans in training, but the model's own at inference.

`label_loss` is an auxiliary loss of the reward model that is not in the paper. A small model can
guess most of z from the question and hardly reads the response. So the response's tokens are
labelled from a layer below the last, where the layers above can use the result. This head exists
only in training.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SCORE, LABEL = 1, 3
"""Numbers of outputs: one score, or the logits of poor, neither and good."""
STEP, STEP_OF_VERDICTS, STEP_OF_LABELS = 0.1, 0.3, 2.0
"""About the largest change of an output by one AdamW step: the learning rate times the width.

`STEP` is for heads that are a model's only output. For verdicts on 200 critiques, 0.1 learns too
little in 100 steps, and 1 overfits.
"""
UNLABELLED = -100
"""The label of a token that is excluded from the loss."""
DEPTH = 0.75
"""The layer that the label head reads, as a share of all layers."""
CLASSES = (3.0, 1.0, 1.0)
"""Weights of poor, neither and good tokens in `label_loss`; poor tokens are rare."""


class Head(nn.Module):
    """A linear map to `SCORE` or `LABEL` outputs, initialised to zero.

    A score needs no bias, because a constant changes no preference. For labels the states are
    normalised to a root mean square of 1, because intermediate layers have no final norm.
    """

    def __init__(self, hidden: int, outputs: int, step: float = STEP) -> None:
        super().__init__()
        self.step = step
        self.map = nn.Linear(hidden, outputs, bias=outputs == LABEL)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, states: Tensor) -> Tensor:
        """Return scores (N,) or logits (N, 3) for states (N, H), in float32 for any trunk."""
        states = states.float()
        if self.map.out_features == SCORE:
            score: Tensor = self.map(states).squeeze(-1)
            return score
        states = states * torch.rsqrt(states.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        logits: Tensor = self.map(states)
        return logits

    def verdict(self, states: Tensor) -> Tensor:
        """Return verdicts (N,) in [-1, 1] for states (N, H): tanh(x / 2) = 2 sigmoid(x) - 1."""
        return torch.tanh(self(states) / 2)

    def optimizer(self) -> torch.optim.Optimizer:
        """Return an AdamW for this head at its own learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=self.step / self.map.in_features, weight_decay=0.0)


def verdict_loss(head: Head, states: Tensor, verdicts: Tensor) -> Tensor:
    """Return the summed cross-entropy with targets (1 + verdict) / 2, in nats.

    Args:
        states: (B, H).
        verdicts: (B,), in [-1, 1], or NaN for an answer without one.
    """
    has_verdict = ~verdicts.isnan()  # (B,)
    targets = (1 + verdicts[has_verdict]) / 2  # in [0, 1]
    return nn.functional.binary_cross_entropy_with_logits(head(states)[has_verdict], targets, reduction="sum")


def label_loss(head: Head, layers: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Return the sum over the labelled tokens of -log p(label), weighted by `CLASSES`.

    Args:
        layers: (B, L, H) each, the embeddings and the output of each layer.
        labels: (B, L), +1, -1, 0 or `UNLABELLED`.
    """
    labelled = labels != UNLABELLED
    logits = head(select_layer(layers)[labelled])  # (N, 3)
    classes = logits.new_tensor(CLASSES)
    # labels -1, 0, 1 are the classes 0, 1, 2.
    return nn.functional.cross_entropy(logits, labels[labelled] + 1, classes, reduction="sum")


def select_layer(layers: Sequence[Tensor]) -> Tensor:
    """Return the layer whose states the label head reads."""
    return layers[int(DEPTH * (len(layers) - 1))]


def unweighted(logits: Tensor) -> Tensor:
    """Correct the logits (N, 3) of a head trained by `label_loss` for the class weights.

    A class of weight w is predicted with w times its odds.
    """
    return logits - logits.new_tensor(CLASSES).log()


def likeliest_labels(logits: Tensor) -> Tensor:
    """Return the likeliest labels (N,) in -1, 0, 1 for logits (N, 3); ties go to the better one."""
    poor, neither, good = logits.float().unbind(dim=-1)
    return torch.where(poor > torch.maximum(neither, good), -1, torch.where(neither > good, 0, 1))
