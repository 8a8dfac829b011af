"""Early stopping of SFT by a loss so low that samples of the policy would hardly differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from text2grad.train.settings import SFTSettings

PART_OF_PASS = 0.25
"""The part of a pass over which the loss is averaged: forty short answers are learned within one pass."""


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

    def note(self, loss: float) -> None:
        """Take down the loss of a step."""
        self._losses = [*self._losses, loss][-self._window :]

    def numbers(self) -> dict[str, Any]:
        """The losses of the window, as JSON."""
        return {"losses": self._losses}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Take over what `numbers` gave."""
        self._losses = list(numbers["losses"])
