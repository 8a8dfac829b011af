"""Scoring a batch while it is critiqued: neither depends on the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from text2grad.durable.log import Stopwatch
from text2grad.durable.processes import ALONE, Ranks
from text2grad.errors import UserError
from text2grad.feedback import Critic, overlap_of

A = TypeVar("A")
B = TypeVar("B")


def overlaps(critic: Critic, wanted: Literal["auto", "on", "off"], sharded: bool = False) -> bool:
    """Whether a critic is to work while the policy is scored (`ppo.overlap`).

    Never where weights are split: a critic that fails during a collective pass could not tell the other processes.

    Raises:
        UserError: it is `on`, and the critic is made of the policy's own weights, or these are split.
    """
    able = overlap_of(critic)
    if wanted == "on" and sharded:
        raise UserError("split weights and critics take turns", "ppo.overlap auto, or run.parallel ddp")
    if wanted == "on" and able == "never":
        raise UserError("the critic shares its weights with the policy, so they take turns", "ppo.overlap auto")
    return wanted == "on" or (wanted == "auto" and able == "helps" and not sharded)


def together(
    critique: Callable[[], A],
    score: Callable[[], B],
    overlap: bool,
    watch: Stopwatch,
    ranks: Ranks = ALONE,
) -> tuple[A, B]:
    """The results of both. With `overlap`, `critique` runs in a thread, which has ended when this ends.

    Each process works alone, but for the passes of split weights; all meet after each of the two, or at the end
    with `overlap`, and fail if one did. What either raises is raised here; if both do, `score`'s.

    `watch` gets the seconds that nothing but `critique` or `score` took, and as `seconds_critique_hidden` those of
    `critique` that passed during `score`.
    """
    watch.seconds["seconds_critique_hidden"] = 0.0
    if not overlap:
        with ranks.barrier():
            said = critique()
        watch.lap("critique")
        with ranks.passing():
            found = score()
        watch.lap("score")
        return said, found
    began = time.perf_counter()
    ended: list[float] = []
    with ranks.barrier(), ThreadPoolExecutor(1, thread_name_prefix="critic") as pool:
        pending = pool.submit(critique)
        pending.add_done_callback(lambda _: ended.append(time.perf_counter()))
        found = score()
        watch.lap("score")
        scored = time.perf_counter()
        said = pending.result()
    watch.lap("critique")
    watch.seconds["seconds_critique_hidden"] = min(*ended, scored) - began
    return said, found
