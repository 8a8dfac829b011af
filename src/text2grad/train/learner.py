"""Run the phases of a PPO step, with the critic before or in parallel to the forward passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from text2grad.align import CreditSettings, get_table
from text2grad.durable.log import Stopwatch
from text2grad.feedback import Critic, Example, get_overlap
from text2grad.policy.batch import TokenBatch
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.generate import Sample
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.train.optimizers import Optimizers
from text2grad.train.passes import PassSize
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.report import token_strips
from text2grad.train.rollout import (
    PolicyStats,
    Responses,
    Rollout,
    judge,
    measure_policy,
    sample_responses,
)
from text2grad.train.update import update

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Learner:
    """A policy in training with its critic and the settings of a step.

    Attributes:
        environment: answers the policy, if the task has several turns.
        begin_phase: called with the name of a phase when it starts.
        prepare_update: called before the policy is changed.
        batch: the data of the current step; None until it has been scored.
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
        self._table = get_table(self.policy.tokenizer)
        self._size = PassSize(self.settings.micro_batch_size, "ppo.micro_batch_size")

    def start(self, phase: str) -> None:
        """Start a step with its first phase: no batch yet, and the stopwatch at 0."""
        self.batch, self.watch = None, Stopwatch()
        self.begin_phase(phase)

    def sample(self, examples: Sequence[Example], prompts: Sequence[Sequence[int]]) -> list[Sample]:
        """Start a step by sampling one response per prompt."""
        self.start("sampling")
        samples = sample_responses(self.policy, prompts, self.generation, None, self.environment, examples)
        self.watch.lap("generate")
        return samples

    def judge_and_measure(
        self,
        examples: Sequence[Example],
        samples: Sequence[Sample],
        batch: TokenBatch,
        critic: Critic | None = None,
    ) -> tuple[Responses, PolicyStats]:
        """Return the credit of each token, and the statistics of policy and reference.

        The two are independent, so they run in parallel if the critic allows it. `critic` replaces
        the learner's.
        """
        self.begin_phase("critic")
        return critique_and_score(
            partial(judge, examples, samples, self._table, critic or self.critic, self.credit),
            partial(measure_policy, self.policy, batch, self.settings, self.generation.temperature, self._size),
            get_overlap(self.critic) == "helps",
            self.watch,
        )

    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Take the gradient steps on a batch; during warm-up only the value function learns."""
        self.begin_phase("update")
        self.prepare_update()
        warming = step < self.settings.warmup_steps
        temperature = self.generation.temperature
        return update(self.policy, rollout, self.optimizers, self.settings, temperature, warming, self._size)

    def strips(self, step: int, count: int | None = None) -> Iterator[dict[str, Any]] | None:
        """Return token strips of the first `count` responses of the batch, all by default.

        None without a batch.
        """
        if self.batch is None:
            return None
        responses, rollout = self.batch
        count = len(responses.samples) if count is None else count
        return token_strips(step, responses, rollout, count, valued=self.settings.valued)


def critique_and_score(
    critique: Callable[[], A], score: Callable[[], B], overlap: bool, watch: Stopwatch
) -> tuple[A, B]:
    """Return the results of both functions; with `overlap`, `critique` runs in a thread.

    The thread is joined before the function returns. An exception of either function is raised; if
    both raise, that of `score`.

    `watch` gets the seconds of `critique` and `score` that did not overlap. Those of `critique`
    that passed during `score` are its `seconds_critique_hidden`.
    """
    watch.seconds["seconds_critique_hidden"] = 0.0
    if not overlap:
        critiques = critique()
        watch.lap("critique")
        scores = score()
        watch.lap("score")
        return critiques, scores
    started = time.perf_counter()
    ended: list[float] = []
    # A thread is enough: the critic waits for a server or for programs while torch computes.
    with ThreadPoolExecutor(1, thread_name_prefix="critic") as pool:
        pending = pool.submit(critique)
        pending.add_done_callback(lambda _: ended.append(time.perf_counter()))
        scores = score()
        watch.lap("score")
        score_ended = time.perf_counter()
        critiques = pending.result()
    watch.lap("critique")
    watch.seconds["seconds_critique_hidden"] = min(*ended, score_ended) - started
    return critiques, scores
