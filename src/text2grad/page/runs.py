"""Read run folders into plain data. Every part is optional, since a run may be unfinished."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from text2grad.errors import UserError
from text2grad.feedback import Failure, Feedback, Message, ResponseText, Span
from text2grad.json_text import from_json
from text2grad.jsonl import parse_record, reading

Row = dict[str, Any]
Numbers = list[float | None]


class Part(BaseModel):
    """Base of the records on a page: unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Sample(Part):
    """A sample of a PPO run: a response, its critique, and a number per token and signal.

    Lists have one entry per response token (T), or none: `value` without a value function, `ids`
    and `entropy` in runs that did not write them. `starts` and `ends` are code points of
    `response`. `lost` has quotes that are not in the response, `unmatched` their number, and
    `ambiguous` the number of quotes that occur more than once. A `probe` is answered repeatedly and
    never trained on, so it has no `advantage`, `ratio` or `learned`. docs/metrics.md explains the
    signals.
    """

    step: int
    probe: bool = False
    id: str = ""
    prompt: tuple[Message, ...] = ()
    response: ResponseText
    critique: str = ""
    spans: tuple[Span, ...] = ()
    score: float | None = None
    failure: Failure | None = None
    lost: tuple[str, ...] = ()
    unmatched: int = 0
    ambiguous: int = 0
    ids: list[int] = Field(default_factory=list)
    tokens: list[str] = Field(default_factory=list)
    starts: list[int] = Field(default_factory=list)
    ends: list[int] = Field(default_factory=list)
    delta: Numbers = Field(default_factory=list)
    kl: Numbers = Field(default_factory=list)
    reward: Numbers = Field(default_factory=list)
    value: Numbers = Field(default_factory=list)
    advantage: Numbers = Field(default_factory=list)
    logp: Numbers = Field(default_factory=list)
    logp_change: Numbers = Field(default_factory=list)
    entropy: Numbers = Field(default_factory=list)
    ratio: Numbers = Field(default_factory=list)
    learned: Numbers = Field(default_factory=list)


class Answer(Part):
    """The answer of one policy to a held-out prompt."""

    name: str
    response: str
    scores: dict[str, float | None] = Field(default_factory=dict)


class BeforeAfter(Part):
    """The answers of several policies to one held-out prompt; the first is the baseline."""

    task: str = ""
    id: str = ""
    prompt: tuple[Message, ...] = ()
    reference: str = ""
    answers: tuple[Answer, ...] = ()


class MetricRow(BaseModel):
    """One line of a metrics.jsonl: `step` and any number of named values."""

    model_config = ConfigDict(extra="allow", frozen=True)
    step: float


class Method(NamedTuple):
    """The metrics of one PPO run, a dict per step, and why its policy was selected (`choice`).

    `choice` is empty for the last policy. `read_samples` reads the samples.
    """

    name: str
    metrics: list[Row]
    choice: Row = {}  # noqa: RUF012


@dataclass(frozen=True)
class RunFolder:
    """The content of a run folder, without the samples of its PPO runs.

    `model` is the source of the base weights, `gate` the verdict on the reward model, `improvement`
    the figures of `improve`. `derived` has the names of derived settings, `notes` warnings, and
    `together` the runs that this one combines.
    """

    path: Path
    model: Row = field(default_factory=dict)
    config: str = ""
    sft: list[Row] = field(default_factory=list)
    reward_model: list[Row] = field(default_factory=list)
    methods: list[Method] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    before_after: list[BeforeAfter] = field(default_factory=list)
    evaluation: dict[str, Row] = field(default_factory=dict)
    gate: Row = field(default_factory=dict)
    improvement: Row = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    together: dict[str, RunFolder] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if no stage has written anything here."""
        parts = (self.sft, self.reward_model, self.methods, self.feedback, self.before_after, self.evaluation)
        return not any(parts)

    @property
    def paths(self) -> list[Path]:
        """The folders that the run was read from."""
        return [run.path for run in self.together.values()] or [self.path]


P = TypeVar("P", bound=BaseModel)


def read_runs(paths: Sequence[Path]) -> RunFolder:
    """Read one run, or combine several; names of policies then start with the run's name.

    Raises:
        UserError: a folder is missing or has no files of a run, or a file is damaged.
    """
    names = name_runs(paths)
    if len(names) == 1:
        return read_run(paths[0])
    runs = {name: read_run(path) for name, path in names.items()}
    return RunFolder(
        path=next(iter(runs.values())).path,
        methods=[
            method._replace(name=f"{name} {method.name}") for name, run in runs.items() for method in run.methods
        ],
        before_after=_merge_answers({name: run.before_after for name, run in runs.items()}),
        evaluation={f"{name} {key}": row for name, run in runs.items() for key, row in run.evaluation.items()},
        notes=[f"{name}: {note}" for name, run in runs.items() for note in run.notes],
        together=runs,
    )


def read_run(path: Path) -> RunFolder:
    """Read one run folder; see `read_runs`."""
    if not path.is_dir():
        raise UserError(f"no run folder {path}", "run text2grad demo, or give the folder of a run")
    notes: list[str] = []
    run = RunFolder(
        path=path,
        model=read_object(path / "model.json"),
        config=_read_text(path / "config.yaml"),
        sft=read_metrics(path / "sft" / "metrics.jsonl", notes),
        reward_model=read_metrics(path / "reward_model" / "metrics.jsonl", notes),
        methods=_read_methods(path, notes),
        feedback=read_lines(path / "feedback.jsonl", Feedback, notes),
        before_after=[_in_order(item) for item in read_lines(path / "before_after.jsonl", BeforeAfter, notes)],
        evaluation=_read_evaluation(path / "evaluation"),
        gate=read_object(path / "reward_model" / "gate.json"),
        improvement=read_object(path / "improve.json"),
        derived=_read_derived(path),
        notes=notes,
    )
    if run.is_empty:
        raise UserError(f"nothing to report in {path}", "run text2grad demo, or text2grad sft and train, first")
    return run


def name_runs(paths: Sequence[Path]) -> dict[str, Path]:
    """Name runs by their folders, with the parent if two names are equal; drop duplicates."""
    folders = list(dict.fromkeys(path.resolve() for path in paths))
    names = [path.name for path in folders]
    return {
        path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}": path for path in folders
    }


def method_folders(run: Path) -> list[Path]:
    """List the folders of the PPO runs of a run folder, text2grad first.

    `train_ppo` may also have written into the folder itself.
    """
    ppo = run / "ppo"
    folders = [run] if (run / "samples.jsonl").is_file() and not ppo.is_dir() else ppo.glob("*")
    return sorted(filter(Path.is_dir, folders), key=lambda folder: (folder.name != "text2grad", folder.name))


def sample_files(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the files of samples with the names that the page gives to their policies."""
    names = name_runs(paths)
    for title, path in names.items():
        for folder in method_folders(path):
            name = folder.resolve().name
            yield (f"{title} {name}" if len(names) > 1 else name), folder / "samples.jsonl"


