"""`improve`: a spreadsheet of people's feedback in, a better model out.

A thin stage over `import`, `sft`, `train --offline`, `evaluate` and `report`: it reads the file,
proposes what its columns hold, chooses the steps by what people wrote, runs them, and keeps the new
policy only if it is better on held-out questions. Every step is a command that can be run by hand;
`improve.yaml` in the run has their settings.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.config import TINY, Config, dump_config
from text2grad.config.derive import FEW_ANSWERS
from text2grad.config.estimate import Estimate, estimate
from text2grad.data.files import LocatedRow, read_located_rows
from text2grad.data.paths import flatten_rows, has_separate_answers
from text2grad.data.records import ImportResult, has_known_format, import_feedback
from text2grad.data.remarks import parse_map
from text2grad.data.spreadsheets.columns import Proposal, propose
from text2grad.errors import UsageError, UserError
from text2grad.eval.improvement import Comparison, compare, expectations
from text2grad.feedback import Example, Feedback, conversation_text
from text2grad.json_text import to_json
from text2grad.settings import is_set, with_values
from text2grad.stages import Summary
from text2grad.stages.run_folder import ANSWERS, BASE, SFT, RunFolder, write_atomically, write_json
from text2grad.tasks.base import digest, question_of, words_of

if TYPE_CHECKING:
    from text2grad.durable.run import ResumeMode

NOTE, SETTINGS, QUESTIONS, HELDOUT = "improve.json", "improve.yaml", "questions.jsonl", "heldout.jsonl"
KEPT = "policy"
"""The folder of the policy that is kept, in the run."""
OFFLINE = "offline"
SHARE, MOST_HELDOUT, FEWEST_TRAINED = 0.2, 100, 4
"""Of the questions that are held out, and how many at most; questions that there must be to learn
from."""
NEARLY_ALL = 0.8
"""Share of answers with a correction from which corrections alone are learned."""
EXAMPLES, SHOWN = 5, 40
LONGEST_ANSWER = 512


@dataclass(frozen=True)
class ImproveOptions:
    """Options of the command line other than settings. `names` and `scales` are as `import` takes
    them."""

    sheet: str = ""
    names: Sequence[str] = ()
    scales: Sequence[str] = ()
    plan: bool = False
    restart: bool = False


@dataclass(frozen=True)
class Source:
    """A file as it was read: its rows, what its columns hold (None: a format that says it itself),
    and the records with what was not used. `options` have the columns and scales that were
    taken."""

    path: Path
    rows: int
    proposal: Proposal | None
    imported: ImportResult
    options: ImproveOptions

    @property
    def arguments(self) -> list[str]:
        """The options of `import` that read the file so."""
        names, scales, sheet = self.options.names, self.options.scales, self.options.sheet
        words = [*(["--map", ",".join(names)] if names else []), *(w for s in scales for w in ("--scale", s))]
        return [*words, *(["--sheet", sheet] if sheet else []), "--skip"]

    @property
    def records(self) -> list[Feedback]:
        """The records that have a judgement."""
        return [record for record in self.imported.records if record.error is None]


@dataclass(frozen=True)
class Plan:
    """The steps, why, and the split of the questions; no steps: there is nothing to learn."""

    steps: tuple[str, ...]
    reason: str
    training: tuple[Example, ...] = ()
    heldout: tuple[Example, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImproveSummary(Summary):
    """The steps that were run, the measures before and after on held-out questions, and the policy
    that is kept.

    `better` None: nothing was trained, or too little is held out to tell.
    """

    rows: int
    records: int
    steps: Sequence[str] = field(default_factory=tuple)
    reason: str = ""
    heldout: int = 0
    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)
    better: bool | None = None
    kept: str = ""
    estimated_minutes: float | None = None
    minutes: float | None = None
    out: str | None = None


Confirm = Callable[[str], bool]
Choose = Callable[[str, Sequence[str]], str]
"""Ask the user: yes or no, and for one of several options."""


# Reading.


def read_source(config: Config, path: Path, options: ImproveOptions, choose: Choose | None = None) -> Source:
    """Read a file, and propose what its columns hold. `choose` is asked where two columns or scales
    may be meant.

    Raises:
        UserError: it cannot be read, or nobody can be asked: names both and the options that
            decide.
    """
    placed = list(read_located_rows(path, options.sheet))
    if not placed:
        raise UserError(f"{path} has no rows", "check that it is the right file")
    proposal = None if has_known_format(placed[0][1]) else _proposed(placed, options)
    while proposal is not None and proposal.doubts and choose is not None:
        doubt = proposal.doubts[0]
        value = doubt.values[doubt.options.index(choose(f"{path}: the {doubt.subject}", doubt.options))]
        if doubt.rated:
            options = replace(options, scales=[*options.scales, value])
        else:
            options = replace(options, names=[*options.names, value])
        proposal = _proposed(placed, options)
    if proposal is not None:
        _refuse_doubts(path, proposal)
        scales = options.scales or ([proposal.scale] if proposal.scale else [])
        options = replace(options, names=proposal.mapping, scales=scales)
    imported = import_feedback(
        path,
        context_characters=config.task.context_characters,
        names=options.names,
        scales=options.scales,
        write=RunFolder.of(config).turn_writer(),
        sheet=options.sheet,
        skip=True,
    )
    return Source(path, len(placed), proposal, imported, options)


def _proposed(placed: Sequence[LocatedRow], options: ImproveOptions) -> Proposal:
    given = {ours: theirs[-1] for ours, theirs in parse_map(options.names).items()}
    plain = [row for _, row in placed]
    flat, talk = flatten_rows(plain)
    answered = bool(talk) and has_separate_answers(plain, talk)
    return propose(flat, given, bool(options.scales), talk, answered)


def _refuse_doubts(path: Path, proposal: Proposal) -> None:
    if proposal.doubts:
        doubt = proposal.doubts[0]
        problem = f"{path}: the {doubt.subject} may be {' or '.join(map(repr, doubt.candidates))}"
        raise UsageError(problem, f"say which: {' or '.join(doubt.options)}")
    if "response" not in proposal.columns and not proposal.conversation:
        raise UserError(f"{path}: no column has answers", "say which it is: --map response=COLUMN")
    if "prompt" not in proposal.columns and not proposal.conversation:
        raise UserError(f"{path}: no column has what was asked", "say which it is: --map prompt=COLUMN")


def describe(source: Source) -> list[str]:
    """Return lines on what was read: the columns, five examples, what comments point at, what is
    left out."""
    imported, records = source.imported, source.records
    lines = [f"{source.path}: {source.rows} rows, {len(records)} records"]
    if source.proposal is not None:
        lines.append(f"  {source.proposal.line}")
    lines += [f"  {line}" for line in imported.scales]
    lines += [f"  {_example(record)}" for record in records[:EXAMPLES]]
    spanned = [record for record in records if record.spans]
    quoted = len(imported.anchored)
    corrected = sum(bool(record.meta.get("corrected")) for record in spanned)
    comments = sum(bool(record.critique.strip()) for record in records)
    if comments or spanned:
        how = [
            f"{count} {what}" for count, what in ((quoted, "by quotes"), (corrected, "from corrections")) if count
        ]
        unplaced = len(records) - len(spanned)
        rest = f", {unplaced} do not: they count through their rating" if unplaced else ""
        shown = f" ({', '.join(how)})" if how else ""
        lines.append(f"  {len(spanned)} records point at words{shown}{rest}")
    lines += [f"  quoted, so marked: {line}" for line in imported.anchored[:EXAMPLES]]
    if disagree := _disagreements(records):
        lines.append(f"  answers praised by one person and blamed by another, both count: {disagree}")
    lines += [f"  not used: {line}" for line in imported.losses[:EXAMPLES]]
    if (more := len(imported.losses) - EXAMPLES) > 0:
        lines.append(f"  not used: {more} more (text2grad import shows all)")
    return lines


def _example(record: Feedback) -> str:
    texts = (conversation_text(record.prompt), str(record.response), record.critique)
    score = "" if record.score is None else f" | {record.score:+.2g}"
    return " | ".join(_short(text) for text in texts) + score


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"


def _disagreements(records: Sequence[Feedback]) -> int:
    """The number of answers with a good score and a bad one."""
    signs: dict[tuple[str, str], set[bool]] = {}
    for record in records:
        if record.score:
            signs.setdefault((question_of(record), str(record.response)), set()).add(record.score > 0)
    return sum(len(both) == 2 for both in signs.values())


# The plan.


def make_plan(source: Source) -> Plan:
    """Choose the steps by what people wrote, and split the questions.

    Raises:
        UserError: there are fewer than `FEWEST_TRAINED` questions to learn from.
    """
    records = source.records
    corrected = [record for record in records if _correction(record)]
    marked = [record for record in records if record.spans]
    scores = {record.score for record in records if record.score is not None}
    if not corrected and not marked and len(scores) < 2:
        alike = "all ratings are alike" if scores else "there are no ratings"
        return Plan((), f"nothing to learn: no answer is corrected, no word is marked, {alike}")
    if len(corrected) >= NEARLY_ALL * len(records):
        steps: tuple[str, ...] = (SFT,)
        reason = f"{len(corrected)} of {len(records)} answers are corrected: learn the corrections (sft)"
    else:
        what = "the comments" if marked else "the ratings"
        first = "the answers as sent, corrected where people did" if corrected else "the answers as sent"
        steps, reason = (SFT, OFFLINE), f"learn {first} (sft), then {what} (train --offline)"
    training, heldout = _split(records)
    if len(training) < FEWEST_TRAINED:
        problem = f"{source.path}: {len(training) + len(heldout)} questions are too few to learn from"
        raise UserError(problem, f"collect {FEWEST_TRAINED + 1} or more; some fifty make a difference")
    return Plan(steps, reason, training, heldout)


def _correction(record: Feedback) -> str:
    corrected = str(record.meta.get("corrected") or "")
    return corrected if corrected.strip() != str(record.response).strip() else ""


def _split(records: Sequence[Feedback]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The questions to learn from and those held out, each once, with the best answer that is
    known."""
    by_question: dict[str, list[Feedback]] = {}
    for record in records:
        by_question.setdefault(words_of(question_of(record)), []).append(record)
    order = sorted(by_question, key=digest)
    count = min(MOST_HELDOUT, max(1, round(SHARE * len(order))))
    held_out = {*order[:count]}
    examples = {question: _as_question(answers) for question, answers in by_question.items()}
    training = tuple(example for question, example in examples.items() if question not in held_out)
    return training, tuple(example for question, example in examples.items() if question in held_out)


