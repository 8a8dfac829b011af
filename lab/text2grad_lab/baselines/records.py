"""Refuse records that the baselines cannot train on."""

from __future__ import annotations

from collections.abc import Iterable

from text2grad.errors import UserError
from text2grad.feedback import Feedback, Transcript


def refuse_transcripts(records: Iterable[Feedback], method: str) -> None:
    """Refuse records of several turns.

    Raises:
        UserError: some of the records have several turns.
    """
    several = [isinstance(record.response, Transcript) for record in records]
    if any(several):
        problem = (
            f"{method} learns from single answers, and {sum(several)} of {len(several)} records have several turns"
        )
        raise UserError(problem, "train-reward and train --offline FILE learn from them")
