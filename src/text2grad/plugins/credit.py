"""What all plug-ins share: examples of an engine's rows, advantages of what was paid, and what is
refused."""

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
"""The metric of the share of trajectories whose critique failed."""
Reward = float | Sequence[float] | None
"""The reward an environment gave a trajectory: one number, one for each of its T ids, or none."""


def metrics_of(outcomes: Sequence[ScoredTrajectory], environment: Sequence[Reward] = ()) -> dict[str, float]:
    """Describe what a batch of trajectories earned.

    Args:
        outcomes: what the critic gave them.
        environment: the environment's own reward of each of them, where it is mixed in.

    Returns:
        The share of failed critiques; over the judged trajectories, the share of ids that their
        words pay, the mean of what these ids are paid, and the mean score; quotes of others' words
        and lost ones per trajectory; the mean of the environment's rewards.
    """
    words = [outcome.word_rewards for outcome in outcomes if outcome.word_rewards is not None]
    ids = np.concatenate([np.zeros(0, np.float32), *words])
    paid = ids[ids != 0]
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    rewards = [float(np.sum(reward)) for reward in environment if reward is not None]
    return {
        FAILED: sum(outcome.failed for outcome in outcomes) / max(1, len(outcomes)),
        "text2grad/paid_share": len(paid) / max(1, len(ids)),
        "text2grad/words_mean": float(paid.mean()) if len(paid) else 0.0,
        "text2grad/score_mean": sum(scores) / max(1, len(scores)),
        "text2grad/foreign_quotes": sum(outcome.foreign_quotes for outcome in outcomes) / max(1, len(outcomes)),
        "text2grad/lost_quotes": sum(outcome.lost_quotes for outcome in outcomes) / max(1, len(outcomes)),
        **({"text2grad/environment_mean": sum(rewards) / max(1, len(rewards))} if len(environment) else {}),
    }


def require(package: str, tested: str, install: str) -> None:
    """Refuse a package that is missing, or of another version than `tested` ("1.16" or "0.9.1").

    Raises:
        UserError: in one line, with `install`, the command that brings it.
    """
    try:
        found = version(package)
    except PackageNotFoundError:
        raise UserError(f"this needs {package} {tested}", install) from None
    if not f"{found}.".startswith(f"{tested}."):
        raise UserError(f"{package} {found}: the plug-in is written for {tested}", install)


def refuse_sums(engine: str, estimator: str, keeping: Sequence[str]) -> None:
    """Refuse an estimator that adds up the rewards of a trajectory before it uses them.

    Raises:
        UserError: the estimator is not among those that keep a reward at its token.
    """
    if estimator not in keeping:
        raise UserError(
            f"{engine}'s {estimator} adds up the rewards of a trajectory, and credit for words is lost",
            f"one of {', '.join(keeping)}",
        )


def example_of(prompt: Any, row: Mapping[str, Any]) -> Example:
    """A row of an engine's data set as an example; a plain prompt is the user's turn.

    `id` and `reference` are those of the example, all other columns its `meta`. The critic reads
    text: of messages in parts their texts, calls of tools as most models write them.

    Raises:
        UserError: a message holds what is no text, an image say.
    """
    turns = prompt if prompt and not isinstance(prompt, str) else [{"role": "user", "content": prompt or ""}]
    known = {name: str(row[name]) for name in ("id", "reference") if row.get(name) is not None}
    meta = {name: value for name, value in row.items() if name not in known}
    return Example(prompt=tuple(read_messages(turns)), meta=meta, **{"id": "-", **known})


def read_messages(turns: Iterable[Any]) -> list[Message]:
    """Read messages of an engine as the critic is shown them.

    Raises:
        UserError: one holds what is no text.
    """
    try:
        return parse_messages(turns, partial(default_turn_text, cure="to the critic alone: ids stay as they are"))
    except ValueError as error:
        problem = f"a message that no critic can read: {error}"
        raise UserError(problem, getattr(error, "cure", "write it as text")) from error


Piece = tuple[Sequence[int], Sequence[float]]
"""Ids and mask of one of the pieces in which an engine holds a trajectory: datums, nodes of a
graph."""


