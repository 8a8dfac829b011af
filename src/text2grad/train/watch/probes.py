"""A few training prompts, answered anew every so many steps, so that there is an answer to follow.

Only the policy changes between two answers to one of them. Training does not notice: nothing is
learned from these answers, and no random generator is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.durable.log import Stopwatch
from text2grad.durable.state import preserve_randomness
from text2grad.feedback import Critique, Example, Judgement, Source
from text2grad.train.account import due, probe_strips
from text2grad.train.learner import Learner
from text2grad.train.rollout import draws_of, packed, respond

PROBE_EVERY, PROBED = 10, 4
"""Steps between two probes, and the training prompts that each answers."""
PROBES = 2**40
"""The number of a step that no run reaches, for the random numbers of probes."""
FREE = ("program", "reward_model")
"""Kinds of critics that cost nothing."""


class Probes:
    """The prompts that are followed, and the random numbers of their answers, the same every
    time."""

    def __init__(
        self, learner: Learner, examples: Sequence[Example], prompts: Sequence[Sequence[int]], seed: int
    ) -> None:
        self.learner = learner
        self.seed = seed
        count = min(PROBED, len(examples))
        rows = [number * len(examples) // count for number in range(count)]
        self.examples = [examples[row] for row in rows]
        self.prompts = [prompts[row] for row in rows]

    def answers(self, step: int, beta: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return the policy's answers at the beginning of a step, as records, and `seconds_probes`;
        or nothing.

        They have critiques where asking costs nothing. Raises what the critic raises.
        """
        if not (self.prompts and due(step, self.learner.settings.steps, PROBE_EVERY)):
            return [], {}
        watch, learner, generation = Stopwatch(), self.learner, self.learner.generation
        learner.begin("probes")
        tokens = generation.max_new_tokens * (generation.max_turns if learner.environment else 1)
        draws = draws_of(self.seed, PROBES, len(self.prompts), tokens)
        judged = learner.critic.source.kind in FREE
        critic = learner.critic if judged else NullCritic(learner.critic.source)
        with preserve_randomness():
            asked = learner.policy, self.prompts, generation, draws
            samples = respond(*asked, learner.environment, self.examples)
            batch = packed(learner.policy, self.prompts, samples)
            responses, stats = learner.judge_and_measure(self.examples, samples, batch, critic)
        paid = beta if judged else None
        records = list(probe_strips(step, responses, batch, stats, paid, learner.settings.valued))
        watch.lap("probes")
        return records, watch.seconds


@dataclass
class NullCritic:
    """Stands in for a critic that is not asked."""

    source: Source

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Empty critiques."""
        return [Critique(text="") for _ in responses]
