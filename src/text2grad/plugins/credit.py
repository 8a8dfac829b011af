"""The code that plug-ins share: examples from an engine's rows, advantages, metrics, checks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from text2grad.align.rewards import Rewards, ScoredTrajectory, TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.data.conversations import default_turn_text, parse_messages
from text2grad.errors import UserError, optional_packages
from text2grad.feedback import Example, Failure, Message

with optional_packages():
    import torch
    from torch import Tensor

    from text2grad.rl.advantage import group_advantages

FAILED = "text2grad/failed"
"""The metric that is the share of trajectories whose critique failed."""
Reward = float | Sequence[float] | None
"""An environment's reward of a trajectory: one number, one for each of its T ids, or none."""


def credit_metrics(outcomes: Sequence[ScoredTrajectory], environment: Sequence[Reward] = ()) -> dict[str, float]:
    """Return the metrics of a batch of trajectories.

    Args:
        environment: the environment's reward of each trajectory, if it is mixed in.

    Returns:
        The share of failed critiques; over the judged trajectories, the share of ids with a word
        reward, the mean of these rewards, and the mean score; foreign and lost quotes per
        trajectory; the mean of the environment's rewards.
    """
    words = [outcome.word_rewards for outcome in outcomes if outcome.word_rewards is not None]
    word_rewards = np.concatenate([np.zeros(0, np.float32), *words])
    nonzero = word_rewards[word_rewards != 0]
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    rewards = [float(np.sum(reward)) for reward in environment if reward is not None]
    count = max(1, len(outcomes))
    return {
        FAILED: sum(outcome.failed for outcome in outcomes) / count,
        "text2grad/paid_share": len(nonzero) / max(1, len(word_rewards)),
        "text2grad/words_mean": float(nonzero.mean()) if len(nonzero) else 0.0,
        "text2grad/score_mean": sum(scores) / max(1, len(scores)),
        "text2grad/foreign_quotes": sum(outcome.foreign_quotes for outcome in outcomes) / count,
        "text2grad/lost_quotes": sum(outcome.lost_quotes for outcome in outcomes) / count,
        **({"text2grad/environment_mean": sum(rewards) / max(1, len(rewards))} if len(environment) else {}),
    }


def require(package: str, tested: str, install: str) -> None:
    """Refuse a missing package, or another version than `tested` ("1.16" or "0.9.1").

    Raises:
        UserError: with the command `install` as its cure.
    """
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise UserError(f"this needs {package} {tested}", install) from None
    if not f"{installed}.".startswith(f"{tested}."):
        raise UserError(f"{package} {installed}: the plug-in is written for {tested}", install)


def refuse_summing(engine: str, estimator: str, supported: Sequence[str]) -> None:
    """Raise a `UserError` for an estimator that sums a trajectory's rewards before it uses them."""
    if estimator not in supported:
        raise UserError(
            f"{engine}'s {estimator} sums the rewards of a trajectory, so credit for words is lost",
            f"one of {', '.join(supported)}",
        )


def make_example(prompt: Any, row: Mapping[str, Any]) -> Example:
    """Return a row of an engine's data set as an example.

    The columns `id` and `reference` keep their meaning, all others are its `meta`. A prompt that is
    a string becomes a user message. Messages in parts become text, and tool calls are written as
    most models write them.

    Raises:
        UserError: a message has content that is not text, such as an image.
    """
    turns = prompt if prompt and not isinstance(prompt, str) else [{"role": "user", "content": prompt or ""}]
    fields = {name: str(row[name]) for name in ("id", "reference") if row.get(name) is not None}
    meta = {name: value for name, value in row.items() if name not in fields}
    return Example(prompt=tuple(read_messages(turns)), meta=meta, **{"id": "-", **fields})


def read_messages(turns: Iterable[Any]) -> list[Message]:
    """Return an engine's messages as text for the critic; raise a `UserError` for other content."""
    try:
        return parse_messages(turns, partial(default_turn_text, cure="to the critic alone: ids stay as they are"))
    except ValueError as error:
        problem = f"a message that no critic can read: {error}"
        raise UserError(problem, getattr(error, "cure", "write it as text")) from error


