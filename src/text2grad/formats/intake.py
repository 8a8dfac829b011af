"""Import: people's feedback as records, from their own tables and JSON, tools, and published data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, QuoteCounts, Record, leads_out, read_jsonl, record_json
from text2grad.formats.conversations import Write, by_default, by_trace, is_structured, with_conversation
from text2grad.formats.datasets import defacto, drafts, finegrained, mqm, squality
from text2grad.formats.importer import MAPPED, Importer, Names, Records, records_of
from text2grad.formats.marks import subject_of
from text2grad.formats.remarks import rows as remarks
from text2grad.formats.remarks.columns import RATINGS, SAYS, parse_map, plain_name
from text2grad.formats.scale import Scale, parse_scales
from text2grad.formats.tools import argilla, label_studio, platforms, prodigy
from text2grad.named import is_own_name, load_named
from text2grad.tasks.loaders import Row, bad_record, convert_rows, placed_rows
from text2grad.tasks.sheets import is_table

DATA_SETS = (finegrained.IMPORTER, *squality.IMPORTERS, mqm.IMPORTER, defacto.IMPORTER, *drafts.IMPORTERS)
"""Published data sets: their shape and their scales are known, so no option says any."""
IMPORTERS: Sequence[Importer] = (
    *DATA_SETS,
    label_studio.TASKS,
    label_studio.FLAT,
    *platforms.EXPORTS,
    argilla.IMPORTER,
    prodigy.IMPORTER,
    platforms.DOCCANO,
)
"""In the order in which a file is tried."""
REMARKS = ("csv", "remarks")
KINDS = ("auto", "feedback", *dict.fromkeys(each.name for each in IMPORTERS), *REMARKS)
SAID = frozenset({*SAYS, *RATINGS})
OWN_KEYS = frozenset({"id", "prompt", "response", "source"})
"""Every record of our own has these."""


class ImportReport(Record):
    """What an import found. `spans` counts labelled spans; the four counts after it say what yielded none:
    quotes not in the response, quotes that occur more than once, comments without polarity, and quotes that
    repeat another of the same review. spans + these four = exact + normalised + unmatched = all that was marked:
    `exact` occurs in the response literally, `normalised` apart from white space, quotes or dashes.
    `no_spans` and `failed` count records.
    """

    source: str
    records: int
    spans: int
    unmatched: int = 0
    ambiguous: int = 0
    no_polarity: int = 0
    repeated: int = 0
    exact: int = 0
    normalised: int = 0
    no_spans: int = 0
    failed: int = 0


class ImportResult(Record):
    """All records of a file, in its order, and what was found.

    `scales` says how ratings were read; `losses` names every line of which something was not used, and why;
    `ignored` the columns that were not read.
    """

    records: list[Feedback]
    report: ImportReport
    scales: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """What the command line says of a file: names of columns, fields and questions (`--map`), scales of ratings by
    question (`--scale`; "": of the score), and what the task shows of a long prompt.
    """

    names: Sequence[str]
    scales: Mapping[str, Scale]
    context_characters: int | None
    write: Write = by_default

    def refuse(self, kind: str) -> None:
        """Stop where names or scales are given for a kind of file that needs none."""
        for option, given in (("--map", self.names), ("--scale", self.scales)):
            if given:
                why = f"{option} is for tables and remarks, and for tools, not for {kind}"
                raise UsageError(why, "leave it out")


def import_feedback(
    path: str | Path,
    kind: str = "auto",
    context_characters: int | None = None,
    names: Sequence[str] = (),
    scales: Sequence[str] = (),
    write: Write = by_default,
) -> ImportResult:
    """Read people's feedback as records.

    `kind`: `remarks` or `csv` (a response and what somebody said of it: `formats.remarks.rows`), the name of one of
    `IMPORTERS` (a tool's export, a published data set), an `Importer` of your own as `module:NAME`, `feedback` (our
    own records), or `auto`.
    `context_characters` must be what the policy's task uses (`TaskSettings`), so that both see one prompt.
    `names` says which columns, keys or fields are meant, where they have other names: `response=answer`.
    `scales` says what ratings are on, the worst first: `1..5`, or of one question `helpful=1..5`.
    `write` is how the policy writes a turn that calls tools or reasons, where a conversation has such.

    Raises:
        UserError: the file cannot be read, is not of a known kind, or has a bad record (which one).
    """
    path, options = Path(path), Options(names, parse_scales(scales), context_characters, write)
    if kind not in KINDS and not is_own_name(kind):
        raise UsageError(f"unknown kind of feedback {kind!r}", f"one of {', '.join(KINDS)}, or module:NAME")
    found = [] if kind == "feedback" else list(by_trace(placed_rows(path)))
    if not found and kind == "auto":
        what = "has no rows" if path.stat().st_size else "is empty"
        raise UserError(f"{path} {what}", "check that it is the right file")
    places, rows = [place for place, _ in found], [row for _, row in found]
    as_found = rows
    rows = _with_conversations(path, rows, options)
    read_as = _kind_of(rows, path, bool(names)) if kind == "auto" else _asked_for(kind, rows)
    if isinstance(read_as, Importer):
        return _import_rows(path, read_as, rows, options)
    if read_as in REMARKS:
        columns = {ours: theirs[-1] for ours, theirs in parse_map(names).items()}
        rows = [_with_paths(row, columns) for row in rows]
        remarked = remarks.read(path, places, rows, read_as, columns, options.scales)
        return ImportResult(report=_report(read_as, remarked.records), **vars(remarked))
    options.refuse("feedback")
    records = _check(path, list(_own(path, as_found, rows)))
    return ImportResult(records=records, report=_report("feedback", records))


def _with_conversations(path: Path, rows: Sequence[Row], options: Options) -> list[Row]:
    """The rows, those with a conversation and something said of it with its turns as prompt and response.

    Raises:
        UserError: a conversation cannot be read (whose).
    """
    mapped = {pair.partition("=")[0].strip() for word in options.names for pair in word.split(",")}
    if "response" in mapped:
        return list(rows)
    found = []
    for number, row in enumerate(rows, start=1):
        try:
            is_said = mapped & SAID or SAID & set(map(plain_name, row))
            is_read = is_structured(row.get("response")) if row.keys() >= OWN_KEYS else is_said
            found.append(with_conversation(row, options.write) if is_read else row)
        except ValueError as error:
            raise bad_record(path, number, error) from error
    return found


def _own(path: Path, as_found: Sequence[Row], rows: Sequence[Row]) -> Iterator[Feedback]:
    """Records of our own: as they are written, or with turns that were read off structured messages."""
    if all(new is old for new, old in zip(rows, as_found, strict=True)):
        yield from read_jsonl(path, Feedback)
        return
    for number, row in enumerate(rows, start=1):
        try:
            yield Feedback.model_validate(row)
        except ValidationError as error:
            raise bad_record(path, number, error) from error


def _asked_for(kind: str, rows: Sequence[Row]) -> Importer | str:
    """The importer of a kind; of several that share a name, the one that knows a row."""
    if is_own_name(kind):
        own = load_named("importer", kind, kinds=(object,))
        if not isinstance(own, Importer):
            cure = "write NAME = Importer(...) there: text2grad.formats.importer"
            raise UserError(f"--kind {kind}: it is {type(own).__name__}, and no Importer", cure)
        return own
    named = [each for each in IMPORTERS if each.name == kind]
    return next((each for each in named if any(map(each.knows, rows))), named[0]) if named else kind


def _kind_of(rows: Sequence[Row], path: Path, mapped: bool) -> Importer | str:
    """The importer that knows the first row; else `feedback`, `csv` or `remarks`. What is `mapped` is never read as
    one of the kinds that take no names.
    """
    first = rows[0]
    own = first.keys() >= OWN_KEYS
    importer = next((each for each in IMPORTERS if not own and each.knows(first)), None)
    if importer and not (mapped and importer in DATA_SETS):
        return importer
    if own and not mapped:
        return "feedback"
    if is_table(path):
        return "csv"  # which says what column is missing
    if mapped or "response" in map(plain_name, first):
        return "remarks"
    if {"chosen", "rejected"} <= first.keys() or {"preferred_output", "non_preferred_output"} <= first.keys():
        cure = f"learn from them by: text2grad train-reward --pairs {path}"
        raise UserError(f"{path}: these are pairs of answers, and no feedback on one", cure)
    texts = ", ".join(_paths(first))[:300]
    cure = f"say where what is: --map response=KEY,critique=KEY (or prompt, score, corrected); keys: {texts}"
    raise UserError(f"{path}: cannot tell what kind of feedback this is", cure)


def _import_rows(path: Path, importer: Importer, rows: list[Row], options: Options) -> ImportResult:
    """The records that an importer makes of a file."""
    if importer in DATA_SETS:
        options.refuse(importer.name)
    try:
        declared = importer.names(path, rows)
    except (AttributeError, KeyError, TypeError, ValueError):  # a bad row, which is named when it is read
        declared = Names()
    chosen = parse_map(options.names, MAPPED)
    names = replace(declared, chosen=chosen, context_characters=options.context_characters, write=options.write)
    noun = importer.noun or f"record of {importer.name}"
    found = convert_rows(rows, path, importer.keys, lambda row, id: importer.read(row, id, names), noun)
    read = records_of(importer, importer.join(list(found), path), names, options.scales)
    if read.losses and not read.records:
        why = f"{path}: nobody's opinion is in it: {'; '.join(read.losses)}"
        raise UserError(why, "export what people answered")
    return _summary(path, importer.name, read)


def _summary(path: Path, kind: str, read: Records) -> ImportResult:
    """The records with their figures, after a look at their ids; the same remark of one person twice is one."""
    subjects: dict[str, object] = {}
    for number, record in enumerate(_check(path, read.records), start=1):
        if subjects.setdefault(record.id, subject_of(record)) != subject_of(record):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} occurs twice, for another text"))
    kept = list({record_json(each): each for each in read.records}.values())
    losses = [line for record in kept for line in _losses(record)]
    if again := len(read.records) - len(kept):
        losses.append(f"the same remark of the same person again, left out: {again}")
    return ImportResult(
        records=kept, report=_report(kind, kept), scales=read.scales, losses=(*losses, *read.losses)
    )


def _with_paths(row: Row, names: Mapping[str, str]) -> Row:
    """A row with what `names` reach by dots inside its values (`outputs.answer`, `feedback.0.comment`) as keys."""
    inside = {name: _inside(row, name) for name in names.values() if name not in row and "." in name}
    return {**row, **{name: value for name, value in inside.items() if value is not None}}


def _inside(value: Any, name: str) -> Any:
    for part in name.split("."):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return None
    return value


def _paths(value: Any, name: str = "") -> Iterator[str]:
    """The names of all texts and numbers in a value, by dots."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _paths(each, f"{name}.{key}" if name else str(key))
    if not isinstance(value, dict | list) and value is not None:
        yield name