def read_samples(paths: Sequence[Path], notes: list[str]) -> dict[str, list[Sample]]:
    """Read the samples of all PPO runs in run folders, by the name of the policy."""
    return {name: read_lines(file, Sample, notes) for name, file in sample_files(paths)}


def _read_methods(run: Path, notes: list[str]) -> list[Method]:
    methods = []
    for folder in method_folders(run):
        metrics = read_metrics(folder / "metrics.jsonl", notes)
        if metrics or (folder / "samples.jsonl").is_file():
            choice = read_object(folder / "policy" / "choice.json")
            methods.append(Method(folder.resolve().name, metrics, choice))
    return methods


def _read_evaluation(path: Path) -> dict[str, Row]:
    """Read the figures of the reward model, of imports, and of each policy on each task."""
    figures = {file.stem: read_object(file) for file in sorted(path.glob("*.json")) if "." not in file.stem}
    for file in sorted(path.glob("*/*.json")):
        if not file.name.endswith((".answers.json", ".scores.json")):
            figures[f"{file.name.removesuffix('.json')} on {file.parent.name}"] = read_object(file)
    return figures


def _read_derived(run: Path) -> frozenset[str]:
    files = (*run.glob("*/derived.json"), *run.glob("ppo/*/derived.json"))
    return frozenset(name for file in files for name in read_object(file).get("settings", ()))


def _in_order(item: BeforeAfter) -> BeforeAfter:
    """Sort answers: policies that training starts from first, the final policy last."""
    places = {"base": 0, "SFT": 1, "text2grad": 3}
    answers = sorted(item.answers, key=lambda answer: places.get(answer.name, 2))
    return item.model_copy(update={"answers": tuple(answers)})


def _merge_answers(comparisons: Mapping[str, Sequence[BeforeAfter]]) -> list[BeforeAfter]:
    """Put the answers of all runs to the same prompt side by side."""
    merged: dict[tuple[str, str, str], BeforeAfter] = {}
    for name, items in comparisons.items():
        for item in items:
            key = (item.task, item.id, "\0".join(message.content for message in item.prompt))
            answers = tuple(answer.model_copy(update={"name": f"{name} {answer.name}"}) for answer in item.answers)
            earlier = merged[key].answers if key in merged else ()
            merged[key] = item.model_copy(update={"answers": (*earlier, *answers)})
    return list(merged.values())


def read_metrics(path: Path, notes: list[str] | None = None) -> list[Row]:
    """Read the rows of a metrics.jsonl; see `read_lines`."""
    return [row.model_dump() for row in read_lines(path, MetricRow, [] if notes is None else notes)]


def read_lines(path: Path, kind: type[P], notes: list[str]) -> list[P]:
    """Read a JSON Lines file of the run; a missing file is empty.

    A run in progress, or a killed one, may end in half a line: it is skipped with a note.

    Raises:
        UserError: any other line is not such a record.
    """
    lines = _read_bytes(path).split(b"\n")
    records: list[P] = []
    for number, line in enumerate(lines, start=1):
        try:
            records += [parse_record(line, kind, path, number)] if line.strip() else []
        except UserError:
            if number < len(lines):
                raise
            notes.append(f"The last line of {path.parent.name}/{path.name} is cut off and was left out.")
    return records


def read_object(path: Path) -> Row:
    """Read a JSON object of the run; a missing file is an empty object.

    Raises:
        UserError: the file holds something else.
    """
    try:
        value = from_json(_read_text(path) or "{}")
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a JSON object", "remove it and run the stage again")
    return value


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}: {error}", "check that it is a UTF-8 file") from error


def _read_bytes(path: Path) -> bytes:
    with reading(path):
        return path.read_bytes() if path.exists() else b""