Piece = tuple[Sequence[int], Sequence[float]]
"""Ids and mask of one piece of a trajectory: a datum, or a node of a graph."""


def read_columns(fields: Mapping[str, Any], *names: str) -> Piece:
    """Return columns of an engine's record as lists, or raise a `UserError` if one is missing."""
    missing = [name for name in names if name not in fields]
    if missing:
        raise UserError(f"no {missing[0]} among {', '.join(fields)}", "pass the data as the engine assembled it")
    ids, mask = (list(fields[name].tolist()) for name in names)
    return ids, mask


def refuse_without_ids(turns: Iterable[Sequence[int]]) -> None:
    """Raise a `UserError` for a sampled turn without ids, which would silently get no credit."""
    if not all(map(len, turns)):
        raise UserError("a sampled turn without ids", "have the client keep token ids, not text alone")


def join_pieces(example: Example, pieces: Sequence[Piece]) -> Trajectory:
    """Join pieces into one trajectory, which starts at the policy's first id.

    Raises:
        UserError: a mask does not fit its ids, or there are no ids.
    """
    for number, (ids, mask) in enumerate(pieces):
        if len(ids) != len(mask):
            raise UserError(
                f"a mask of {len(mask)} for {len(ids)} ids in piece {number} of a trajectory",
                "one number for each id",
            )
    all_ids = [index for ids, _ in pieces for index in ids]
    refuse_without_ids([all_ids])
    all_masks = [int(bool(sampled)) for _, mask in pieces for sampled in mask]
    first = all_masks.index(1) if 1 in all_masks else 0
    return Trajectory(example, all_ids[first:], all_masks[first:])


def split_by_piece(numbers: Rewards | None, pieces: Sequence[Piece]) -> list[Rewards | None]:
    """Return the numbers of a joined trajectory per piece; None for all if `numbers` is None."""
    if numbers is None:
        return [None] * len(pieces)
    ends = np.cumsum([len(ids) for ids, _ in pieces])
    return np.split(np.concatenate([np.zeros(ends[-1] - len(numbers), np.float32), numbers]), ends[:-1])


def pad_word_rewards(outcomes: Sequence[ScoredTrajectory], length: int) -> tuple[Tensor, Tensor]:
    """Return word rewards (B, length), padded on the right, and which rows were judged, (B,)."""
    words = torch.zeros(len(outcomes), length)
    for row, outcome in enumerate(outcomes):
        if outcome.word_rewards is not None:
            words[row, : len(outcome.word_rewards)] = torch.from_numpy(outcome.word_rewards)
    return words, torch.tensor([outcome.word_rewards is not None for outcome in outcomes])


def refuse_not_finite(**weights: float) -> None:
    """Raise a `UserError` for a weight that is not finite: it would make every advantage NaN."""
    for name, weight in weights.items():
        if not math.isfinite(weight):
            raise UserError(f"{name} is {weight}", "give a finite number: 1 changes nothing, 0 leaves it out")


def mix_rewards(
    outcomes: Sequence[ScoredTrajectory],
    batch: Sequence[Trajectory],
    environment: Sequence[Reward] | None = None,
    words_weight: float = 1.0,
    environment_weight: float = 0.0,
) -> list[ScoredTrajectory]:
    """Mix word rewards, the critic's score (weight 1) and the environment's rewards.

    Args:
        environment: the environment's reward of each. A single number is paid on the policy's last
            id. Used only if `environment_weight` is not 0.

    Returns:
        The credit to train on. A failed trajectory stays failed, and one without a reward of the
        environment fails: neither is a reward of 0.

    Raises:
        UserError: a weight is not finite, or the environment's rewards are missing.
    """
    refuse_not_finite(words_weight=words_weight, environment_weight=environment_weight)
    if not environment_weight:
        environment = [0.0] * len(outcomes)
    elif environment is None or len(environment) != len(outcomes):
        count = "no" if environment is None else len(environment)
        raise UserError(f"{count} rewards of the environment for {len(outcomes)} trajectories", "one for each")
    return [
        _mix_one(outcome, trajectory, reward, words_weight, environment_weight)
        for outcome, trajectory, reward in zip(outcomes, batch, environment, strict=True)
    ]


