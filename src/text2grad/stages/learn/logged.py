"""Answers on record that a policy may be trained on: those of a feedback file, checked before anything is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from text2grad.config import Config
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Transcript
from text2grad.stages.learn.reward_data import splits_of
from text2grad.stages.run.folder import read_feedback
from text2grad.tasks.base import Task, question_of, split_of, words_of


class Answers(NamedTuple):
    """Records to train on, in their order, and how many of the file are left out, by reason."""

    records: list[Feedback]
    left_out: Mapping[str, int]


TRANSCRIPTS_TRAIN = "train-reward and train --offline FILE learn from them"
"""What learns from records of several turns."""


def refuse_transcripts(records: Iterable[Feedback], what: str) -> None:
    """Raises UserError: `what` learns from single answers, and some of the records have several turns."""
    several = [isinstance(record.response, Transcript) for record in records]
    if any(several):
        counted = f"{sum(several)} of {len(several)} records have several turns"
        raise UserError(f"{what} learns from single answers, and {counted}", TRANSCRIPTS_TRAIN)


def answers_in(path: Path, config: Config, task: Task) -> Answers:
    """The records of a file without failed critiques, and without those about prompts that the task holds out.

    Raises:
        UserError: the file holds no such record, one without a response, or none about a prompt of the task.
    """
    records = read_feedback(path)
    if empty := [record.id for record in records if not record.response.strip()]:
        problem = f"{path}: {len(empty)} of {len(records)} records have no response, {empty[0]!r} first"
        raise UserError(problem, "leave them out: there is nothing to learn from")
    splits = splits_of(task, config.task)
    words = [words_of(question_of(record)) for record in records]
    if not any(each in splits for each in words):
        raise UserError(
            f"{path}: none of {len(records)} records is about a prompt of the task {config.task.name!r}",
            "take the configuration they were made with, or --task.data imported after text2grad import",
        )
    kept, left_out = [], Counter[str](failed_records=0, heldout_records=0)
    for record, question in zip(records, words, strict=True):
        if record.error is not None:
            left_out["failed_records"] += 1
        elif splits.get(question, split_of(question, config.task)) == "heldout":
            left_out["heldout_records"] += 1
        else:
            kept.append(record)
    if not kept:
        reasons = " and ".join(f"{count} {name.replace('_', ' ')}" for name, count in left_out.items() if count)
        raise UserError(f"{path}: nothing to train on, {reasons}", "text2grad annotate makes more")
    return Answers(kept, dict(left_out))
