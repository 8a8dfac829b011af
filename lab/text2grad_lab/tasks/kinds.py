"""Splits of tasks with a few kinds of examples, a share of them held out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from text2grad.tasks.base import Split, TaskSettings

SIZES: dict[Split, int] = {"sft": 400, "train": 400, "heldout": 200}
"""The number of examples of a split; `task.limit` changes that of `sft`."""
K = TypeVar("K")


def select_kinds(split: Split, kinds: Sequence[K], name: str, settings: TaskSettings) -> tuple[list[K], int]:
    """Return the kinds of a split, with `task.heldout_share` of them held out, and its size.

    `name` and the task's seed seed the draw.
    """
    drawn = [*kinds]
    random.Random(f"{settings.seed}/{name}").shuffle(drawn)
    cut = round(settings.heldout_share * len(drawn))
    selected = drawn[:cut] if split == "heldout" else drawn[cut:]
    count = settings.limit if split == "sft" and settings.limit else SIZES[split]
    return selected, count if selected else 0