def _mix_one(
    outcome: ScoredTrajectory, trajectory: Trajectory, reward: Reward, words_weight: float, weight: float
) -> ScoredTrajectory:
    if outcome.word_rewards is None or outcome.rewards is None:
        return outcome
    if reward is None or not np.isfinite(reward).all():
        return ScoredTrajectory(failures=(Failure(kind="unsupported", message="no reward of the environment"),))
    per_id = np.zeros_like(outcome.rewards)  # (T,), the environment's reward
    if np.ndim(reward):
        per_id[:] = reward
    else:
        per_id[np.flatnonzero(trajectory.is_sampled)[-1:]] = reward
    words = np.float32(words_weight) * outcome.word_rewards
    return replace(
        outcome,
        word_rewards=words,
        score=(outcome.score or 0.0) + weight * float(per_id.sum()) if weight else outcome.score,
        rewards=words + (outcome.rewards - outcome.word_rewards) + np.float32(weight) * per_id,
    )


def compute_advantages(
    outcomes: Sequence[ScoredTrajectory],
    groups: Iterable[Hashable],
    batch: Sequence[Trajectory],
) -> list[Rewards | None]:
    """Return A = group(score) + words (`rl.advantage.group_advantages`) for each trajectory's ids.

    Args:
        groups: equal for trajectories that answer one prompt, in any order. The baseline of a group
            is the mean over whole trajectories.

    Returns:
        (T,) per trajectory, exactly 0 at ids that the policy did not sample. None where the
        critique failed; such a trajectory counts in no baseline. A trajectory without a score is in
        no group and gets its word rewards only.
    """
    masks = [trajectory.is_sampled for trajectory in batch]
    members: dict[Hashable, list[int]] = {}
    for row, (outcome, group) in enumerate(zip(outcomes, groups, strict=True)):
        ungrouped = outcome.failures or outcome.score is None
        members.setdefault(("alone", row) if ungrouped else ("group", group), []).append(row)
    advantages: list[Rewards | None] = [None] * len(outcomes)
    for rows in members.values():
        group_outcomes, length = [outcomes[row] for row in rows], max(len(masks[row]) for row in rows)
        words, is_judged = pad_word_rewards(group_outcomes, length)
        mask = torch.tensor([masks[row] + [False] * (length - len(masks[row])) for row in rows])
        scores = torch.tensor([outcome.score or 0.0 for outcome in group_outcomes])
        values = group_advantages(scores, words, mask & is_judged.view(-1, 1), len(rows))
        for row, numbers, usable in zip(rows, values, is_judged.tolist(), strict=True):
            advantages[row] = numbers[: len(masks[row])].numpy() if usable else None
    return advantages


def piece_advantages(
    credit: TokenCredit,
    groups: Sequence[Hashable],
    examples: Sequence[Example],
    pieces: Sequence[Sequence[Piece]],
    environment: Sequence[Reward] | None,
    words_weight: float,
    environment_weight: float,
) -> tuple[list[ScoredTrajectory], list[list[Rewards | None]]]:
    """Return the critic's results, and for each trajectory the advantages of its pieces.

    Arguments as in `mix_rewards`. Advantages are None where the critique failed.
    """
    batch = [join_pieces(*item) for item in zip(examples, pieces, strict=True)]
    outcomes = credit.score_batch(batch)
    trained = mix_rewards(outcomes, batch, environment, words_weight, environment_weight)
    advantages = compute_advantages(trained, groups, batch)
    return outcomes, [split_by_piece(*item) for item in zip(advantages, pieces, strict=True)]


def masked_rewards(outcome: ScoredTrajectory, trajectory: Trajectory) -> tuple[list[float], list[int]]:
    """Return rewards and mask of T ids; both are zeros where the critique failed.

    For engines that have no other way to leave a trajectory out of the loss.
    """
    if outcome.rewards is None:
        return [0.0] * len(trajectory.ids), [0] * len(trajectory.ids)
    return outcome.rewards.tolist(), [int(sampled) for sampled in trajectory.is_sampled]
