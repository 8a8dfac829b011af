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
from text2grad.durable.state import same_randomness
from text2grad.feedback import Critic, Critique, Example, Judgement, Source, overlap_of
from text2grad.policy.batch import TokenBatch
from text2grad.policy.episode import MakeEnvironment
from text2grad.policy.generate import Sample
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.train.account import probe_strips, strips
from text2grad.train.optimizers import Optimizers
from text2grad.train.passes import PassSize
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import (
    PolicyStats,
    Responses,
    Rollout,
    draws_of,
    judge,
    measure,
    packed,
    respond,
)
from text2grad.train.update import update

PROBES = 2**40
"""In the place of a step, whose random numbers are those of probes."""
FREE = ("program", "reward_model")
"""Kinds of critics that nobody is paid for."""

PROBE_EVERY, PROBED = 10, 4
"""Steps between two probes, and the training prompts that each answers."""

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Learner:
    """A policy in training, its critic, and the settings of a step.

    `batch`: the data of the present step; None until it has been scored. `watch`: the seconds of each phase.
    `environment` answers the policy, if the task has one. `doing` is called with the name of a phase when it
    begins, `changing` before the policy is changed.
    """

    policy: Policy
    critic: Critic
    settings: PPOSettings
    credit: CreditSettings
    generation: GenerationSettings
    optimizers: Optimizers
    seed: int
    environment: MakeEnvironment | None = None
    doing: Callable[[str], None] = lambda phase: None
    changing: Callable[[], None] = lambda: None
    batch: tuple[Responses, Rollout] | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self._table = TokenTable(self.policy.tokenizer)
        self._size = PassSize(self.settings.micro_batch_size, "ppo.micro_batch_size")

    def sample(self, examples: Sequence[Example], prompts: Sequence[Sequence[int]], step: int) -> list[Sample]:
        """Begin a step: one response per prompt."""
        self.batch, self.watch = None, Stopwatch()
        self.doing("sampling")
        samples = respond(self.policy, prompts, self.generation, None, self.environment, examples)
        self.watch.lap("generate")
        return samples

    def probe(
        self, examples: Sequence[Example], prompts: Sequence[Sequence[int]], step: int, beta: float
    ) -> list[dict[str, Any]]:
        """Records of the policy's answers to probe prompts; with critiques where asking costs nothing.

        Each answer has random numbers of its own, the same at every step, and those of training are not moved.
        """
        self.batch, self.watch = None, Stopwatch()
        self.doing("probes")
        judged = self.critic.source.kind in FREE
        tokens = self.generation.max_new_tokens * (self.generation.max_turns if self.environment else 1)
        draws = draws_of(self.seed, PROBES, len(prompts), tokens)
        with same_randomness():
            samples = respond(self.policy, prompts, self.generation, draws, self.environment, examples)
            batch = packed(self.policy, prompts, samples)
            critic = self.critic if judged else NullCritic(self.critic.source)
            responses, stats = self.judge_and_measure(examples, samples, batch, critic)
        paid = beta if judged else None
        return list(probe_strips(step, responses, batch, stats, paid, self.settings.valued))

    def judge_and_measure(
        self,
        examples: Sequence[Example],
        samples: Sequence[Sample],
        batch: TokenBatch,
        critic: Critic | None = None,
    ) -> tuple[Responses, PolicyStats]:
        """Critiques as credit per token, and policy and reference statistics; neither needs the other."""
        self.doing("critic")
        return together(
            partial(judge, examples, samples, self._table, critic or self.critic, self.credit),
            partial(measure, self.policy, batch, self.settings, self.generation.temperature, self._size),
            overlap_of(self.critic) == "helps",
            self.watch,
        )

    def update(self, rollout: Rollout, step: int) -> dict[str, float]:
        """Gradient steps on a batch; the first ones of a run may train the value function alone."""
        self.doing("update")
        self.changing()
        warming = step < self.settings.warmup_steps
        temperature = self.generation.temperature
        return update(self.policy, rollout, self.optimizers, self.settings, temperature, warming, self._size)

    def strips(self, step: int, count: int | None = None) -> Iterator[dict[str, Any]] | None:
        """Token strips of the first `count` responses of the batch, all by default; None without a batch."""
        if self.batch is None:
            return None
        responses, rollout = self.batch
        count = len(responses.samples) if count is None else count
        return strips(step, responses, rollout, count, valued=self.settings.valued)


class Probes:
    """A few training prompts, answered anew every so many steps, so that there is an answer to follow.

    Each has the same random numbers every time, so only the policy changes between two of its answers. Training
    does not notice: nothing is learned from these answers, and no random generator is moved.
    """

    def __init__(self, learner: Learner, examples: Sequence[Example], prompts: Sequence[Sequence[int]]) -> None:
        self.learner = learner
        self.count = min(PROBED, len(examples))
        rows = [number * len(examples) // self.count for number in range(self.count)]
        self.examples = [examples[row] for row in rows]
        self.prompts = [prompts[row] for row in rows]

    def answers(self, step: int, beta: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return the policy's answers at the beginning of a step, as records, and `seconds_probes`; or nothing.

        Raises what the critic raises.
        """
        if not (self.count and due(step, self.learner.settings.steps)):
            return [], {}
        watch = Stopwatch()
        records = self.learner.probe(self.examples, self.prompts, step, beta)
        watch.lap("probes")
        return records, watch.seconds


def due(step: int, steps: int) -> bool:
    """True if a step, of so many, begins with probes."""
    return step % PROBE_EVERY == 0 or step == steps - 1


@dataclass
class NullCritic:
    """Stands in for a critic that is not asked."""

    source: Source

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Empty critiques."""
        return [Critique(text="") for _ in responses]


def together(critique: Callable[[], A], score: Callable[[], B], overlap: bool, watch: Stopwatch) -> tuple[A, B]:
    """The results of both. With `overlap`, `critique` runs in a thread, which is joined before this returns.

    An exception of either is raised here; if both raise, `score`'s.

    `watch` gets the seconds of `critique` and `score` that did not overlap, and as `seconds_critique_hidden` those
    of `critique` that passed during `score`.
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
