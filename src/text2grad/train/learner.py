"""The phases of a PPO step, with the critic before the scoring or in parallel to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from text2grad.align import CreditSettings, TokenTable
from text2grad.durable.log import Stopwatch
from text2grad.feedback import Critic, Example, get_overlap
from text2grad.policy.batch import TokenBatch
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.generate import Sample
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.train.account import strips
from text2grad.train.optimizers import Optimizers
from text2grad.train.passes import PassSize
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import (
    PolicyStats,
    Responses,
    Rollout,
    judge,
    measure,
    respond,
)
from text2grad.train.update import update

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Learner:
    """A policy in training, its critic, and the settings of a step.

    `batch`: the data of the present step; None until it has been scored. `watch`: the seconds of
    each phase. `environment` answers the policy, if the task has one. `begin_phase` is called with
    the name of a phase when it begins, `prepare_update` before the policy is changed.
    """

    policy: Policy
    critic: Critic
    settings: PPOSettings
    credit: CreditSettings
    generation: GenerationSettings
    optimizers: Optimizers
    environment: MakeEnvironment | None = None
    begin_phase: Callable[[str], None] = lambda phase: None
    prepare_update: Callable[[], None] = lambda: None
    batch: tuple[Responses, Rollout] | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self._table = TokenTable(self.policy.tokenizer)
        self._size = PassSize(self.settings.micro_batch_size, "ppo.micro_batch_size")

    def begin(self, phase: str) -> None:
        """Begin with a phase; there is no batch yet."""
        self.batch, self.watch = None, Stopwatch()
        self.begin_phase(phase)

    def sample(self, examples: Sequence[Example], prompts: Sequence[Sequence[int]]) -> list[Sample]:
        """Begin a step: one response per prompt."""
        self.begin("sampling")
        samples = respond(self.policy, prompts, self.generation, None, self.environment, examples)
        self.watch.lap("generate")
        return samples

    def judge_and_measure(
        self,
        examples: Sequence[Example],
        samples: Sequence[Sample],
        batch: TokenBatch,
        critic: Critic | None = None,
    ) -> tuple[Responses, PolicyStats]:
        """Critiques as credit per token, and policy and reference statistics; neither needs the
        other.

        `critic`: another one in place of the learner's.
        """
        self.begin_phase("critic")
        return together(
            partial(judge, examples, samples, self._table, critic or self.critic, self.credit),
            partial(measure, self.policy, batch, self.settings, self.generation.temperature, self._size),
            get_overlap(self.critic) == "helps",
            self.watch,
        )

    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Gradient steps on a batch; the first ones of a run may train the value function alone."""
        self.begin_phase("update")
        self.prepare_update()
        warming = step < self.settings.warmup_steps
        temperature = self.generation.temperature
        return update(self.policy, rollout, self.optimizers, self.settings, temperature, warming, self._size)

    def strips(self, step: int, count: int | None = None) -> Iterator[dict[str, Any]] | None:
        """Token strips of the first `count` responses of the batch, all by default; None without a
        batch."""
        if self.batch is None:
            return None
        responses, rollout = self.batch
        count = len(responses.samples) if count is None else count
        return strips(step, responses, rollout, count, valued=self.settings.valued)


def together(critique: Callable[[], A], score: Callable[[], B], overlap: bool, watch: Stopwatch) -> tuple[A, B]:
    """The results of both. With `overlap`, `critique` runs in a thread, which is joined before this
    returns.

    An exception of either is raised here; if both raise, `score`'s.

    `watch` gets the seconds of `critique` and `score` that did not overlap, and as
    `seconds_critique_hidden` those of `critique` that passed during `score`.
    """
    watch.seconds["seconds_critique_hidden"] = 0.0
    if not overlap:
        critiques = critique()
        watch.lap("critique")
        scores = score()
        watch.lap("score")
        return critiques, scores
    began = time.perf_counter()
    ended: list[float] = []
    with ThreadPoolExecutor(1, thread_name_prefix="critic") as pool:
        pending = pool.submit(critique)
        pending.add_done_callback(lambda _: ended.append(time.perf_counter()))
        scores = score()
        watch.lap("score")
        scored = time.perf_counter()
        critiques = pending.result()
    watch.lap("critique")
    watch.seconds["seconds_critique_hidden"] = min(*ended, scored) - began
    return critiques, scores
