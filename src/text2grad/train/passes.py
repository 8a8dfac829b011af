"""How a batch goes through a model: a few rows at a time, in one process or several."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from text2grad.durable.guard import is_out_of_memory
from text2grad.durable.processes import ALONE, Ranks
from text2grad.policy.model import Policy

T = TypeVar("T")


class PassSize:
    """How many rows go through a model at a time: `size` at first, and half as many whenever memory runs out.

    `setting` is where the user finds it. Where weights are split the size stays what it is, for all processes must
    make the same passes.
    """

    def __init__(self, size: int, setting: str = "micro_batch_size", ranks: Ranks = ALONE) -> None:
        self.size = size
        self.setting = setting
        self.ranks = ranks

    def fitting(self, work: Callable[[int], T], undo: Callable[[], None]) -> T:
        """`work(size)`. Where memory runs out it is undone and done again with half the size.

        Raises:
            RuntimeError, MemoryError: one row alone does not fit, or the size may not change.
        """
        while True:
            try:
                return work(self.size)
            except (RuntimeError, MemoryError) as error:
                if self.ranks.sharded or self.size == 1 or not is_out_of_memory(error):
                    raise
            undo()  # not above: the error holds what the work had allocated
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.size //= 2
            print(f"out of memory: continues with {self.setting} {self.size}, the same update", file=sys.stderr)


def accumulate(
    policy: Policy, rows: Any, terms: Callable[[Any], tuple[Tensor, dict[str, Tensor]]], size: PassSize
) -> dict[str, float]:
    """Add the gradient of a batch to the policy's, and return the terms of its loss, summed over the passes.

    `terms` gives, for some rows, their share of the loss and of each logged term, with denominators of the whole
    batch, so that neither the size of a pass nor the number of processes changes the result. `rows`, a tensor or a
    list, are in order of length, so that those of a pass are of similar length and each process has all lengths.
    All processes make as many passes; one that has run out of rows repeats some with weight 0.
    """
    ranks = size.ranks
    mine = rows[ranks.rank :: ranks.count]  # every count-th row: short and long ones for each process

    def passes(rows_each: int) -> dict[str, float]:
        totals: dict[str, float] = {}
        for number in range(ranks.passes(len(rows), rows_each)):
            chosen = mine[number * rows_each : (number + 1) * rows_each]
            counted = 1.0 if len(chosen) else 0.0
            loss, shares = terms(chosen if counted else rows[:1])
            (counted * loss).backward()  # type: ignore[no-untyped-call]
            totals = {name: totals.get(name, 0.0) + counted * float(x.detach()) for name, x in shares.items()}
        return totals

    with ranks.passing():
        totals = size.fitting(passes, undo=partial(policy.zero_grad, set_to_none=True))
    ranks.all_reduce_gradients(policy.parameters())
    return ranks.all_reduce(totals)
