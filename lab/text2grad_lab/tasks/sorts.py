"""Splits of tasks whose examples are of a few sorts, some of which are held out whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from text2grad.tasks.base import Split, TaskSettings

SIZES: dict[Split, int] = {"sft": 400, "train": 400, "heldout": 200}
"""Examples of a split; of `sft`, which `task.limit` changes, the default."""
S = TypeVar("S")


def sorts_of(split: Split, sorts: Sequence[S], name: str, settings: TaskSettings) -> tuple[list[S], int]:
    """The sorts of a split, and how many examples it has; `task.heldout_share` of them are held
    out.

    `name` is what the sorts are called: tasks of one seed draw theirs apart.
    """
    drawn = [*sorts]
    random.Random(f"{settings.seed}/{name}").shuffle(drawn)
    cut = round(settings.heldout_share * len(drawn))
    selected = drawn[:cut] if split == "heldout" else drawn[cut:]
    count = settings.limit if split == "sft" and settings.limit else SIZES[split]
    return selected, count if selected else 0
