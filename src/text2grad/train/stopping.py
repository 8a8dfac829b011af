"""Early stopping: by a measurement on validation data, keeping the best weights, or by a loss so low
that samples of the policy would hardly differ."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from text2grad.durable.processes import ALONE, Ranks
from text2grad.errors import UserError
from text2grad.feedback import Critique, Feedback
from text2grad.policy.model import Policy
from text2grad.policy.shard import gathered, split_as
from text2grad.tasks.base import question_of, words_of
from text2grad.train.settings import SFTSettings

PREFIX = "best."
METRIC = "span_f1"
"""The mean of the F1 of good tokens and the F1 of poor tokens."""
PART_OF_PASS = 0.25
"""The part of a pass over which the loss is averaged: forty short answers are learned within one pass."""


PATIENCE = 3
"""Measurements without improvement before training stops."""
SHARE, MOST_RECORDS = 0.1, 64
"""Of the training prompts, set apart to measure on; critiques written for one measurement."""


class EarlyStopping:
    """Measures a policy every `every` steps, keeps its best weights, and says when to stop.

    `measure` gives the number, higher is better, of the policy as it is; what it draws at random is drawn from a
    fixed seed, and training does not notice. A part of `durable.state.Training`, so that a run that was stopped in
    between resumes bit for bit. Of several processes (`ranks`) all measure, and the first one's number counts.
    """

    def __init__(
        self,
        policy: Policy,
        every: int,
        measure: Callable[[], float],
        ranks: Ranks = ALONE,
        patience: int = PATIENCE,
    ) -> None:
        self._policy = policy
        self._every = every
        self._patience = patience
        self._measure = measure
        self._ranks = ranks
        self._weights: dict[str, Tensor] = {}
        self.best = 0.0
        self.best_step = 0  # steps done when the best weights were measured; 0: nothing was measured yet
        self._waited = 0

    @property
    def over(self) -> bool:
        """Whether `patience` measurements in a row were no better than the best."""
        return self._waited >= self._patience

    def due(self, done: int, total: int) -> bool:
        """Whether it is time to measure after `done` of `total` steps."""
        return done % self._every == 0 or done == total

    def look(self, done: int, total: int, loss: float = 0.0) -> dict[str, float]:
        """Measure after `done` of `total` steps if it is time, whatever the `loss`; the metrics of the step.

        All processes must call it.
        """
        if not self.due(done, total):
            return {}
        device = self._policy.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # every measurement draws the same numbers
            with gathered(self._policy), self._ranks.barrier():
                value = self._measure()
        value = self._ranks.broadcast(value)
        if value > self.best or not self.best_step:
            self.best, self.best_step, self._waited = value, done, 0
            self._weights = {name: _kept(tensor.detach()) for name, tensor in self._policy.trained().items()}
        else:
            self._waited += 1
        return {METRIC: value}

    def restore_best(self) -> dict[str, float]:
        """Put the best weights into the policy; which they are, for the summary."""
        with torch.no_grad():
            for name, parameter in self._policy.trained().items():
                parameter.copy_(self._weights[name])
        return {f"best_{METRIC}": self.best, "best_step": self.best_step}

    def tensors(self) -> dict[str, Tensor]:
        """The best weights, by name, split as the policy's are."""
        return {PREFIX + name: tensor for name, tensor in self._weights.items()}

    def numbers(self) -> dict[str, Any]:
        """The rest, as JSON."""
        return {"best": self.best, "best_step": self.best_step, "waited": self._waited}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what `tensors` and `numbers` gave."""
        self.best, self.best_step, self._waited = numbers["best"], numbers["best_step"], numbers["waited"]
        trained = self._policy.trained()
        kept = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        self._weights = {name: split_as(t.clone(), trained[name]) for name, t in kept.items()}


class LossFloor:
    """Says when to stop: once the mean training loss of the last `window` steps is below `least`, nats a token.

    A loss of .1 is a chance of 9 in 10 for each token of the answers that were learned. The entropy of what is
    sampled falls with it, and where samples are all alike there is little to compare. A part of
    `durable.state.Training`.
    """

    @classmethod
    def of(cls, settings: SFTSettings, examples: int) -> LossFloor | None:
        """As `settings.least_loss` has it, over a part of a pass; None without one."""
        if settings.least_loss is None:
            return None
        return cls(settings.least_loss, math.ceil(PART_OF_PASS * examples / settings.batch_size))

    def __init__(self, least: float, window: int) -> None:
        self.least = least
        self._window = window
        self._losses: list[float] = []

    @property
    def over(self) -> bool:
        """Whether a whole window of steps had so low a loss."""
        return len(self._losses) == self._window and sum(self._losses) < self.least * self._window

    def due(self, done: int, total: int) -> bool:
        """Never: it measures nothing of its own."""
        return False

    def look(self, done: int, total: int, loss: float) -> dict[str, float]:
        """Take down the loss of a step; no metrics of its own."""
        self._losses = [*self._losses, loss][-self._window :]
        return {}

    def restore_best(self) -> dict[str, float]:
        """The weights are the last ones; nothing for the summary."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def numbers(self) -> dict[str, Any]:
        """The losses of the window, as JSON."""
        return {"losses": self._losses}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what `numbers` gave."""
        self._losses = list(numbers["losses"])


def _kept(tensor: Tensor) -> Tensor:
    """A copy in the CPU's memory; of split weights each process copies its own part where it is."""
    return tensor.clone() if isinstance(tensor, DTensor) else torch.empty_like(tensor, device="cpu").copy_(tensor)


def validation_split(
    records: Sequence[Feedback], seed: int, share: float = SHARE, most: int = MOST_RECORDS
) -> tuple[list[Feedback], list[Feedback]]:
    """Training records without those of a `share` of the prompts, and at most `most` of these.

    Raises:
        UserError: there are not two prompts.
    """
    questions = sorted({words_of(question_of(record)) for record in records})
    if len(questions) < 2:
        raise UserError(
            "one training prompt cannot be split for early stopping", "reward_model.early_stopping null"
        )
    dice = random.Random(seed)
    count = min(len(questions) - 1, max(1, round(share * len(questions))))
    apart = set(dice.sample(questions, count))
    train = [record for record in records if words_of(question_of(record)) not in apart]
    others = [record for record in records if words_of(question_of(record)) in apart]
    readable = [record for record in others if isinstance(record.judgement(), Critique)]
    return train, dice.sample(readable, min(most, len(readable)))
