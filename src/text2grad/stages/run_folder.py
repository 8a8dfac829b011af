"""The run folder: its task, feedback, policies and results. This module does not import torch."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.config import TINY, Config
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Example, Feedback
from text2grad.json_text import to_json
from text2grad.jsonl import read_jsonl, reading
from text2grad.policy.settings import PolicySettings
from text2grad.tasks.base import Task, TaskSettings, load_task

if TYPE_CHECKING:
    from text2grad.data.conversations import AssistantTurn
    from text2grad.policy.model import Policy

HELDOUT_FEEDBACK = "feedback_heldout.jsonl"
"""Records of held-out prompts, in the folder of the feedback file."""
ANSWERS = ".answers.json"
SCORES = ".scores.json"
CHOICE = "choice.json"
"""The file in a policy's folder that names the training step and the measure that selected it."""
GATE_FILE = "gate.json"
"""The verdict on a reward model: next to its folder, or inside a merged one."""
SFT, BASE = "sft", "base"
"""The policies that training starts from."""
MAIN = ("pass", "rouge_l")
"""Measures that policies are compared by, preferred first; other tasks use their first measure."""
IMPORTED = "imported"
"""The value of `task.data` that takes the prompts of imported feedback."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, with the task, base model and reward model of its configuration.

    `path` contains `feedback.jsonl`, `sft/policy`, `ppo/<name>/policy`, `reward_model/policy` and
    `evaluation`.
    """

    path: Path
    task_settings: TaskSettings
    base: PolicySettings
    reward_model_folder: Path

    @staticmethod
    def of(config: Config) -> RunFolder:
        """Return the run folder of a configuration; the default reward model is the run's."""
        path = config.run.folder
        reward_model = config.critic.reward_model.folder or path / "reward_model" / "policy"
        return RunFolder(path, config.task, config.policy, reward_model)

    def task(self) -> Task:
        """Load the task; with `task.data: imported`, its prompts come from imported feedback.

        Raises:
            UserError: nothing was imported, or the task cannot be loaded.
        """
        if self.task_settings.data != IMPORTED:
            return load_task(self.task_settings)
        if not self.feedback_file.is_file():
            cure = "run text2grad import FILE --config NAME|FILE first"
            raise UserError(f"no feedback in {self.feedback_file}", cure)
        return load_task(self.task_settings.model_copy(update={"data": str(self.feedback_file)}))

    @property
    def feedback_file(self) -> Path:
        """The file that `import` and `annotate` write records to."""
        return self.path / "feedback.jsonl"

    def feedback(self) -> list[Feedback]:
        """Return all records; at least one.

        Raises:
            UserError: there are no records.
        """
        return read_feedback(self.feedback_file)

    def heldout_feedback(self) -> list[Feedback]:
        """Return the records that `annotate` wrote for held-out prompts."""
        file = self.path / HELDOUT_FEEDBACK
        return list(read_jsonl(file, Feedback)) if file.is_file() else []

    def policy(self, target: str = "") -> PolicySettings:
        """Return the settings that load the policy `target`.

        A target is a policy of this run, `base`, a model folder, a GGUF file, or a name on the hub.
        An empty target is the policy that training starts from: the SFT policy if there is one,
        else the base model.

        Raises:
            UserError: there is no such policy, or no policy to start from.
        """
        return self.base.model_copy(update={"model": self._model(target)})

    def _model(self, target: str) -> str:
        from text2grad.policy.files.gguf import is_gguf

        sft, tiny = self.path / SFT / "policy", self.path / BASE
        if not target and sft.is_dir():
            return str(sft)
        if target in ("", BASE) and self.base.model != TINY:
            return self.base.model
        if target == BASE and tiny.is_dir():
            return str(tiny)
        if target in ("", BASE):
            problem = f"no base model in {tiny}" if target else f"no policy in {sft}"
            raise UserError(problem, f"text2grad sft --run.folder {self.path}")
        if is_gguf(target) or (HUB_NAME.fullmatch(target) and not Path(target).parent.is_dir()):
            return target
        return str(self.find_policy(target))

    def find_policy(self, target: str) -> Path:
        """Return the model folder of `sft`, a PPO run, a training run's folder, or a model folder.

        Raises:
            UserError: there is no such policy.
        """
        model = Path(target)
        places = (self.path / target / "policy", self.path / "ppo" / target / "policy", model, model / "policy")
        for place in places:
            if (place / "tokenizer_config.json").is_file():
                return place
        names = ", ".join([SFT, *self._trained()])
        raise UserError(f"no policy {target!r} in {self.path}", f"choose {names}, or a model folder")

    def policies(self, names: Sequence[str] = ()) -> list[tuple[str, PolicySettings]]:
        """Return the named policies with their settings; without names, all policies of the run.

        Raises:
            UserError: there is no such policy, or the run has none.
        """
        if not names:
            has_base = (self.path / BASE).is_dir() or (self.path.is_dir() and self.base.model != TINY)
            has_sft = (self.path / SFT / "policy").is_dir()
            names = [*([BASE] if has_base else []), *([SFT] if has_sft else []), *self._trained()]
        if not names:
            cure = "--run.folder FOLDER of a run, or --with MODEL (a folder, a hub name, smollm2)"
            raise UserError(f"no policy in {self.path}", cure)
        return [(name, self.policy(name)) for name in names]

    def _trained(self) -> list[str]:
        return sorted(path.parent.name for path in self.path.glob("ppo/*/policy"))

    def reward_model(self) -> Path:
        """Return the folder of the trained reward model.

        Raises:
            UserError: there is no reward model.
        """
        if not self.reward_model_folder.is_dir():
            cure = f"text2grad train-reward --run.folder {self.path}"
            raise UserError(f"no reward model in {self.reward_model_folder}", cure)
        return self.reward_model_folder

    def load_policy(self, target: str = "") -> Policy:
        """Load the policy that `policy` names, frozen."""
        from text2grad.policy.load import load_frozen

        return load_frozen(self.policy(target))

    def load_model(self, folder: Path) -> Policy:
        """Load a trained model, frozen, with the dtype and device of the policy."""
        from text2grad.policy.load import load_frozen

        return load_frozen(PolicySettings(model=str(folder), dtype=self.base.dtype, device=self.base.device))

    def turn_writer(self) -> Callable[[AssistantTurn], str]:
        """Return a function that formats turns with tool calls or reasoning as text.

        It uses the chat template of the policy, except for the tiny model, which has none.
        """
        from text2grad.data.conversations import default_turn_text

        if self.base.model == TINY:
            return default_turn_text

        @cache
        def tokenizer() -> Any:
            from text2grad.policy.files.tokenizer import load_tokenizer

            return load_tokenizer(self.base.model, self.base.chat_template)

        def write(turn: AssistantTurn) -> str:
            from text2grad.policy.files.tokenizer import render_turn

            text = render_turn(tokenizer(), *turn)
            cure = f"the chat template of {self.base.model} does not support it"
            return default_turn_text(turn, cure) if text is None else text

        return write

    @property
    def evaluation(self) -> Path:
        """The folder of measurements."""
        return self.path / "evaluation"

    @property
    def results(self) -> Path:
        """The folder of measurements on the task of this run."""
        return self.evaluation / results_folder_name(self.task_settings)

    def write_results(self, name: str, figures: Mapping[str, Any], answers: object) -> Path:
        """Write a policy's figures to `<name>.json` in `results`, and return that path.

        Its answers are written to `<name>.answers.json`.
        """
        place = self.results / f"{name}.json"
        write_json(place, dict(figures))
        write_json(place.with_name(f"{name}{ANSWERS}"), answers)
        return place

    def read_results(self, name: str) -> dict[str, Any]:
        """Return the figures that `write_results` wrote for a policy."""
        figures: dict[str, Any] = read_json(self.results / f"{name}.json")
        return figures

    def refuse_unwritable(self) -> None:
        """Refuse a folder that is not writable, without creating it.

        Raises:
            UserError: the folder is not writable.
        """
        place = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not place.is_dir() or not os.access(place, os.W_OK):
            problem = f"cannot write to {self.path}: {place} is not a writable folder"
            raise UserError(problem, "set --run.folder FOLDER")


