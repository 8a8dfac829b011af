"""Add credit for words to datums of the Tinker protocol (the cloud, SkyRL's server, verl's).

Call it after the cookbook's `assemble_training_data`, before the mask is removed:

    data, metadata = assemble_training_data(trajectory_groups, advantages)
    data, outcomes = with_credit(data, metadata, credit, examples)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from text2grad.align.rewards import ScoredTrajectory, TokenCredit
from text2grad.feedback import Example
from text2grad.plugins.credit import piece_advantages, read_columns


def with_credit(
    data: Sequence[Any],
    metadata: Any,
    credit: TokenCredit,
    examples: Sequence[Example],
    *,
    words_weight: float = 1.0,
    environment_weight: float = 0.0,
    rewards: Sequence[Sequence[float]] | None = None,
) -> tuple[list[Any], list[ScoredTrajectory]]:
    """Return the datums with an advantage for each target token, and the critic's results.

    Targets and advantages are at the same positions, so nothing is shifted.

    Args:
        metadata: `group_idx` and `traj_idx` of each datum; a trajectory may have several datums.
        examples: the example that each group answers.
        words_weight: factor on word rewards.
        environment_weight: factor on the environment's rewards.
        rewards: for each group, the environment's reward of each trajectory (the cookbook's
            `group.get_total_rewards()`).

    Returns:
        The datums, without those of trajectories whose critique failed, and one result for each
        trajectory.

    Raises:
        UserError: a datum has no `mask`, its mask does not fit, a weight is not finite, or
            `environment_weight` is not 0 and `rewards` are missing.
    """
    datums: dict[tuple[int, int], list[Any]] = {}
    for datum, indices in zip(data, metadata, strict=True):
        datums.setdefault((indices["group_idx"], indices["traj_idx"]), []).append(datum)
    pieces = [
        [read_columns(datum.loss_fn_inputs, "target_tokens", "mask") for datum in trajectory]
        for trajectory in datums.values()
    ]
    groups = [group for group, _ in datums]
    environment = None if rewards is None else [rewards[group][number] for group, number in datums]
    group_examples = [examples[group] for group in groups]
    outcomes, advantages = piece_advantages(
        credit, groups, group_examples, pieces, environment, words_weight, environment_weight
    )
    credited = [
        replace(datum, loss_fn_inputs={**datum.loss_fn_inputs, "advantages": numbers})
        for datum, numbers in zip(chain(*datums.values()), chain(*advantages), strict=True)
        if numbers is not None
    ]
    return credited, outcomes
