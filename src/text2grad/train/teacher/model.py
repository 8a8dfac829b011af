"""The teacher's weights, and its log-probabilities of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from text2grad.policy.batch import TokenBatch
from text2grad.policy.model import Policy
from text2grad.train.passes import PassSize
from text2grad.train.ppo_settings import TeacherSettings
from text2grad.train.rollout import Responses
from text2grad.train.teacher.prompt import Lesson

PREFIX = "teacher."


class TeacherScores(NamedTuple):
    """The teacher's log-probabilities of a batch: of the sampled ids, (B, T), and of the support, (B, T, K).

    0 in rows that it has not read; `rows` (B,) is True where it has.
    """

    logp: Tensor
    support: Tensor
    rows: Tensor


class Teacher:
    """The weights of the teacher: a moving average of the policy's, or the policy's own where `ema` is 0.

    A part of `durable.state.Training`, so that a run that was stopped resumes bit for bit. Averages are in float32
    at least: in a half type a share of .05 would be rounded away.
    """

    def __init__(self, policy: Policy, settings: TeacherSettings) -> None:
        self.settings = settings
        self._policy = policy
        self._weights = {
            name: parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            for name, parameter in self._trained().items()
            if settings.ema
        }

    def _trained(self) -> dict[str, Tensor]:
        return {name: each for name, each in self._policy.model.named_parameters() if each.requires_grad}

    def follow(self) -> None:
        """Take over a share `ema` of the policy's weights."""
        trained = self._trained()
        for name, average in self._weights.items():
            average.lerp_(trained[name].detach().to(average.dtype), self.settings.ema)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The policy has the teacher's weights, and its own again afterwards, bit for bit."""
        trained = self._trained()
        own = {name: trained[name].detach().clone() for name in self._weights}
        try:
            _put(trained, self._weights)
            yield
        finally:
            _put(trained, own)

    def tensors(self) -> dict[str, Tensor]:
        """The averages, by name."""
        return {PREFIX + name: average for name, average in self._weights.items()}

    def numbers(self) -> dict[str, Any]:
        """Nothing: a checkpoint has the averages, and the settings are the run's."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what `tensors` gave."""
        for name, average in self._weights.items():
            average.copy_(tensors[PREFIX + name])


@torch.no_grad()
def _put(trained: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        trained[name].copy_(weight)


def read(
    policy: Policy,
    lessons: Sequence[Lesson],
    responses: Responses,
    support: Tensor,
    temperature: float,
    size: PassSize,
) -> tuple[Tensor, Tensor]:
    """The log-probabilities of this process's share of the lessons, (N, T) and (N, T, K), 0 outside the responses.

    `support` (B, T, K) has the ids of the whole batch that the teacher is compared on.
    """
    share = size.ranks.share(len(lessons))  # a slice of the lessons
    mine = lessons[share]
    logp = torch.zeros((len(mine), support.shape[1]), device=support.device)
    tops = torch.zeros((len(mine), *support.shape[1:]), device=support.device)
    if not mine:
        return logp, tops
    batch = policy.pack([each.prompt for each in mine], [responses.samples[each.row].ids for each in mine])
    wanted = support[[each.row for each in mine]]  # (N, T, K), ids on which the readings are compared

    def fill(rows_each: int) -> None:
        index = torch.arange(len(mine), device=support.device)
        for rows in batch.passes(index, rows_each, grouped=policy.reader.shares):
            _read_rows(policy, batch, rows, wanted, temperature, logp, tops)

    with policy.evaluating():
        size.fitting(fill, undo=lambda: None)
    return logp, tops


def _read_rows(
    policy: Policy, batch: TokenBatch, rows: Tensor, wanted: Tensor, temperature: float, logp: Tensor, tops: Tensor
) -> None:
    part = batch.rows(rows).trimmed()
    ids = wanted[rows, : part.width] if wanted.shape[-1] else None
    output = policy(part, temperature, valued=False, support=ids)
    logp[rows, : part.width] = output.logp
    if output.support is not None:
        tops[rows, : part.width] = output.support


def spread(lessons: Sequence[Lesson], logp: Tensor, support: Tensor, count: int) -> TeacherScores:
    """What was read of the lessons, (N, T) and (N, T, K), at their rows of a batch of `count`."""
    index = [each.row for each in lessons]  # where the N lessons stand in the batch
    rows = torch.zeros(count, dtype=torch.bool, device=logp.device)
    rows[index] = True
    taught = TeacherScores(
        logp.new_zeros(count, *logp.shape[1:]), support.new_zeros(count, *support.shape[1:]), rows
    )
    taught.logp[index], taught.support[index] = logp, support
    return taught
