"""Records that the baselines train on: split into training and held-out data, of single answers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from text2grad.errors import UserError
from text2grad.feedback import Feedback, Transcript

T = TypeVar("T")


@dataclass(frozen=True)
class SplitData(Generic[T]):
    """Data to train on and to measure on, no question in both, and how many records gave none, by the reason."""

    train: list[T]
    heldout: list[T]
    left_out: Counter[str]

    @property
    def records(self) -> int:
        """Those that were read."""
        return len(self.train) + len(self.heldout) + self.left_out.total()

    def fitting(self, tokens: Callable[[Sequence[T]], Iterable[int]], limit: int | None, name: str) -> SplitData[T]:
        """Keep the items that fit the model whole, and report the others: half an answer would teach to stop early.

        `tokens` counts those of each piece of data, `name` is what they are called.
        """

        def kept(data: Sequence[T]) -> list[T]:
            return [each for each, count in zip(data, tokens(data), strict=True) if limit is None or count <= limit]

        train, heldout = kept(self.train), kept(self.heldout)
        long = len(self.train) + len(self.heldout) - len(train) - len(heldout)
        left_out = self.left_out + Counter({"too_long": long})
        if left_out:
            words = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.items())
            print(f"left out of the {name}: {words}", file=sys.stderr)
        return SplitData(train, heldout, left_out)


def refuse_transcripts(records: Iterable[Feedback], what: str) -> None:
    """Refuse records of several turns.

    Raises:
        UserError: `what` learns from single answers, and some of the records have several turns.
    """
    several = [isinstance(record.response, Transcript) for record in records]
    if any(several):
        problem = (
            f"{what} learns from single answers, and {sum(several)} of {len(several)} records have several turns"
        )
        raise UserError(problem, "train-reward and train --offline FILE learn from them")
