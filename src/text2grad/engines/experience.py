"""Trajectories of another engine as one batch of the local loop's, and that loop's own scores for
them."""

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


class Judged(BaseModel):
    """A sampled and judged answer; an engine carries it as JSON beside the trajectory.

    `number` is its prompt's place in the data. `between` is what others said, as in `Sample`; None
    for an answer of one turn. `tokens` are those that the critic read and wrote.
    """

    number: int
    example: Example
    judgement: Critique | Failure
    truncated: bool = False
    between: list[tuple[Message, ...]] | None = None
    tokens: float = 0.0


@dataclass(frozen=True)
class Trajectory:
    """A judged trajectory, with the statistics of policy, reference and value function at each of
    its T ids, (T,).

    `last_value` is the value after the last one. `ref_logp` and `values` are zeros where there is
    no reference, no value function.
    """

    judged: Judged
    prompt: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int]
    logp: Tensor
    entropy: Tensor
    ref_logp: Tensor | None = None
    values: Tensor | None = None
    last_value: float = 0.0

    def sample(self) -> Sample:
        """Return it as the local loop samples one."""
        judged = self.judged
        if judged.between is None:
            return Sample(list(self.ids), judged.truncated)
        mask = [bool(flag) for flag in self.mask]
        return Sample(list(self.ids), judged.truncated, None, mask, judged.between, list(self.prompt))


@dataclass
class RecordedCritic:
    """A critic whose judgements are known already."""

    judgements: Sequence[Judgement]
    source: Source = field(default_factory=lambda: Source(kind="program"))

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Return the judgements."""
        return list(self.judgements)


def scored(
    batch: Sequence[Trajectory],
    table: TokenTable,
    settings: PPOSettings,
    credit: CreditSettings,
    coefficient: float,
) -> tuple[Responses, Rollout]:
    """Rewards and advantages of a batch, by the local loop's own functions.

    The answers to one prompt stand together. `coefficient` is beta, of the KL.

    Raises:
        CritiquesFailed: more critiques failed than `ppo.max_failed` allows.
        FloatingPointError: a number is not finite, or the policy is far from its reference.
    """
    judged = [trajectory.judged for trajectory in batch]
    critic = RecordedCritic([answer.judgement for answer in judged])
    examples, samples = [answer.example for answer in judged], [trajectory.sample() for trajectory in batch]
    responses = judge(examples, samples, table, critic, credit)
    responses = replace(responses, critic_tokens=sum(answer.tokens for answer in judged))
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
    rollout = build_rollout(tokens, responses, stats, settings, coefficient)
    refuse_diverged(rollout, settings.max_kl)
    return responses, rollout


def lost(number: int, example: Example, end: int) -> Trajectory:
    """Stand in for a trajectory that an engine lost: its group keeps its size, and nothing is
    learned of it."""
    failure = Failure(kind="exhausted", message="the engine lost this trajectory")
    zero = torch.zeros(1)
    return Trajectory(Judged(number=number, example=example, judgement=failure), [end], [end], [1], zero, zero)
