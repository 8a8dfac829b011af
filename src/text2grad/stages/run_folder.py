"""The run folder: its task, feedback, policies and figures. Imports no torch."""

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
from text2grad.jsonl import read_jsonl
from text2grad.policy.settings import PolicySettings
from text2grad.tasks.base import Task, TaskSettings, load_task

if TYPE_CHECKING:
    from text2grad.data.conversations import AssistantTurn
    from text2grad.policy.model import Policy

HELDOUT_FEEDBACK = "feedback_heldout.jsonl"
"""Beside the file of feedback: the records of held-out prompts."""
ANSWERS = ".answers.json"
SCORES = ".scores.json"
CHOICE = "choice.json"
"""In the folder of a policy: the step of the run that it is from, and the measure that chose it."""
SFT, BASE = "sft", "base"
"""The policies that others start from."""
MAIN = ("pass", "rouge_l")
"""Of several measures the one that policies are compared by; of a task that has neither, its
first."""
IMPORTED = "imported"
"""The value of `task.data` for prompts of people's feedback."""
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, with the task, base model and reward model that the run is configured
    with.

    Below `path` are `feedback.jsonl`, `sft/policy`, `ppo/<name>/policy`, `reward_model/policy` and
    `evaluation`.
    """

    path: Path
    task_settings: TaskSettings
    base: PolicySettings
    reward_model_folder: Path

    @staticmethod
    def of(config: Config) -> RunFolder:
        """The folder of a configuration; the reward model is the one named, or this run's own."""
        path = config.run.folder
        reward_model = config.critic.reward_model.folder or path / "reward_model" / "policy"
        return RunFolder(path, config.task, config.policy, reward_model)

    def task(self) -> Task:
        """The task; with `task.data: imported` its prompts are those of the imported feedback.

        Raises:
            UserError: nothing was imported, or the task cannot be loaded.
        """
        if self.task_settings.data != IMPORTED:
            return load_task(self.task_settings)
        if not self.feedback_file.is_file():
            cure = "text2grad import FILE --config NAME|FILE first"
            raise UserError(f"no feedback in {self.feedback_file}", cure)
        return load_task(self.task_settings.model_copy(update={"data": str(self.feedback_file)}))

    @property
    def feedback_file(self) -> Path:
        """The records that `import` and `annotate` write; those of held-out prompts are beside
        it."""
        return self.path / "feedback.jsonl"

    def feedback(self) -> list[Feedback]:
        """All records; at least one.

        Raises:
            UserError: there are none.
        """
        return read_feedback(self.feedback_file)

    def heldout_feedback(self) -> list[Feedback]:
        """The records that `annotate` wrote of held-out prompts."""
        file = self.path / HELDOUT_FEEDBACK
        return list(read_jsonl(file, Feedback)) if file.is_file() else []

    def policy(self, target: str = "") -> PolicySettings:
        """The policy that a target names, to be loaded; without one the policy that training starts
        from.

        A target is a policy of this run, `base`, a model folder, a GGUF file, or a name on the hub.
        Training starts from the SFT policy if there is one, else from the base model.

        Raises:
            UserError: the target names none of these, or there is nothing to start from.
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
        """The folder of `sft`, of a PPO run, of a model, or of a training run with its `policy` in
        it.

        Raises:
            UserError: there is no such policy.
        """
        model = Path(target)
        places = (self.path / target / "policy", self.path / "ppo" / target / "policy", model, model / "policy")
        for place in places:
            if (place / "tokenizer_config.json").is_file():
                return place
        names = ", ".join([SFT, *self._trained()])
        raise UserError(f"no policy {target!r} in {self.path}", f"known: {names}, or a model folder")

    def policies(self, names: Sequence[str] = ()) -> list[tuple[str, PolicySettings]]:
        """The named policies; without names, all that the run has.

        Raises:
            UserError: there is no such policy, or the run has none.
        """
        chosen = list(names) or self._policies()
        if not chosen:
            cure = "--run.folder FOLDER of a run, or --with MODEL (a folder, a hub name, smollm2)"
            raise UserError(f"no policy in {self.path}", cure)
        return [(name, self.policy(name)) for name in chosen]

    def _policies(self) -> list[str]:
        base = (self.path / BASE).is_dir() or (self.path.is_dir() and self.base.model != TINY)
        sft = (self.path / SFT / "policy").is_dir()
        return [*([BASE] if base else []), *([SFT] if sft else []), *self._trained()]

    def _trained(self) -> list[str]:
        return sorted(path.parent.name for path in self.path.glob("ppo/*/policy"))

    def reward_model(self) -> Path:
        """The folder of the trained reward model.

        Raises:
            UserError: there is none.
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

        return load_frozen(
            PolicySettings(model=str(folder), dtype=self.base.dtype, device=self.base.device),
        )

    def turn_writer(self) -> Callable[[AssistantTurn], str]:
        """Return what writes a turn that calls tools or reasons: the policy's chat template, where
        one is known."""
        from text2grad.data.conversations import default_turn_text

        if self.base.model == TINY:
            return default_turn_text

        @cache
        def tokenizer() -> Any:
            from text2grad.policy.files.tokenizer import load_tokenizer

            return load_tokenizer(self.base.model, self.base.chat_template)

        def write(turn: AssistantTurn) -> str:
            from text2grad.policy.files.tokenizer import written_turn

            text = written_turn(tokenizer(), *turn)
            cure = f"the chat template of {self.base.model} does not write it"
            return default_turn_text(turn, cure) if text is None else text

        return write

    @property
    def evaluation(self) -> Path:
        """The folder of measurements."""
        return self.path / "evaluation"

    @property
    def results(self) -> Path:
        """The folder of measurements on the task of this run."""
        return self.evaluation / measured_on(self.task_settings)

    def write_results(self, name: str, figures: Mapping[str, Any], answers: object) -> Path:
        """Write the figures of a policy on this task to `<name>.json` in `results`, which is
        returned.

        Its answers are in `<name>.answers.json` beside it.
        """
        place = self.results / f"{name}.json"
        write_json(place, dict(figures))
        write_json(place.with_name(f"{name}{ANSWERS}"), answers)
        return place

    def read_results(self, name: str) -> dict[str, Any]:
        """The figures that `write_results` has written of a policy."""
        figures: dict[str, Any] = json.loads((self.results / f"{name}.json").read_text(encoding="utf-8"))
        return figures

    def refuse_unwritable(self) -> None:
        """Refuse a folder that cannot be written; nothing is written yet, so that what fails leaves
        no trace.

        Raises:
            UserError: nothing can be written to the folder.
        """
        place = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if not place.is_dir() or not os.access(place, os.W_OK):
            problem = f"cannot write to {self.path}: {place} is not a writable folder"
            raise UserError(problem, "set --run.folder FOLDER")