def columns_of(fields: Mapping[str, Any], *names: str) -> Piece:
    """Columns of an engine's record as lists.

    Raises:
        UserError: it does not have one of them.
    """
    missing = [name for name in names if name not in fields]
    if missing:
        raise UserError(f"no {missing[0]} among {', '.join(fields)}", "hand it in as the engine assembled it")
    ids, mask = (list(fields[name].tolist()) for name in names)
    return ids, mask


def refuse_without_ids(turns: Iterable[Sequence[int]]) -> None:
    """Before turns of the policy's own are paid: one whose ids nobody kept would be paid nothing in
    silence.

    Raises:
        UserError: one has none.
    """
    if not all(map(len, turns)):
        raise UserError("a turn of the policy's own without ids", "have the client keep token ids, not text alone")


def joined(example: Example, pieces: Sequence[Piece]) -> Trajectory:
    """One trajectory of its pieces; what stands before the policy's first id is the prompt, and is
    left out.

    Raises:
        UserError: a mask does not fit its ids, or there are none.
    """
    for number, (ids, mask) in enumerate(pieces):
        if len(ids) != len(mask):
            raise UserError(
                f"a mask of {len(mask)} for {len(ids)} ids in piece {number} of a trajectory",
                "one number for each id",
            )
    ids = [index for each, _ in pieces for index in each]
    refuse_without_ids([ids])
    own = [int(bool(sampled)) for _, mask in pieces for sampled in mask]
    first = own.index(1) if 1 in own else 0
    return Trajectory(example, ids[first:], own[first:])


def apart(numbers: Rewards | None, pieces: Sequence[Piece]) -> list[Rewards | None]:
    """The numbers of a joined trajectory for each of its pieces; None where there are none."""
    if numbers is None:
        return [None] * len(pieces)
    ends = np.cumsum([len(ids) for ids, _ in pieces])
    return np.split(np.concatenate([np.zeros(ends[-1] - len(numbers), np.float32), numbers]), ends[:-1])


def words_of(outcomes: Sequence[ScoredTrajectory], length: int) -> tuple[Tensor, Tensor]:
    """What tokens earned by themselves, (B, length), padded on the right, and which rows were
    judged, (B,)."""
    words = torch.zeros(len(outcomes), length)
    for row, outcome in enumerate(outcomes):
        if outcome.word_rewards is not None:
            words[row, : len(outcome.word_rewards)] = torch.from_numpy(outcome.word_rewards)
    return words, torch.tensor([outcome.word_rewards is not None for outcome in outcomes])


def refuse_weight(name: str, weight: float) -> None:
    """Refuse a weight that is not a finite number: every advantage would be NaN."""
    if not math.isfinite(weight):
        raise UserError(f"{name} is {weight}", "give a finite number: 1 changes nothing, 0 leaves it out")


def mixed(
    outcomes: Sequence[ScoredTrajectory],
    batch: Sequence[Trajectory],
    environment: Sequence[Reward] | None = None,
    words_weight: float = 1.0,
    environment_weight: float = 0.0,
) -> list[ScoredTrajectory]:
    """Mix the words of a critic, its score (which weighs 1) and the environment's own rewards.

    Args:
        outcomes: what the critic gave each trajectory.
        batch: the trajectories, of T ids each.
        environment: the environment's own reward of each; it stands on the last id of the policy's
            own, or where the environment put it. Read only if `environment_weight` is not 0.
        words_weight: factor on the rewards of words.
        environment_weight: factor on the environment's rewards.

    Returns:
        The credit to train on. A failed trajectory stays failed, and one that the environment did
        not score fails: neither is a reward of 0.

    Raises:
        UserError: a weight is not finite, or the environment's rewards are missing.
    """
    refuse_weight("words_weight", words_weight)
    refuse_weight("environment_weight", environment_weight)
    if not environment_weight:
        environment = [0.0] * len(outcomes)
    elif environment is None or len(environment) != len(outcomes):
        count = "no" if environment is None else len(environment)
        raise UserError(f"{count} rewards of the environment for {len(outcomes)} trajectories", "one for each")
    weights = (words_weight, environment_weight)
    return [_mixed(*each, *weights) for each in zip(outcomes, batch, environment, strict=True)]


