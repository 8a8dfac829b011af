"""Datums of the Tinker protocol with credit for words: the cloud, SkyRL's own server, verl's.

Made for the cookbook's `assemble_training_data`, before the mask is removed and the data sent:

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
from text2grad.plugins.credit import advantages_apart, columns_of


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
    """The datums with an advantage for each target token, and what the critic gave each trajectory.

    `metadata` says of each datum its `group_idx` and `traj_idx`; a trajectory may have several.
    `examples[i]` is what group i answers, `rewards[i]` what the environment gave its trajectories
    (the cookbook's `group.get_total_rewards()`). The datums of a trajectory whose critique failed
    are left out. Targets and advantages are at the same positions, so nothing is shifted.

    Raises:
        UserError: a datum has no `mask`, its mask does not fit, a weight is not finite, or
            `environment_weight` is not 0 and `rewards` are missing.
    """
    datums: dict[tuple[int, int], list[Any]] = {}
    for datum, at in zip(data, metadata, strict=True):
        datums.setdefault((at["group_idx"], at["traj_idx"]), []).append(datum)
    pieces = [[columns_of(each.loss_fn_inputs, "target_tokens", "mask") for each in row] for row in datums.values()]
    groups = [group for group, _ in datums]
    environment = None if rewards is None else [rewards[group][number] for group, number in datums]
    weights, asked = (words_weight, environment_weight), [examples[group] for group in groups]
    outcomes, paid = advantages_apart(credit, groups, asked, pieces, environment, *weights)
    both = zip(chain(*datums.values()), chain(*paid), strict=True)
    fields = [(datum, {"advantages": numbers}) for datum, numbers in both if numbers is not None]
    return [replace(each, loss_fn_inputs={**each.loss_fn_inputs, **new}) for each, new in fields], outcomes
