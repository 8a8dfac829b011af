"""Probes: a few training prompts, answered anew every so many steps, so that there is an answer to follow.

Each has the same random numbers every time, so what changes between two of its answers is the policy. Training does
not notice: nothing is learned from these answers, and no random generator is moved.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from text2grad.durable.log import Stopwatch
from text2grad.feedback import Example
from text2grad.train.learner import Learner

PROBE_EVERY = 10
"""Steps between two probes."""
PROBED = 4
"""Training prompts that each probe answers."""


class Probes:
    """The probe prompts of a run: `PROBED` of its prompts, from all over them."""

    def __init__(self, learner: Learner, examples: Sequence[Example], prompts: Sequence[Sequence[int]]) -> None:
        self.learner = learner
        self.count = min(PROBED, len(examples))
        rows = [number * len(examples) // self.count for number in range(self.count)]
        # Every process has at least one to read: passes of split weights are made by all of them.
        rows = [*itertools.islice(itertools.cycle(rows), max(self.count, learner.size.ranks.count))]
        self.examples = [examples[row] for row in rows]
        self.prompts = [prompts[row] for row in rows]

    def answers(self, step: int, beta: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """The policy's answers at the beginning of a step, as records, and `seconds_probes`; or nothing.

        All processes must call it. Raises what the critic raises.
        """
        if not (self.count and due(step, self.learner.settings.steps)):
            return [], {}
        watch = Stopwatch()
        records = self.learner.probe(self.examples, self.prompts, step, beta)[: self.count]
        watch.lap("probes")
        return records, watch.seconds


def due(step: int, steps: int) -> bool:
    """True if a step, of so many, begins with probes."""
    return step % PROBE_EVERY == 0 or step == steps - 1