def read_feedback(path: Path) -> list[Feedback]:
    """Return all records of a feedback file.

    Raises:
        UserError: there is no such file, or it has no records.
    """
    records = list(read_jsonl(path, Feedback)) if path.is_file() else []
    if not records:
        problem = f"{path} has no records" if path.is_file() else f"no feedback in {path}"
        raise UserError(problem, "run text2grad annotate or text2grad import first")
    return records


def read_choice(policy: Path) -> dict[str, Any] | None:
    """Return why a policy was selected (`stages.evaluate.heldout`); None for a last policy."""
    file = policy / CHOICE
    return read_json(file) if file.is_file() else None


def heldout_prompts(task: Task, limit: int | None) -> list[Example]:
    """Return the held-out prompts to evaluate on, at most `limit`.

    Raises:
        UserError: the task has no held-out prompts, or two have the same id.
    """
    examples = task.examples("heldout")[:limit]
    if not examples:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    counts = Counter(example.id for example in examples)
    if repeated := next((id for id, count in counts.items() if count > 1), None):
        raise UserError(f"{task.name}: two held-out prompts have the id {repeated!r}", "make the ids unique")
    return examples


def main_measure(scores: Mapping[str, float]) -> str:
    """Return the name of the measure to compare policies by: from `MAIN`, else the first one.

    The published ROUGE-L sees only Latin letters and digits. Where it finds no words at all,
    `rouge_l_unicode` replaces it.
    """
    name = next((name for name in MAIN if name in scores), next(iter(scores)))
    reads_no_words = name == "rouge_l" and not scores[name] and "rouge_l_unicode" in scores
    return "rouge_l_unicode" if reads_no_words else name


def results_folder_name(task: TaskSettings) -> str:
    """Return the name of the folder in `evaluation` for a task and its data."""
    data = Path(task.data).name.partition(".json")[0]
    return re.sub(r"[^\w.+-]", "_", f"{task.name}-{data}" if data else task.name)


def target_name(target: str) -> str:
    """Return the name of a policy's results: the run's name, or the last part of a path."""
    return target if target.isidentifier() else Path(target).name


def refuse_run_name(name: str) -> None:
    """Refuse a run name that is not usable as a folder name and a command-line argument.

    Raises:
        UsageError: the name has other characters.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"{name!r} is not a valid run name", "use letters, digits, '.', '_' and '-'")


def read_json(path: Path, cure: str = "remove it, and run the command that wrote it again") -> Any:
    """Read a JSON file of a run.

    Raises:
        UserError: the file cannot be read, or is damaged; shows `cure`.
    """
    with reading(path):
        text = path.read_bytes()
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}", cure) from error


def write_json(path: Path, data: object) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, to_json(data, indent=1) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file atomically: readers see the old content or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