def _as_question(records: Sequence[Feedback]) -> Example:
    """A question with the answer to imitate: a correction, else the best rated."""
    best = max(records, key=lambda record: (bool(_correction(record)), record.score or 0.0))
    reference = _correction(best) or str(best.response)
    return Example(id=best.id, prompt=best.prompt, reference=reference)


def settings_of(config: Config, plan: Plan, source: Source) -> Config:
    """The configuration of all steps."""
    folder = config.run.folder
    values: dict[str, Any] = {
        "task.name": "qa",
        "task.data": str(folder / QUESTIONS),
        "task.heldout_data": str(folder / HELDOUT),
    }
    if not is_set(config, "evaluate.samples"):
        values["evaluate.samples"] = 1
    longest = max((len(str(example.reference)) for example in (*plan.training, *plan.heldout)), default=0)
    if config.policy.model != TINY:
        # A token has three characters or more; half as long again as the longest answer is enough.
        values["generation.max_new_tokens"] = min(LONGEST_ANSWER, max(32, longest // 2))
        if plan.steps == (SFT,):
            values["sft.least_loss"] = None  # nothing is sampled afterwards
    if plan.steps == (SFT, OFFLINE) and not any(record.spans for record in source.records):
        values["credit.scheme"] = "spread_score"
    return with_values(config, values)


# The run.


class Steps:
    """The steps of a run: each is named by its command, and is not run again once it has ended."""

    def __init__(self, folder: Path, identity: str, restart: bool) -> None:
        self.note = folder / NOTE
        self.state: dict[str, Any] = {"identity": identity, "seconds": {}}
        if self.note.is_file() and not restart:
            state = json.loads(self.note.read_text(encoding="utf-8"))
            if state.get("identity") != identity:
                problem = f"{folder} is of another file, or of other settings"
                raise UserError(problem, "start over with --restart, or give another --run.folder")
            self.state = state

    def run(self, name: str, command: Sequence[str], work: Callable[[], object]) -> None:
        """Run a step that has not ended before."""
        print(f"$ {shlex.join(['text2grad', *command])}", file=sys.stderr, flush=True)
        if name in self.state["seconds"]:
            print(f"  ended before, in {self.state['seconds'][name]:.0f} s", file=sys.stderr)
            return
        started = time.perf_counter()
        work()
        self.state["seconds"][name] = round(time.perf_counter() - started, 1)
        self.keep()

    def keep(self, **values: Any) -> None:
        """Write what has been done."""
        self.state |= values
        write_json(self.note, self.state)

    @property
    def minutes(self) -> float:
        """The time of all steps."""
        return float(sum(self.state["seconds"].values())) / 60


def run_improve(
    config: Config,
    path: Path,
    options: ImproveOptions,
    confirm: Confirm | None = None,
    choose: Choose | None = None,
) -> ImproveSummary:
    """Read feedback, train on it, and keep the better policy. `confirm` is asked before anything is
    written, `choose` where two columns or scales may be meant.

    Raises:
        UserError: the file cannot be read, its columns are in doubt, or a step failed.
        UsageError: another engine is to train, and the last step has none.
    """
    if config.engine.name != "local":
        raise UsageError(f"engine.name {config.engine.name} learns from no file", "--engine.name local")
    source = read_source(config, path, options, choose)
    for line in describe(source):
        print(line, file=sys.stderr)
    plan = make_plan(source)
    summary = ImproveSummary(
        rows=source.rows,
        records=len(source.records),
        steps=plan.steps,
        reason=plan.reason,
        heldout=len(plan.heldout),
    )
    if not plan.steps:
        print(f"{plan.reason}. Nothing was written.", file=sys.stderr)
        return summary
    config = settings_of(config, plan, source)
    speed = machine_speed(config)
    asked = {words_of(question_of(example)) for example in plan.training}
    learned = [record for record in source.records if words_of(question_of(record)) in asked]
    expected = estimate(config, plan.training, plan.heldout, learned, plan.steps, speed)
    print(f"plan: {_plan_line(plan, expected)}", file=sys.stderr)
    summary = replace(summary, estimated_minutes=round(expected.minutes, 1))
    if options.plan or (confirm is not None and not confirm("Go ahead?")):
        return summary
    return _run(config, source, plan, options, summary)


def machine_speed(config: Config, seconds: float = 0.3) -> float:
    """Floating point operations in a second that this machine does in products of the size of a
    small model's."""
    import torch

    from text2grad.durable.machine import derive_threads
    from text2grad.policy.load import choose_device

    torch.set_num_threads(config.run.threads or derive_threads()[0])
    kind = getattr(torch, "float32" if config.policy.dtype == "auto" else config.policy.dtype)
    device = choose_device(config.policy.device)
    left, right = torch.ones(512, 576, dtype=kind, device=device), torch.ones(576, 1536, dtype=kind, device=device)
    (left @ right).sum().item()
    done, started = 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < seconds:
        (left @ right)[0, 0].item()
        done += 1
    return done * 2.0 * 512 * 576 * 1536 / taken


def _plan_line(plan: Plan, expected: Estimate) -> str:
    counts = f"{len(plan.training)} questions for training, {len(plan.heldout)} held out"
    return f"{counts} · {plan.reason} · about {expected.words}"


def _run(
    config: Config, source: Source, plan: Plan, options: ImproveOptions, summary: ImproveSummary
) -> ImproveSummary:
    from text2grad.page.report import build_report
    from text2grad.stages.evaluate.policy import run_evaluate
    from text2grad.stages.intake import run_import
    from text2grad.stages.sft import run_sft
    from text2grad.stages.train import run_train_offline

    run = RunFolder.of(config)
    run.refuse_unwritable()
    settings = dump_config(config, only_set=True)
    steps = Steps(run.path, _identity(source, settings), options.restart)
    write_atomically(run.path / SETTINGS, settings)
    for name, examples in ((QUESTIONS, plan.training), (HELDOUT, plan.heldout)):
        write_atomically(run.path / name, "".join(f"{to_json(_question_row(example))}\n" for example in examples))
    steps.keep()
    resume: ResumeMode = "restart" if options.restart else "auto"
    names, scales, sheet = source.options.names, source.options.scales, source.options.sheet
    with_settings = ["--config", str(run.path / SETTINGS)]

    def read() -> object:
        return run_import(config, source.path, "auto", None, names, scales, sheet=sheet, skip=True)

    steps.run("import", ["import", str(source.path), *source.arguments, *with_settings], read)
    if SFT in plan.steps:
        steps.run(SFT, ["sft", *with_settings], lambda: run_sft(config, resume))
    if OFFLINE in plan.steps:
        command = ["train", "--offline", str(run.feedback_file), *with_settings]
        steps.run(OFFLINE, command, lambda: run_train_offline(config, run.feedback_file, OFFLINE, resume))
    for name in (BASE, *plan.steps):
        steps.run(f"evaluate {name}", ["evaluate", name, *with_settings], partial(run_evaluate, config, name))
    best, comparison = best_policy(run, source.records, plan)
    verdict, kept = _keep(run, best, comparison)
    print(comparison.line, file=sys.stderr)
    print(verdict, file=sys.stderr)
    page = build_report(run.path)
    for line in _what_next(run, kept, page, len(source.records)):
        print(line, file=sys.stderr)
    decided = None if comparison.gain is None else comparison.better
    steps.keep(better=decided, kept=best if decided else BASE, before=comparison.before, after=comparison.after)
    return replace(
        summary,
        before=dict(comparison.before),
        after=dict(comparison.after),
        better=decided,
        kept=best if decided else BASE,
        minutes=round(steps.minutes, 1),
        out=str(kept) if kept else None,
    )


def _identity(source: Source, settings: str) -> str:
    """A digest of the file and of the settings."""
    return digest(f"{source.path.read_bytes().hex()}\n{settings}\n{source.arguments}").hex()[:16]


def _question_row(example: Example) -> dict[str, Any]:
    turns = [message.model_dump() for message in example.prompt]
    prompt: Any = turns[0]["content"] if len(turns) == 1 and turns[0]["role"] == "user" else turns
    return {"id": example.id, "prompt": prompt, "reference": example.reference}


def best_policy(run: RunFolder, records: Sequence[Feedback], plan: Plan) -> tuple[str, Comparison]:
    """The trained policy that gains most on the held-out questions, and how it compares with the
    base model."""
    question = {example.id: question_of(example) for example in plan.heldout}
    expected = expectations(records, question.values())
    answers = {name: _answers(run, name, question) for name in (BASE, *plan.steps)}
    compared = {name: compare(expected, answers[BASE], answers[name]) for name in plan.steps}

    def gain(name: str) -> float:
        interval = compared[name].gain
        return interval.mean if interval else 0.0

    best = max(reversed(plan.steps), key=gain)
    return best, compared[best]


def _answers(run: RunFolder, name: str, question: Mapping[str, str]) -> dict[str, str]:
    rows = json.loads((run.results / f"{name}{ANSWERS}").read_text(encoding="utf-8"))
    return {question[row["id"]]: str(row["response"]) for row in rows if row["id"] in question}


def _keep(run: RunFolder, best: str, comparison: Comparison) -> tuple[str, Path | None]:
    """Copy the better policy to `KEPT`; the sentence on it, and its folder (None: the old one
    stays)."""
    if comparison.gain is None:
        return "too few held-out questions to tell: the old policy is kept, the new ones stay in the run", None
    mean, low, high = comparison.gain
    interval = f"{mean:+.2f} of 1 a question, between {low:+.2f} and {high:+.2f}"
    if not comparison.better:
        return f"not better beyond chance ({interval}): the old policy is kept", None
    from text2grad.durable.run import put_in_place

    target = run.path / KEPT
    put_in_place(target, partial(shutil.copytree, run.find_policy(best)))
    return f"better: {best} is kept as {target} ({interval})", target


def _what_next(run: RunFolder, kept: Path | None, page: Path, records: int) -> list[str]:
    lines = [f"page: {page}, or text2grad view {run.path}"]
    if kept is not None:
        merged = f"{run.path}/merged"
        lines.append(
            f"serve: text2grad merge {kept} --out {merged} --run.folder {run.path}, then vllm serve {merged}"
        )
    if records >= FEW_ANSWERS:
        settings = f"--config {run.path / SETTINGS}"
        lines.append(f"{records} records are enough for a critic: text2grad train-reward {settings}, then train")
    return lines
