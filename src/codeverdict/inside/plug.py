"""Free places in the server's memory, taken before the first fork.

Python's allocator gives out the free places of half-used pools first, and these lie all over the memory of a warm
process: a job that takes a few hundred objects would copy a page for nearly every one. With them taken, what a job
takes lies close together in pools of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

_STEP, _LARGEST = 16, 512
_POOL_BYTES, _POOL_HEADER = 16 << 10, 48
_IN_ORDER = 4
_THRESHOLD = 20_000  # Python's 700 has every job look for garbage several times
_MOST = 20_000
_taken: list[Any] = []


def plug() -> None:
    """Fill the half-used pools of every size of small objects; the collector leaves out what is there now."""
    gc.set_threshold(_THRESHOLD)
    gc.collect()  # empties Python's lists of free objects too
    for size in range(_STEP, _LARGEST + 1, _STEP):
        _fill(_maker(size), size)
    gc.freeze()


def _fill(make: Callable[[], Any], size: int) -> None:
    """Make objects of this size until some come in order from the beginning of a pool."""
    run = last = 0
    for _ in range(_MOST):
        made = make()
        _taken.append(made)
        place = id(made)
        begins = place % _POOL_BYTES < _POOL_HEADER + 2 * size
        run = run + 1 if run and last < place <= last + 3 * size else int(begins)
        last = place
        if run == _IN_ORDER:
            return


def _maker(size: int) -> Callable[[], Any]:
    """Makes an object that takes `size` bytes, of a kind the collector does not track."""
    if size == 16:
        return object
    if size == 32:
        return lambda: float("1.5")
    return lambda: bytes(size - 33)
