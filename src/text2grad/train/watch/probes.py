"""Answer a few training prompts at regular steps, to show how the answers to them change.

Only the policy changes between two answers to a prompt. Training is not affected: the answers are
not trained on, and the state of every random generator is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from text2grad.durable.log import Stopwatch
from text2grad.durable.state import preserve_randomness
from text2grad.feedback import Critique, Example, Judgement, Source
from text2grad.train.learner import Learner
from text2grad.train.report import is_due, probe_strips
from text2grad.train.rollout import pack_samples, random_numbers, sample_responses

PROBE_EVERY, PROBE_COUNT = 10, 4
"""Steps between two probes, and the number of prompts per probe."""
PROBE_STEP = 2**40
"""A step number beyond any run, for the random numbers of probes."""
FREE_CRITICS = ("program", "reward_model")
"""Kinds of critics whose requests cost nothing."""


class Probes:
    """The prompts of the probes; their random numbers are the same each time."""

    def __init__(
        self, learner: Learner, examples: Sequence[Example], prompts: Sequence[Sequence[int]], seed: int
    ) -> None:
        self.learner = learner
        self.seed = seed
        count = min(PROBE_COUNT, len(examples))
        rows = [number * len(examples) // count for number in range(count)]
        self.examples = [examples[row] for row in rows]
        self.prompts = [prompts[row] for row in rows]

    def answers(self, step: int, beta: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return the answers at the start of a step as records, and `seconds_probes`.

        Both are empty between probes. Answers have critiques if the critic costs nothing; errors of
        the critic are raised.
        """
        if not (self.prompts and is_due(step, self.learner.settings.steps, PROBE_EVERY)):
            return [], {}
        watch, learner, generation = Stopwatch(), self.learner, self.learner.generation
        learner.start("probes")
        tokens = generation.max_new_tokens * (generation.max_turns if learner.environment else 1)
        draws = random_numbers(self.seed, PROBE_STEP, len(self.prompts), tokens)
        is_free = learner.critic.source.kind in FREE_CRITICS
        critic = learner.critic if is_free else NullCritic(learner.critic.source)
        with preserve_randomness():
            samples = sample_responses(
                learner.policy, self.prompts, generation, draws, learner.environment, self.examples
            )
            batch = pack_samples(learner.policy, self.prompts, samples)
            responses, stats = learner.judge_and_measure(self.examples, samples, batch, critic)
        records = list(
            probe_strips(step, responses, batch, stats, beta if is_free else None, learner.settings.valued)
        )
        watch.lap("probes")
        return records, watch.seconds


@dataclass
class NullCritic:
    """A critic that returns empty critiques, in place of one whose requests cost something."""

    source: Source

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return an empty critique for each response."""
        return [Critique(text="") for _ in responses]
