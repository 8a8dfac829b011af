"""The prompts of a run: those of its task, or those that people's feedback is about. No torch."""

from __future__ import annotations

from pathlib import Path

from text2grad.config import Config
from text2grad.errors import UserError
from text2grad.tasks.base import Task, load_task

IMPORTED = "imported"
"""The value of `task.data` for prompts of people's feedback."""


def imported_file(config: Config) -> Path:
    """Where `text2grad import` leaves the feedback of a run."""
    return config.run.folder / "feedback.jsonl"


def task_of(config: Config) -> Task:
    """The task of a run. With `task.data: imported` its prompts are those of the imported feedback.

    Raises:
        UserError: nothing was imported, or the task cannot be loaded.
    """
    if config.task.data != IMPORTED:
        return load_task(config.task)
    path = imported_file(config)
    if not path.is_file():
        raise UserError(f"no feedback in {path}", "text2grad import FILE --config NAME|FILE first")
    return load_task(config.task.model_copy(update={"data": str(path)}))
