"""The prompts of a run: of its task, of people's feedback, or typed by the user. No torch."""

from __future__ import annotations

from pathlib import Path

from text2grad.config import Config
from text2grad.data.files import convert_rows, read_rows
from text2grad.data.published import question_example
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Example, Message, reading
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


def heldout_prompts(config: Config, task: Task) -> list[Example]:
    """The prompts that are measured on (`evaluate.limit`).

    Raises:
        UserError: there are none.
    """
    found = task.examples("heldout")[: config.evaluate.limit]
    if not found:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    return found


def prompts_to_ask(prompt: str | None, file: Path | None) -> list[Example]:
    """The prompt that was typed, or those of a file: .txt with one in each line, else rows with a `prompt`.

    Raises:
        UserError: neither or both are given, or the file has none.
    """
    if (prompt is None) == (file is None):
        raise UsageError("one of a prompt and --prompts FILE is needed", 'text2grad sample "When is it due?"')
    if file is not None:
        return _prompts_of(file)
    assert prompt is not None
    if not prompt.strip():
        raise UsageError("the prompt is empty", 'text2grad sample "When is it due?"')
    if "\n" not in prompt and len(prompt) < 200 and Path(prompt).is_file():
        raise UsageError(f"{prompt} is a file", f"its prompts are read by --prompts {prompt}")
    return [typed_prompt("prompt", prompt)]


def _prompts_of(file: Path) -> list[Example]:
    if file.suffix == ".txt":
        with reading(file):
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        found = [
            typed_prompt(f"{file.stem}-{number}", line) for number, line in enumerate(lines, 1) if line.strip()
        ]
    else:
        rows = list(read_rows(file))
        read = frozenset({"prompt"})
        found = list(
            convert_rows(rows, file, read, lambda row, id: [question_example(row, id)], "row with a prompt")
        )
    if not found:
        raise UserError(f"{file} has no prompts", "one in each line of a .txt file, or JSON Lines with a 'prompt'")
    return found


def typed_prompt(id: str, text: str) -> Example:
    """What a user typed, as the prompt of one turn."""
    return Example(id=id, prompt=(Message(role="user", content=text),))
