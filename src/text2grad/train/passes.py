"""Run a batch through a model a few rows at a time, and fewer when memory runs out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from text2grad.errors import is_out_of_memory
from text2grad.policy.model import Policy

T = TypeVar("T")


class PassSize:
    """The number of rows per pass: `size` at first, halved whenever memory runs out.

    `setting` is the user's name for it.
    """

    def __init__(self, size: int, setting: str = "micro_batch_size") -> None:
        self.size = size
        self.setting = setting

    def run(self, work: Callable[[int], T], undo: Callable[[], None]) -> T:
        """Return `work(size)`; if memory runs out, undo it and repeat it with half the size.

        Raises:
            RuntimeError, MemoryError: a single row does not fit.
        """
        while True:
            try:
                return work(self.size)
            except (RuntimeError, MemoryError) as error:
                if self.size == 1 or not is_out_of_memory(error):
                    raise
            undo()  # outside the handler, where the error would keep the tensors of `work` alive
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.size //= 2
            print(f"out of memory: continues with {self.setting} {self.size}, the same update", file=sys.stderr)


def largest_divisor(count: int, limit: int) -> int:
    """Return the largest divisor of `count` that is at most `limit`."""
    return next(size for size in range(max(1, min(count, limit)), 0, -1) if count % size == 0)


def accumulate(
    policy: Policy, rows: Any, terms: Callable[[Any], tuple[Tensor, dict[str, Tensor]]], size: PassSize
) -> dict[str, float]:
    """Add the gradient of a batch to the policy's; return its loss terms, summed over the passes.

    Args:
        rows: a tensor or a list, sorted by length, so that the rows of a pass need little padding.
        terms: returns, for some rows, their share of the loss and of each logged term. The
            denominators are those of the whole batch, so the size of a pass does not change the
            result.
    """

    def run_passes(rows_per_pass: int) -> dict[str, float]:
        totals: dict[str, float] = {}
        for first in range(0, len(rows), rows_per_pass):
            loss, shares = terms(rows[first : first + rows_per_pass])
            # Per pass: gradients add up, and the activations of one pass are freed before the next.
            loss.backward()  # type: ignore[no-untyped-call]
            totals = {name: totals.get(name, 0.0) + float(x.detach()) for name, x in shares.items()}
        return totals

    return size.run(run_passes, undo=partial(policy.zero_grad, set_to_none=True))
