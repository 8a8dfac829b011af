"""The phases of a PPO step as they run here: in one process or several, the critic beside the scoring or before it.

Each process takes its share of the prompts and gathers what the others found, so that after every phase all of them
know the whole batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from text2grad.align import CreditSettings, TokenTable
from text2grad.durable.log import Stopwatch
from text2grad.feedback import Critic, Example
from text2grad.policy.batch import TokenBatch
from text2grad.policy.generate import Sample
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.policy.shard import gathered
from text2grad.train.account import strips
from text2grad.train.optimizers import Optimizers
from text2grad.train.overlap import overlaps, together
from text2grad.train.passes import PassSize
from text2grad.train.rollout import Answered, Measured, Rollout, draws_of, judge, measure, merge, respond
from text2grad.train.settings import PPOSettings
from text2grad.train.update import update


@dataclass
class Learner:
    """A policy in training, its critic, and the settings of a step.

    `batch` is what the present step learns from; None until the policy is about to be changed. `watch` has the
    seconds of its phases.
    """

    policy: Policy
    critic: Critic
    settings: PPOSettings
    credit: CreditSettings
    generation: GenerationSettings
    optimizers: Optimizers
    size: PassSize
    seed: int
    batch: tuple[Answered, Rollout] | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self._table = TokenTable(self.policy.tokenizer)
        self._ranks = self.size.ranks
        self._overlap = overlaps(self.critic, self.settings.overlap, self._ranks.sharded)

    def begin(self) -> None:
        """A new step."""
        self.batch, self.watch = None, Stopwatch()

    def sample(self, prompts: Sequence[Sequence[int]], step: int) -> list[Sample]:
        """One response per prompt."""
        mine = self._ranks.share(len(prompts))
        by_row, tokens = self._ranks.by_row, self.generation.max_new_tokens
        draws = draws_of(self.seed, step, mine, tokens) if by_row else None
        with gathered(self.policy), self._ranks.barrier():
            said = respond(self.policy, prompts[mine], self.generation, draws)
        samples = list(itertools.chain.from_iterable(self._ranks.all_gather(said)))
        self.watch.lap("generate")
        return samples

    def judge_and_measure(
        self, examples: Sequence[Example], samples: Sequence[Sample], batch: TokenBatch
    ) -> tuple[Answered, Measured]:
        """What the critic says, as credit per token, and what policy and reference say. Neither needs the other."""
        mine = self._ranks.share(len(samples))
        critique = partial(judge, examples[mine], samples[mine], self._table, self.critic, self.credit)
        answered, measured = together(
            gathered(self.policy)(critique),  # a critic may be made of the policy's weights, which it needs whole
            partial(measure, self.policy, batch, self.settings, self.generation.temperature, self.size),
            self._overlap,
            self.watch,
            self._ranks,
        )
        return merge(self._ranks.all_gather(answered)), Measured(*self._ranks.all_gather_rows(measured))

    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Gradient steps on a batch; the first ones of a run may train the value function alone."""
        warming = step < self.settings.warmup_steps
        temperature = self.generation.temperature
        return update(self.policy, rollout, self.optimizers, self.settings, temperature, warming, self.size)

    def strips(self, step: int, count: int | None = None) -> Iterator[dict[str, Any]] | None:
        """Token strips of the first `count` responses of the batch, all by default; None without a batch."""
        if self.batch is None:
            return None
        answered, rollout = self.batch
        count = len(answered.samples) if count is None else count
        marked = self.credit.as_marked
        return strips(step, answered, rollout, count, valued=self.settings.valued, as_marked=marked)