def _mixed(
    outcome: ScoredTrajectory, trajectory: Trajectory, reward: Reward, words_weight: float, weight: float
) -> ScoredTrajectory:
    if outcome.word_rewards is None or outcome.rewards is None:
        return outcome
    if reward is None or not np.isfinite(reward).all():
        return ScoredTrajectory(failures=(Failure(kind="unsupported", message="no reward of the environment"),))
    given = np.zeros_like(outcome.rewards)
    if np.ndim(reward):
        given[:] = reward
    else:
        mask = trajectory.mask if trajectory.mask is not None else [1] * len(given)
        given[np.flatnonzero(mask)[-1:]] = reward
    words = np.float32(words_weight) * outcome.word_rewards
    return replace(
        outcome,
        word_rewards=words,
        score=(outcome.score or 0.0) + weight * float(given.sum()) if weight else outcome.score,
        rewards=words + (outcome.rewards - outcome.word_rewards) + np.float32(weight) * given,
    )


def advantages_of(
    outcomes: Sequence[ScoredTrajectory],
    groups: Iterable[Hashable],
    batch: Sequence[Trajectory],
) -> list[Rewards | None]:
    """A = group(score) + words (`rl.advantage.group_advantages`) of each trajectory's T ids.

    `groups` says which answer one prompt, in any order; the baseline is the group's, of whole
    trajectories. Ids that the policy did not sample get exactly 0. None where the critique failed,
    which counts in no baseline; without a score a trajectory is in no group, and its words count
    alone.
    """
    own = [each.mask if each.mask is not None else [1] * len(each.ids) for each in batch]
    members: dict[Hashable, list[int]] = {}
    for row, (outcome, group) in enumerate(zip(outcomes, groups, strict=True)):
        alone = outcome.failures or outcome.score is None
        members.setdefault(("alone", row) if alone else ("group", group), []).append(row)
    found: list[Rewards | None] = [None] * len(outcomes)
    for rows in members.values():
        chosen, length = [outcomes[row] for row in rows], max(len(own[row]) for row in rows)
        words, judged = words_of(chosen, length)
        learned = torch.tensor([[*map(bool, own[row])] + [False] * (length - len(own[row])) for row in rows])
        gains = torch.tensor([outcome.score or 0.0 for outcome in chosen])
        paid = group_advantages(gains, words, learned & judged.view(-1, 1), len(rows))
        for row, numbers, is_judged in zip(rows, paid, judged.tolist(), strict=True):
            found[row] = numbers[: len(own[row])].numpy() if is_judged else None
    return found


def advantages_apart(
    credit: TokenCredit,
    groups: Sequence[Hashable],
    examples: Sequence[Example],
    pieces: Sequence[Sequence[Piece]],
    environment: Sequence[Reward] | None,
    words_weight: float,
    environment_weight: float,
) -> tuple[list[ScoredTrajectory], list[list[Rewards | None]]]:
    """Return what the critic gave each trajectory, and the advantages of its pieces (see `mixed`);
    None where it failed."""
    batch = [joined(*each) for each in zip(examples, pieces, strict=True)]
    outcomes = credit.score_batch(batch)
    paid = advantages_of(mixed(outcomes, batch, environment, words_weight, environment_weight), groups, batch)
    return outcomes, [apart(*each) for each in zip(paid, pieces, strict=True)]


def rewards_of(outcome: ScoredTrajectory, trajectory: Trajectory) -> tuple[list[float], list[int]]:
    """Rewards and mask of T ids for an engine that has no other way to leave a trajectory out:
    zeros, and a mask of zeros, where the critique failed."""
    if outcome.rewards is None:
        return [0.0] * len(trajectory.ids), [0] * len(trajectory.ids)
    mask = trajectory.mask if trajectory.mask is not None else [1] * len(trajectory.ids)
    return outcome.rewards.tolist(), [int(bool(own)) for own in mask]
