"""Read a file of feedback, and propose what its columns hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from text2grad.config import Config
from text2grad.data.files import LocatedRow, read_located_rows
from text2grad.data.keys import COLUMNS, RATING_COLUMNS, SYSTEM_KEYS
from text2grad.data.opinions import Names
from text2grad.data.paths import flatten_rows, has_separate_answers
from text2grad.data.records import ImportResult, has_known_format, import_rows
from text2grad.data.remarks import find_column, parse_map, plain_name
from text2grad.data.scale import parse_number
from text2grad.data.spreadsheets.columns import Proposal, propose
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, conversation_text
from text2grad.stages.run_folder import RunFolder
from text2grad.tasks.base import question_text

SHOWN_ROWS, SHOWN_CHARACTERS = 5, 40

DECIDED = ("prompt", "response", "critique", "corrected", "score", "annotator", *RATING_COLUMNS)
"""Our fields that a proposal assigns. A column with such a name that it leaves out is not read."""

Choose = Callable[[str, Sequence[str]], str]
"""Ask the user to choose one of several options."""


@dataclass(frozen=True)
class ImproveOptions:
    """Options of the command line other than settings.

    `names` and `scales` are as `import` takes them; `annotator` is a chat model that marks the
    words that comments are about.
    """

    sheet: str = ""
    names: Sequence[str] = ()
    scales: Sequence[str] = ()
    annotator: str = ""
    plan: bool = False
    restart: bool = False


@dataclass(frozen=True)
class Source:
    """A file of feedback and its records.

    `proposal` is None for a format whose keys say what they hold. `options` include the columns
    and scales that were proposed.
    """

    path: Path
    rows: int
    proposal: Proposal | None
    imported: ImportResult
    options: ImproveOptions

    @property
    def arguments(self) -> list[str]:
        """The options of `import` that read the file in the same way."""
        names, scales, sheet = self.options.names, self.options.scales, self.options.sheet
        words = [*(["--map", ",".join(names)] if names else []), *(w for s in scales for w in ("--scale", s))]
        return [*words, *(["--sheet", sheet] if sheet else []), "--skip"]

    @property
    def records(self) -> list[Feedback]:
        """The records with a judgement."""
        return [record for record in self.imported.records if record.error is None]


def read_source(config: Config, path: Path, options: ImproveOptions, choose: Choose | None = None) -> Source:
    """Read a file, and propose what its columns hold.

    `choose` is called where a column or scale is ambiguous; None refuses it.

    Raises:
        UserError: the file cannot be read, or has no answers or no questions.
        UsageError: a column or scale is ambiguous; the cure names the options that decide.
    """
    located = list(read_located_rows(path, options.sheet))
    if not located:
        raise UserError(f"{path} has no rows", "check that it is the right file")
    proposal = None if has_known_format(located[0][1]) else _propose(path, located, options)
    while proposal is not None and proposal.doubts and choose is not None:
        doubt = proposal.doubts[0]
        value = doubt.values[doubt.options.index(choose(f"{path}: the {doubt.subject}", doubt.options))]
        if doubt.rated:
            options = replace(options, scales=[*options.scales, value])
        else:
            options = replace(options, names=[*options.names, value])
        proposal = _propose(path, located, options)
    if proposal is not None:
        for doubt in proposal.doubts:
            raise UsageError(f"{path}: {doubt.problem}", f"choose one: {' or '.join(doubt.options)}")
        for field, content in (("response", "answers"), ("prompt", "questions")):
            if field not in proposal.columns and not proposal.conversation:
                raise UserError(f"{path}: no column of {content}", f"name it: --map {field}=COLUMN")
        name = proposal.columns.get("score", "")
        if name[-1:].isalnum() and parse_number(name) is not None:
            raise UserError(f"{path}: {name!r} is a rating, not the name of a column", "put a row of names above")
        scales = options.scales or ([proposal.scale] if proposal.scale else [])
        mapped = _mapped_columns(path, located, options)
        dropped, proposal = _settle_unused(proposal, mapped)
        located = [(place, {name: row[name] for name in row if name not in dropped}) for place, row in located]
        names = [f"{ours}={theirs}" for ours, columns in mapped.items() for theirs in columns]
        names += [f"{ours}={theirs}" for ours, theirs in proposal.columns.items() if ours not in mapped]
        options = replace(options, names=names, scales=scales)
    turns = Names(context_characters=config.task.context_characters, write=RunFolder.of(config).turn_writer())
    imported = import_rows(path, located, options.names, options.scales, turns, skip=True)
    return Source(path, len(located), proposal, imported, options)


def _mapped_columns(
    path: Path, located: Sequence[LocatedRow], options: ImproveOptions
) -> dict[str, tuple[str, ...]]:
    """Return our field -> the columns of the file that --map names."""
    flat, _ = flatten_rows([row for _, row in located])
    headers = list(dict.fromkeys(name for row in flat for name in row))
    named = parse_map(options.names).items()
    return {ours: tuple(find_column(path, name, headers) for name in names) for ours, names in named}


def _settle_unused(proposal: Proposal, mapped: Mapping[str, Sequence[str]]) -> tuple[set[str], Proposal]:
    """Return the columns to drop, which `import` would read by their names, and the proposal.

    Its notes name the columns that are read although it does not assign them.
    """
    fields = {theirs: ours for ours, columns in mapped.items() for theirs in columns}
    plain = {name: plain_name(name) for name in proposal.unused if name not in fields}
    fields |= {
        name: ours for name, ours in plain.items() if ours in (*COLUMNS, *SYSTEM_KEYS) and ours not in DECIDED
    }
    dropped = {name for name, ours in plain.items() if ours in DECIDED}
    notes = {name: f"read as {fields[name]}" for name in proposal.unused if name in fields}
    return dropped, replace(proposal, notes={**proposal.notes, **notes})


def _propose(path: Path, located: Sequence[LocatedRow], options: ImproveOptions) -> Proposal:
    columns = {ours: names[-1] for ours, names in _mapped_columns(path, located, options).items()}
    plain = [row for _, row in located]
    flat, talk = flatten_rows(plain)
    return propose(flat, columns, bool(options.scales), talk, bool(talk) and has_separate_answers(plain, talk))


def describe(source: Source) -> list[str]:
    """Return lines on the columns, some rows, the words that comments point at, and the losses."""
    imported, records = source.imported, source.records
    lines = [f"{source.path}: {source.rows} rows, {len(records)} records"]
    if source.proposal is not None:
        lines.append(f"  {source.proposal.line}")
    lines += [f"  {line}" for line in imported.scales]
    for record in records[:SHOWN_ROWS]:
        texts = (conversation_text(record.prompt), str(record.response), record.critique)
        score = "" if record.score is None else f" | {record.score:+.2g}"
        lines.append(f"  {' | '.join(map(_shorten, texts))}{score}")
    with_spans = [record for record in records if record.spans]
    if with_spans or any(record.critique.strip() for record in records):
        corrected = sum(bool(record.meta.get("corrected")) for record in with_spans)
        counts = ((len(imported.anchored), "by quotes"), (corrected, "from corrections"))
        kinds = ", ".join(f"{count} {kind}" for count, kind in counts if count)
        rated = sum(not record.spans and record.score is not None for record in records)
        others = f", {rated} do not: they count through their rating" if rated else ""
        lines.append(f"  {len(with_spans)} records point at words{f' ({kinds})' if kinds else ''}{others}")
    unused = [record for record in records if not record.spans and record.score is None]
    if comments := sum(bool(record.critique.strip()) for record in unused):
        lines.append(
            f"  {comments} comments quote nothing and have no rating: only their answers are learned"
            " (--annotator MODEL marks the words that they are about)"
        )
    lines += [f"  quoted, so marked: {line}" for line in imported.anchored[:SHOWN_ROWS]]
    if disagreements := _count_disagreements(records):
        lines.append(f"  answers praised by one person and criticised by another; both count: {disagreements}")
    lines += [f"  not used: {line}" for line in imported.losses[:SHOWN_ROWS]]
    if (more := len(imported.losses) - SHOWN_ROWS) > 0:
        lines.append(f"  not used: {more} more (text2grad import lists all)")
    return lines


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[: SHOWN_CHARACTERS - 1]}…"


def _count_disagreements(records: Sequence[Feedback]) -> int:
    """Count the answers that have a positive and a negative score."""
    signs: dict[tuple[str, str], set[bool]] = {}
    for record in records:
        if record.score:
            signs.setdefault((question_text(record), str(record.response)), set()).add(record.score > 0)
    return sum(len(answer_signs) == 2 for answer_signs in signs.values())