def read_feedback(path: Path) -> list[Feedback]:
    """All records of a feedback file.

    Raises:
        UserError: there is no such file, or it holds no records.
    """
    records = list(read_jsonl(path, Feedback)) if path.is_file() else []
    if not records:
        problem = f"{path} holds no records" if path.is_file() else f"no feedback in {path}"
        raise UserError(problem, "text2grad annotate, or text2grad import, first")
    return records


def read_choice(policy: Path) -> dict[str, Any] | None:
    """Return the note on why a policy was chosen (`stages.evaluate.heldout`); None for the last of
    its run."""
    file = policy / CHOICE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def heldout_prompts(task: Task, limit: int | None) -> list[Example]:
    """The prompts that are measured on, at most `limit`.

    Raises:
        UserError: there are none, or two have one id.
    """
    examples = task.examples("heldout")[:limit]
    if not examples:
        raise UserError("no held-out prompts to evaluate on", "raise task.heldout_share")
    if repeated := next((id for id, count in Counter(each.id for each in examples).items() if count > 1), None):
        raise UserError(f"{task.name}: two held-out prompts have the id {repeated!r}", "give each an id of its own")
    return examples


def main_measure(scores: Mapping[str, float]) -> str:
    """The first of `MAIN` among the measures of a task, else the first of all; there must be one.

    ROUGE-L of all scripts stands in for the published one where that reads none of the words.
    """
    name = next((name for name in MAIN if name in scores), next(iter(scores)))
    unread = name == "rouge_l" and not scores[name] and "rouge_l_unicode" in scores
    return "rouge_l_unicode" if unread else name


def measured_on(task: TaskSettings) -> str:
    """The task and data that a policy is measured on, as the name of a folder in `evaluation`."""
    data = Path(task.data).name.partition(".json")[0]
    return re.sub(r"[^\w.+-]", "_", f"{task.name}-{data}" if data else task.name)


def target_name(target: str) -> str:
    """The name of a policy's results: the run's name, or the last part of a folder or hub name."""
    return target if target.isidentifier() else Path(target).name


def refuse_run_name(name: str) -> None:
    """Refuse what cannot be a folder of a run and a word of a command.

    Raises:
        UsageError: it has other characters than names of runs have.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(f"{name!r} cannot name a run", "use letters, digits, '.', '_' and '-'")


def write_json(path: Path, data: object) -> None:
    """Write one JSON file at once."""
    write_whole(path, to_json(data, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file at once: there is the old one or the new one, never half of one or of two
    processes'."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