def _check(path: Path, records: list[Feedback]) -> list[Feedback]:
    """The records, if there are any and no id leads out of its folder.

    Raises:
        UserError: otherwise.
    """
    if not records:
        raise UserError(f"{path} has no records", "check that it is the right file")
    for number, record in enumerate(records, start=1):
        if leads_out(record.id):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} leads out of its folder"))
    return records


def _losses(record: Feedback) -> list[str]:
    """What of a record that a tool wrote gave no span, by its id."""
    counts = record.quotes
    lost = {
        "not where they say, or not in the response": counts.unmatched,
        "in the response more than once": counts.ambiguous,
        "neither praise nor criticism by their label": counts.no_polarity,
    }
    return [f"record {record.id}: marks {what}: {count}" for what, count in lost.items() if count]


def merged(existing: Iterable[Feedback], new: Iterable[Feedback]) -> list[Feedback]:
    """Both, in their order; what the same person said of the same response before is replaced in its place.

    So a second file adds to the first, and importing one file twice changes nothing. Of several remarks of one
    person on one response, the k-th replaces the k-th.
    """
    return list((_by_content(existing) | _by_content(new)).values())


def _by_content(records: Iterable[Feedback]) -> dict[tuple[object, ...], Feedback]:
    """The records by what they are about and their number there. A table and the same remarks from
    anywhere else are one data set: what is exported comes back edited.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    found: dict[tuple[object, ...], Feedback] = {}
    for record in records:
        source, annotator = record.source, str(record.meta.get("annotator", ""))
        key = source.kind, source.model, record.id, record.response, annotator
        seen[key] += 1
        found[*key, seen[key]] = record
    return found


def reports_by_data_set(records: Iterable[Feedback]) -> dict[str, ImportReport]:
    """What a feedback file holds of each data set, in order of appearance; `feedback` where none is named."""
    groups: dict[str, list[Feedback]] = {}
    for record in records:
        groups.setdefault(str(record.meta.get("dataset") or "feedback"), []).append(record)
    return {name: _report(name, group) for name, group in groups.items()}


def _report(source: str, records: Sequence[Feedback]) -> ImportReport:
    counts = sum((record.quotes for record in records), QuoteCounts())
    spans = sum(len(record.spans) for record in records)
    found = spans + counts.ambiguous + counts.no_polarity + counts.repeated
    return ImportReport(
        source=source,
        records=len(records),
        spans=spans,
        exact=found - counts.normalised,
        no_spans=sum(not record.spans for record in records),
        failed=sum(record.error is not None for record in records),
        **counts.model_dump(exclude={"fuzzy", "foreign"}),
    )
