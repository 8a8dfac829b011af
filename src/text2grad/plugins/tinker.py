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

from text2grad.align.rewards import TokenCredit
from text2grad.plugins.credit import advantages_apart, columns_of


def with_credit(data: Sequence[Any], metadata: Any, credit: TokenCredit, examples: Any, weight: float = 1.0) -> Any:
    """The datums with an advantage for each target token, and what each trajectory was paid.

    `metadata` says of each datum its `group_idx` and `traj_idx`; a trajectory may have several. `examples[i]` is
    what group i answers, `weight` that of the words. The datums of a trajectory whose critique failed are left out.
    Targets and advantages stand side by side, so nothing is shifted.

    Raises:
        UserError: a datum has no `mask`, its mask does not fit, or its ids are of another tokenizer.
    """
    rows: dict[tuple[int, int], list[Any]] = {}
    for datum, at in zip(data, metadata, strict=True):
        rows.setdefault((at["group_idx"], at["traj_idx"]), []).append(datum)
    pieces = [[columns_of(each.loss_fn_inputs, "target_tokens", "mask") for each in row] for row in rows.values()]
    groups = [group for group, _ in rows]
    outcomes, paid = advantages_apart(credit, groups, [examples[group] for group in groups], pieces, weight)
    both = zip(chain(*rows.values()), chain(*paid), strict=True)
    fields = [(datum, {"advantages": numbers}) for datum, numbers in both if numbers is not None]
    return [replace(each, loss_fn_inputs={**each.loss_fn_inputs, **new}) for each, new in fields], outcomes
