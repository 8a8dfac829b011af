"""The run folder: its prompts, policies, feedback and figures. Imports no torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.config import TINY, Config
from text2grad.data.files import convert_rows, read_rows
from text2grad.data.published import question_example
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Example, Feedback, Message
from text2grad.jsonl import read_jsonl, reading, to_json
from text2grad.policy.settings import PolicySettings
from text2grad.tasks.base import Task, load_task

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


BASE = "base"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def start_policy(config: Config, target: str = "") -> PolicySettings:
    """The policy that a target names (`policy_name`); without one the SFT policy of this run if there is one, else
    the model of the config.
    """
    if target:
        return named_policy(config, target)
    folder = config.run.folder / "sft" / "policy"
    if folder.is_dir():
        return config.policy.model_copy(update={"model": str(folder)})
    if config.policy.model == TINY:
        raise UserError(f"no policy in {folder}", f"text2grad sft --run.folder {config.run.folder}")
    return config.policy


def named_policy(config: Config, target: str) -> PolicySettings:
    """The policy that a target names.

    Raises:
        UserError: it names none.
    """
    return config.policy.model_copy(update={"model": policy_name(config, target)})


def policy_name(config: Config, target: str) -> str:
    """The model of a target: a policy of this run, a folder or GGUF file, or one on the hub (`owner/model`).

    Raises:
        UserError: it names none of these.
    """
    from text2grad.policy.files.gguf import is_gguf

    if is_gguf(target) or (HUB_NAME.fullmatch(target) and not Path(target).parent.is_dir()):
        return target
    return str(find_policy(config, target))


def find_policy(config: Config, target: str) -> Path:
    """`sft`, the name of a PPO run, a model folder, or the folder of a training run with its `policy` in it."""
    run, own = config.run.folder, Path(target)
    for place in (run / target / "policy", run / "ppo" / target / "policy", own, own / "policy"):
        if place.is_dir() and (place / "tokenizer_config.json").is_file():
            return place
    known = sorted(path.parent.name for path in run.glob("ppo/*/policy"))
    raise UserError(f"no policy {target!r} in {run}", f"known: {', '.join(['sft', *known])}, or a model folder")


def policies_of(config: Config, names: Sequence[str]) -> list[tuple[str, PolicySettings]]:
    """The named policies; without names, all that the run has.

    Raises:
        UserError: there is no such policy, or the run has none.
    """
    found = list(names) or _of_run(config)
    if not found:
        cure = "--run.folder FOLDER of a run, or --with MODEL (a folder, a hub name, smollm2)"
        raise UserError(f"no policy in {config.run.folder}", cure)
    return [(name, config.policy.model_copy(update={"model": _model(config, name)})) for name in found]


def _of_run(config: Config) -> list[str]:
    run = config.run.folder
    base = [BASE] if (run / BASE).is_dir() or (run.is_dir() and config.policy.model != TINY) else []
    sft = ["sft"] if (run / "sft" / "policy").is_dir() else []
    return [*base, *sft, *sorted(path.parent.name for path in run.glob("ppo/*/policy"))]


def _model(config: Config, name: str) -> str:
    if name != BASE:
        return policy_name(config, name)
    if config.policy.model != TINY:
        return config.policy.model
    folder = config.run.folder / BASE
    if not folder.is_dir():
        raise UserError(f"no base model in {folder}", f"text2grad sft --run.folder {config.run.folder}")
    return str(folder)


def read_feedback(path: Path) -> list[Feedback]:
    """All records of a feedback file; refuses an empty one."""
    if not path.is_file():
        raise UserError(f"no feedback in {path}", "text2grad annotate, or text2grad import, first")
    records = list(read_jsonl(path, Feedback))
    if not records:
        raise UserError(f"{path} holds no records", "text2grad annotate, or text2grad import, first")
    return records
