"""Convert trajectories of another engine to a batch of the local loop, and score them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from pydantic import BaseModel
from torch import Tensor

from text2grad.align import CreditSettings, TokenTable
from text2grad.feedback import Critique, Example, Failure, Judgement, Message, Source
from text2grad.policy.batch import pack
from text2grad.policy.generate import Sample
from text2grad.rl.advantage import kl_k1, kl_k3
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.rollout import (
    PolicyStats,
    Responses,
    Rollout,
    build_rollout,
    judge,
    refuse_diverged,
    refuse_failures,
)


class JudgedAnswer(BaseModel):
    """A sampled and judged answer, which an engine stores as JSON with the trajectory.

    Attributes:
        number: the index of the prompt in the data.
        between: the messages of others, as in `Sample`; None for an answer of one turn.
        tokens: the number of tokens that the critic read and wrote.
    """

    number: int
    example: Example
    judgement: Critique | Failure
    truncated: bool = False
    between: list[tuple[Message, ...]] | None = None
    tokens: float = 0.0


@dataclass(frozen=True)
class JudgedTrajectory:
    """A judged trajectory of T ids, with per-token statistics (T,).

    `last_value` is the value after the last token. Without a reference or a value function,
    `ref_logp` and `values` are None.
    """

    answer: JudgedAnswer
    prompt: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int]
    logp: Tensor
    entropy: Tensor
    ref_logp: Tensor | None = None
    values: Tensor | None = None
    last_value: float = 0.0

    def sample(self) -> Sample:
        """Return the trajectory as a sample of the local loop."""
        answer = self.answer
        if answer.between is None:
            return Sample(list(self.ids), answer.truncated)
        mask = [bool(flag) for flag in self.mask]
        return Sample(list(self.ids), answer.truncated, None, mask, answer.between, list(self.prompt))


@dataclass
class RecordedCritic:
    """A critic that returns recorded judgements."""

    judgements: Sequence[Judgement]
    source: Source = field(default_factory=lambda: Source(kind="program"))

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return the recorded judgements."""
        return list(self.judgements)


def score_trajectories(
    batch: Sequence[JudgedTrajectory],
    table: TokenTable,
    settings: PPOSettings,
    credit: CreditSettings,
    beta: float,
) -> tuple[Responses, Rollout]:
    """Compute rewards and advantages of a batch with the local loop's functions.

    Answers to the same prompt are neighbours in the batch.

    Raises:
        CritiquesFailed: more critiques failed than `ppo.max_failed` allows.
        FloatingPointError: a number is not finite, or the policy is far from its reference.
    """
    answers = [trajectory.answer for trajectory in batch]
    critic = RecordedCritic([answer.judgement for answer in answers])
    examples, samples = [answer.example for answer in answers], [trajectory.sample() for trajectory in batch]
    responses = judge(examples, samples, table, critic, credit)
    responses = replace(responses, critic_tokens=sum(answer.tokens for answer in answers))
    refuse_failures(responses.judgements, settings.max_failed)
    masks = [[bool(flag) for flag in trajectory.mask] for trajectory in batch]
    tokens = pack([item.prompt for item in batch], [item.ids for item in batch], 0, "cpu", masks)

    def column(rows: Sequence[Tensor | None]) -> Tensor:
        filled = torch.zeros(tokens.mask.shape)
        for row, numbers in enumerate(rows):
            if numbers is not None:
                filled[row, : len(numbers)] = numbers
        return filled.masked_fill(~tokens.mask, 0)

    logp = column([item.logp for item in batch])
    ref_logp = column([item.logp if item.ref_logp is None else item.ref_logp for item in batch])
    kl = (kl_k3 if settings.kl == "k3" else kl_k1)(logp, ref_logp)
    stats = PolicyStats(
        logp=logp,
        ref_logp=ref_logp,
        kl=kl,
        entropy=column([item.entropy for item in batch]),
        values=column([item.values for item in batch]),
        last_value=torch.tensor([item.last_value for item in batch]),
    )
    rollout = build_rollout(tokens, responses, stats, settings, beta)
    refuse_diverged(rollout, settings.max_kl)
    return responses, rollout


def lost_trajectory(number: int, example: Example, end: int) -> JudgedTrajectory:
    """Return a placeholder for a lost trajectory, so that its group keeps its size."""
    failure = Failure(kind="exhausted", message="the engine lost this trajectory")
    zero = torch.zeros(1)
    return JudgedTrajectory(
        JudgedAnswer(number=number, example=example, judgement=failure), [end], [end], [1], zero, zero
    )
