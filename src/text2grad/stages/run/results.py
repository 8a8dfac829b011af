"""Where figures are written: a file for each task and policy, and one that gathers those of a policy. No torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.errors import UsageError, UserError
from text2grad.feedback import to_json

ANSWERS = ".answers.json"
BY_TASK = ".by_task.json"
SCORES = ".scores.json"
MAIN = ("pass", "rouge_l")
"""Of several measures the one that policies are compared by; of a task that has neither, its first."""


def main_measure(scores: Mapping[str, float]) -> str:
    """The first of `MAIN` among the measures of a task, else the first of all; there must be one.

    ROUGE-L of all scripts stands in for the published one where that reads none of the words.
    """
    name = next((name for name in MAIN if name in scores), next(iter(scores)))
    unread = name == "rouge_l" and not scores[name] and "rouge_l_unicode" in scores
    return "rouge_l_unicode" if unread else name


def measured_on(config: Config) -> str:
    """The task and data that a policy is measured on, as the name of a folder in `evaluation`."""
    data = Path(config.task.data).name.partition(".json")[0]
    return re.sub(r"[^\w.+-]", "_", f"{config.task.name}-{data}" if data else config.task.name)


def target_name(target: str) -> str:
    """Return the name of a policy's results: the run's name, or the last part of a folder or hub name."""
    return target if target.isidentifier() else Path(target).name


def refuse_run_name(name: str) -> None:
    """Refuse what cannot be a folder of a run and a word of a command.

    Raises:
        UsageError: it has other signs than names of runs have.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"{name!r} cannot name a run", "use letters, digits, '.', '_' and '-'")


def refuse_unwritable(folder: Path) -> None:
    """Nothing is written yet, so that what cannot start leaves no trace.

    Raises:
        UserError: nothing can be written to the folder.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise UserError(f"cannot write to {folder}: {place} is not a writable folder", "set --run.folder FOLDER")


def write_results(folder: Path, on: str, name: str, figures: Mapping[str, Any], answers: object) -> Path:
    """Write the figures and answers of a policy on one task, and its figures on all tasks so far by task.

    The files are `evaluation/<on>/<name>.json`, whose place is returned, `<name>.answers.json` beside it, and
    `evaluation/<name>.by_task.json`.
    """
    place = folder / "evaluation" / on / f"{name}.json"
    write_json(place, dict(figures))
    write_json(place.with_name(f"{name}{ANSWERS}"), answers)
    files = sorted((folder / "evaluation").glob(f"*/{name}.json"))
    gathered = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    write_json(folder / "evaluation" / f"{name}{BY_TASK}", gathered)
    return place


def read_results(folder: Path, on: str, name: str) -> dict[str, Any]:
    """The figures that `write_results` has written of a policy on one task."""
    found: dict[str, Any] = json.loads((folder / "evaluation" / on / f"{name}.json").read_text(encoding="utf-8"))
    return found


def write_json(path: Path, data: object) -> None:
    """Write one JSON file at once."""
    write_whole(path, to_json(data, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file at once: there is the old one or the new one, never half of one or of two processes'."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
