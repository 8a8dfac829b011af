"""A head: one linear map from a state of the trunk to the score of an answer, or to the label of a
token.

A model with a `score` head alone is a scalar reward model (paper, appendix N), read after the
answer. A reward model with `reward_model.score_head` learns one beside z from the annotator's
scores (Critique-out-Loud, Ankner et al. 2024), read before z: behind z, training would show it the
spans of the annotator, and use those of the model.

`label_loss` is a second loss for the reward model, ours and not the paper's. Most of z can be
guessed from the question: a small model learns to write the lines it expects and hardly looks at
the response. So each token of the response must be labelled from a layer below the last, and the
layers above find there what z needs. That head exists only during training and is not saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SCORE, LABEL = 1, 3
"""The outputs of a head: one score; or logits of poor, neither and good."""
STEP, STEP_OF_VERDICTS, STEP_OF_LABELS = 0.1, 0.3, 2.0
"""About what one AdamW step may add to an output: the learning rate of the map is this over its
width.

`STEP` is for heads that are all that a model says. Of verdicts on 200 critiques 0.1 learns too
little in 100 steps, and 1 overfits them.
"""
UNLABELLED = -100
"""The label of a token that has no part in the loss."""
DEPTH = 0.75
"""The layer that `label_loss` reads, as a share of all: the layers above it can use what it
knows."""
CLASSES = (3.0, 1.0, 1.0)
"""Weights of poor, neither and good tokens in `label_loss`: the poor are the rare class."""


class Head(nn.Module):
    """A linear map with `outputs` numbers, `SCORE` or `LABEL`. Starts at zero: equal scores, equal
    chances.

    A score has no bias: a constant added to all scores changes no preference. Labels are read off
    states of any size, which are brought to a root mean square of 1.
    """

    def __init__(self, hidden: int, outputs: int, step: float = STEP) -> None:
        super().__init__()
        self.step = step
        self.map = nn.Linear(hidden, outputs, bias=outputs == LABEL)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, states: Tensor) -> Tensor:
        """(N, H) -> scores (N,) or logits (N, 3), in float32 whatever the trunk's type."""
        states = states.float()
        if self.map.out_features == SCORE:
            score: Tensor = self.map(states).squeeze(-1)
            return score
        states = states * torch.rsqrt(states.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        logits: Tensor = self.map(states)
        return logits

    def verdict(self, states: Tensor) -> Tensor:
        """(N, H) -> (N,), a score x as tanh(x / 2) = 2 sigmoid(x) - 1, in [-1, 1]."""
        return torch.tanh(self(states) / 2)

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW for this head alone, at its own learning rate."""
        return torch.optim.AdamW(self.parameters(), lr=self.step / self.map.in_features, weight_decay=0.0)


def verdict_loss(head: Head, states: Tensor, verdicts: Tensor) -> Tensor:
    """Sum over the answers with a verdict of the cross-entropy of (1 + verdict) / 2, in nats.

    Args:
        states: (B, H).
        verdicts: (B,), in [-1, 1], or NaN for an answer without one.
    """
    known = ~verdicts.isnan()  # (B,)
    targets = (1 + verdicts[known]) / 2  # in [0, 1]
    return nn.functional.binary_cross_entropy_with_logits(head(states)[known], targets, reduction="sum")


def label_loss(head: Head, layers: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Sum over the labelled tokens of -log p(label), each counting as `CLASSES` says.

    Args:
        layers: (B, L, H) of the embeddings and of each layer.
        labels: (B, L), +1, -1, 0 or `UNLABELLED`.
    """
    labelled = labels != UNLABELLED
    logits = head(layers[int(DEPTH * (len(layers) - 1))][labelled])  # (N, 3)
    classes = logits.new_tensor(CLASSES)
    return nn.functional.cross_entropy(logits, labels[labelled] + 1, classes, reduction="sum")


def unweighted(logits: Tensor) -> Tensor:
    """Logits (N, 3) of a head that learned by `label_loss`, as if every label had counted once
    there.

    A class of weight w is called w times as likely, against the others, as it is.
    """
    return logits - logits.new_tensor(CLASSES).log()


def likeliest_labels(logits: Tensor) -> Tensor:
    """Return the likeliest label of each token, (N, 3) -> (N,) of -1, 0 and 1; ties go to the
    better one."""
    poor, neither, good = logits.float().unbind(dim=-1)
    return torch.where(poor > torch.maximum(neither, good), -1, torch.where(neither > good, 0, 1))
