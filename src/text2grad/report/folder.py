"""Read a run folder into plain data. Every part is optional: a run may be young, or stopped half-way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from text2grad.errors import UserError
from text2grad.feedback import Failure, Feedback, Message, ResponseText, Span, first_error, from_json

UTF_8 = "check that it is a readable UTF-8 file"
Row = dict[str, Any]
Numbers = list[float | None]


class Part(BaseModel):
    """Base of what the report reads: unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Sample(Part):
    """One written sample of a PPO run: a response, its critique, and one number per token and quantity.

    All lists have one entry per response token (T), or none (`value` without a value function; `ids` and `entropy`
    in runs that did not write them); `starts` and `ends` are code points of `response`. `as_marked`: each token of
    a span is paid with the sign of its span. `lost` are the quotes that are not in the response, `unmatched` is
    their number; `ambiguous` counts quotes found twice. `probe`: one of the prompts that are answered again and
    again, and nothing is learned from it: it has no `advantage`, `ratio` and `learned`, and without a critique no
    `delta` and `reward`. What each number is, docs/metrics.md says.
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
    as_marked: bool = True
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
    """One policy's answer to a held-out prompt."""

    name: str
    response: str
    scores: dict[str, float | None] = Field(default_factory=dict)


class BeforeAfter(Part):
    """The answers of several policies to one held-out prompt; the first is the one compared against.

    `task` is what the policies were measured on; empty in files that do not say.
    """

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
    """One PPO run: its metrics (one dict per step) and its written samples."""

    name: str
    metrics: list[Row]
    samples: list[Sample]

    @property
    def valued(self) -> bool:
        """Whether there is a value function: the samples have its numbers; without samples, the metrics tell."""
        if self.samples:
            return any(sample.value for sample in self.samples)
        return any(row.get("explained_variance") not in (None, 0, 1) for row in self.metrics)


@dataclass(frozen=True)
class RunFolder:
    """Everything the report shows. `seeds` are the run folders inside this one; `notes` are warnings.

    `model` says where the base weights come from; empty where the model's name says it. `gate` is the verdict on
    the reward model, empty where there is none. `together`: the runs that this one is made of (`report.together`).
    """

    path: Path
    summary: Row
    model: Row
    config: str
    sft: list[Row]
    reward_model: list[Row]
    methods: list[Method]
    feedback: list[Feedback]
    before_after: list[BeforeAfter]
    evaluation: dict[str, Row]
    gate: Row
    seeds: list[RunFolder]
    notes: list[str] = field(default_factory=list)
    together: dict[str, RunFolder] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True when no stage has left anything here."""
        figures = self.summary.get("rows") or self.summary.get("reward_model")
        parts = (figures, self.sft, self.reward_model, self.methods, self.feedback, self.before_after)
        return not any((*parts, self.evaluation)) and all(seed.is_empty for seed in self.seeds)


P = TypeVar("P", bound=BaseModel)


def read_run(path: Path, with_samples: bool = True) -> RunFolder:
    """Read a run folder, and the `seed-*` run folders inside it; samples only if asked for.

    Raises:
        UserError: the folder is missing or holds nothing of a run, or a file in it is damaged (says where).
    """
    if not path.is_dir():
        raise UserError(f"no run folder {path}", "`text2grad demo` makes one, or give the folder of a run")
    run = _read(path, [_read(seed, [], with_samples) for seed in seed_folders(path)], with_samples)
    if run.is_empty:
        cure = "`text2grad demo`, or `text2grad sft`, `train-reward` and `train`, fill it"
        raise UserError(f"nothing to report in {path}", cure)
    return run


def seed_folders(path: Path) -> list[Path]:
    """The run folders of the seeds inside a run folder, seed-2 before seed-10."""
    return sorted(filter(Path.is_dir, path.glob("seed-*")), key=lambda folder: (len(folder.name), folder.name))


def _read(path: Path, seeds: list[RunFolder], with_samples: bool) -> RunFolder:
    notes: list[str] = []
    return RunFolder(
        path=path,
        summary=read_object(path / "summary.json"),
        model=next((seed.model for seed in seeds if seed.model), {}) or read_object(path / "model.json"),
        config=_read_text(path / "config.yaml"),
        sft=read_metrics(path / "sft" / "metrics.jsonl", notes),
        reward_model=read_metrics(path / "reward_model" / "metrics.jsonl", notes),
        methods=read_methods(path, notes, with_samples),
        feedback=read_lines(path / "feedback.jsonl", Feedback, notes),
        before_after=read_lines(path / "before_after.jsonl", BeforeAfter, notes),
        evaluation=_read_evaluation(path / "evaluation"),
        gate=read_object(path / "reward_model" / "gate.json"),
        seeds=seeds,
        notes=notes,
    )


def read_methods(run: Path, notes: list[str], with_samples: bool = True) -> list[Method]:
    """The PPO runs of a run folder, or the one that `train_ppo` wrote into a folder of its own."""
    methods = []
    for folder in method_folders(run):
        metrics = read_metrics(folder / "metrics.jsonl", notes)
        samples = read_lines(folder / "samples.jsonl", Sample, notes) if with_samples else []
        methods += [Method(folder.resolve().name, metrics, samples)] if metrics or samples else []
    return methods


def method_folders(run: Path) -> list[Path]:
    """The folders of the PPO runs of a run folder, text2grad first."""
    own, path = run / "samples.jsonl", run / "ppo"
    folders = [run] if own.is_file() and not path.is_dir() else path.glob("*")
    return sorted(filter(Path.is_dir, folders), key=lambda folder: (folder.name != "text2grad", folder.name))


def _read_evaluation(path: Path) -> dict[str, Row]:
    """The figures of the reward model and of imports, and those of each policy by the task it was measured on."""
    figures = {file.stem: read_object(file) for file in sorted(path.glob("*.json")) if "." not in file.stem}
    for file in sorted(path.glob("*/*.json")):
        if not file.name.endswith((".answers.json", ".scores.json")):
            figures[f"{file.name.removesuffix('.json')} on {file.parent.name}"] = read_object(file)
    return figures


def read_metrics(path: Path, notes: list[str] | None = None) -> list[Row]:
    """The rows of a metrics.jsonl; see `read_lines`."""
    return [row.model_dump() for row in read_lines(path, MetricRow, [] if notes is None else notes)]


def read_lines(path: Path, kind: type[P], notes: list[str]) -> list[P]:
    """Read a JSON Lines file of the run; missing: nothing. A torn last line is skipped with a note.

    A run that is still going, or was killed, may end in half a line, even in half a character; anywhere else that
    is damage.

    Raises:
        UserError: a line is not such a record.
    """
    lines = _read_bytes(path).split(b"\n")
    records: list[P] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(kind.model_validate(from_json(line.decode("utf-8-sig")), strict=False))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if number < len(lines):
                what = getattr(error, "msg", "not UTF-8")
                raise UserError(f"{path}:{number}: not JSON: {what}", f"remove line {number}") from error
            notes.append(f"The last line of {path.parent.name}/{path.name} is cut off and was left out.")
        except ValidationError as error:
            raise UserError(f"{path}:{number}: {first_error(error)}", f"fix or remove line {number}") from error
    return records


def read_object(path: Path) -> Row:
    """The object in a JSON file of the run; missing: an empty one.

    Raises:
        UserError: there is something else in it.
    """
    try:
        value = from_json(_read_text(path) or "{}")
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON: {error.msg}", "remove it and run the stage again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a JSON object", "remove it and run the stage again")
    return value


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path}: {error}", UTF_8) from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}", UTF_8) from error
