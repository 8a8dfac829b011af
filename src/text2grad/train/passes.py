"""Passes of a batch through a model, a few rows at a time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from text2grad.durable.guard import is_out_of_memory
from text2grad.policy.model import Policy

T = TypeVar("T")


class PassSize:
    """How many rows go through a model at a time: `size` at first, and half as many whenever memory
    runs out.

    `setting` is where the user finds it.
    """

    def __init__(self, size: int, setting: str = "micro_batch_size") -> None:
        self.size = size
        self.setting = setting

    def fitting(self, work: Callable[[int], T], undo: Callable[[], None]) -> T:
        """`work(size)`. Where memory runs out it is undone and done again with half the size.

        Raises:
            RuntimeError, MemoryError: one row alone does not fit.
        """
        while True:
            try:
                return work(self.size)
            except (RuntimeError, MemoryError) as error:
                if self.size == 1 or not is_out_of_memory(error):
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
    """Add the gradient of a batch to the policy's, and return the terms of its loss, summed over
    the passes.

    `terms` gives, for some rows, their share of the loss and of each logged term, with denominators
    of the whole batch, so that the size of a pass does not change the result. `rows`, a tensor or a
    list, are in order of length: those of a pass are of similar length.
    """

    def passes(rows_each: int) -> dict[str, float]:
        totals: dict[str, float] = {}
        for first in range(0, len(rows), rows_each):
            loss, shares = terms(rows[first : first + rows_each])
            loss.backward()  # type: ignore[no-untyped-call]
            totals = {name: totals.get(name, 0.0) + float(x.detach()) for name, x in shares.items()}
        return totals

    return size.fitting(passes, undo=partial(policy.zero_grad, set_to_none=True))
