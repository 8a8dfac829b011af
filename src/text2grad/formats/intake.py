"""Import: people's feedback as records, from their own tables and JSON, tools, and published data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, QuoteCounts, Record, leads_out, read_jsonl, to_json
from text2grad.formats.datasets import defacto, drafts, finegrained, mqm, squality
from text2grad.formats.importer import Names, Opinion, Tool, mapped, records_of
from text2grad.formats.marks import subject_of
from text2grad.formats.remarks import rows as remarks
from text2grad.formats.remarks.columns import parse_map, plain_name
from text2grad.formats.scale import Scale, parse_scales
from text2grad.formats.tools import argilla, label_studio, platforms, prodigy
from text2grad.tasks.loaders import Row, RowError, bad_record, convert_rows, placed_rows
from text2grad.tasks.sheets import is_table


class Format(Protocol):
    """A format whose rows are read one by one: the keys it is known by, and the records of a row."""

    @property
    def KEYS(self) -> frozenset[str]:
        """Every row has these."""
        ...

    def records(self, row: Row, fallback_id: str, /) -> Iterator[Feedback]:
        """The records of a row; `fallback_id` is for one without an id.

        Raises:
            ValueError: it is not such a row.
        """
        ...


EXPORTS: Mapping[str, Format] = {
    "defacto": defacto,
    "slf5k": drafts.SLF5K,
    "ilf": drafts.ILF,
    "ultrafeedback": drafts.ULTRAFEEDBACK,
}
TOOLS: Sequence[Tool] = (
    label_studio.TASKS,
    label_studio.FLAT,
    platforms.LABELBOX,
    platforms.LIGHTTAG,
    platforms.INCEPTION,
    platforms.LANGSMITH,
    platforms.PHOENIX,
    platforms.BRAT,
    argilla.NESTED,
    argilla.FLAT,
    prodigy.TASKS,
    platforms.DOCCANO,
)
"""In the order in which a file is tried."""
TOOL_NAMES = tuple(dict.fromkeys(tool.name for tool in TOOLS))
REMARKS = ("csv", "remarks")
KINDS = ("auto", "feedback", "finegrained_qa", "squality", *TOOL_NAMES, *EXPORTS, *REMARKS, "mqm")
KNOWN_BY: Mapping[str, frozenset[str]] = {
    "finegrained_qa": finegrained.KEYS,
    "squality": squality.NESTED_KEYS,
    "squality, flat": squality.FLAT_KEYS,
    "mqm": mqm.KEYS,
    "feedback": frozenset({"id", "prompt", "response", "source"}),
    **{name: module.KEYS for name, module in EXPORTS.items()},
    **dict.fromkeys(REMARKS, remarks.KEYS),
}
"""The first that fits; of remarks, which have least, the last."""


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


class Imported(Record):
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
class Said:
    """What the command line says of a file: names of columns, fields and questions (`--map`), and scales of ratings
    by question (`--scale`; "": of the score).
    """

    names: Sequence[str] = ()
    scales: Mapping[str, Scale] = field(default_factory=dict)


def import_feedback(
    path: str | Path,
    kind: str = "auto",
    context_characters: int | None = None,
    names: Sequence[str] = (),
    scales: Sequence[str] = (),
) -> Imported:
    """Read people's feedback as records.

    `kind`: `remarks` or `csv` (a response and what somebody said of it: `formats.remarks`), `finegrained_qa`
    (train_feedback.json and dev_feedback.json of FineGrainedRLHF), `squality` (all-responses.jsonl of SQuALITY's
    human evaluation), a tool's export (`TOOLS`), a data set's (`EXPORTS`), `mqm` (.tsv), `feedback` (our own
    records), or `auto`.
    `context_characters` must be what the policy's task uses (`TaskSettings`), so that both see one prompt.
    `names` says which columns, keys or fields are meant, where they have other names: `response=answer`.
    `scales` says what ratings are on, the worst first: `1..5`, or of one question `helpful=1..5`.

    Raises:
        UserError: the file cannot be read, is not of a known kind, or has a bad record (which one).
    """
    path, said = Path(path), Said(names, parse_scales(scales))
    if kind not in KINDS:
        raise UsageError(f"unknown kind of feedback {kind!r}", f"one of {', '.join(KINDS)}")
    if kind == "feedback":
        return _own(path, said)
    found = [("document", platforms.brat_row(path))] if path.suffix.lower() == ".ann" else list(placed_rows(path))
    if not found and kind == "auto":
        what = "has no rows" if path.stat().st_size else "is empty"
        raise UserError(f"{path} {what}", "check that it is the right file")
    places, rows = [place for place, _ in found], [row for _, row in found]
    tool = _tool_of(rows, kind)
    if tool is not None:
        return _import_tool(path, tool, rows, said)
    kind = _kind_of(rows, path, bool(names)) if kind == "auto" else kind
    if kind in REMARKS:
        return _import_remarks(path, kind, places, rows, said)
    if kind == "feedback":
        return _own(path, said)
    _refuse_said(kind, said)
    return _imported(path, kind, _read(rows, path, kind, context_characters))


def _own(path: Path, said: Said) -> Imported:
    """Records of our own."""
    _refuse_said("feedback", said)
    records = _named(path, list(read_jsonl(path, Feedback)))
    return Imported(records=records, report=_report("feedback", records))


def _refuse_said(kind: str, said: Said) -> None:
    for option, given in (("--map", said.names), ("--scale", said.scales)):
        if given:
            raise UsageError(f"{option} is for tables and remarks, and for tools, not for {kind}", "leave it out")


def _tool_of(rows: Sequence[Row], kind: str) -> Tool | None:
    """The tool whose export this is: the one asked for, else the one that knows the first row that any knows."""
    if kind in TOOL_NAMES:
        own = [tool for tool in TOOLS if tool.name == kind]
        return next((tool for tool in own if any(map(tool.known, rows))), own[0])
    if kind != "auto" or not rows:
        return None
    if any(keys <= rows[0].keys() for name, keys in KNOWN_BY.items() if name not in REMARKS):
        return None
    return next((tool for tool in TOOLS if tool.known(rows[0])), None)


def _import_tool(path: Path, tool: Tool, rows: list[Row], said: Said) -> Imported:
    """The records of a tool's file."""
    try:
        declared = tool.declared(path, rows)
    except (AttributeError, KeyError, TypeError, ValueError):  # a bad row, which is named when it is read
        declared = Names()
    names = replace(declared, chosen=mapped(said.names, tool.name))

    def read(row: Row, fallback_id: str) -> list[Opinion]:
        if not tool.known(row):
            raise RowError(f"not a record of {tool.name}", "leave --kind out, or mend the file")
        found = list(tool.opinions(row, fallback_id, names))
        if any(not (each.skipped or isinstance(each.response, str)) for each in found):
            raise ValueError("the response is not text")
        return found

    opinions = list(convert_rows(rows, path, frozenset(), read, f"record of {tool.name}"))
    told = records_of(tool, opinions, names, said.scales)
    if not told.records:
        raise UserError(
            f"{path}: nobody's opinion is in it: {'; '.join(told.losses)}", "export what people answered"
        )
    imported = _imported(path, tool.name, told.records)
    return imported.model_copy(update={"scales": told.lines, "losses": (*imported.losses, *told.losses)})


def _import_remarks(path: Path, kind: str, places: Sequence[str], rows: list[Row], said: Said) -> Imported:
    names = parse_map(said.names)
    read = remarks.read(path, places, [_with_paths(row, names) for row in rows], kind, names, said.scales)
    return Imported(report=_report(kind, read.records), **read._asdict())


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


def _imported(path: Path, kind: str, records: list[Feedback]) -> Imported:
    """The records with their figures, after a look at their ids; the same remark of one person twice is one."""
    subjects: dict[str, object] = {}
    for number, record in enumerate(_named(path, records), start=1):
        if subjects.setdefault(record.id, subject_of(record)) != subject_of(record):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} occurs twice, for another text"))
    kept = list({to_json(each.model_dump()): each for each in records}.values())
    losses = [line for record in kept for line in _losses(record)]
    if again := len(records) - len(kept):
        losses.append(f"the same remark of the same person again, left out: {again}")
    return Imported(records=kept, report=_report(kind, kept), losses=tuple(losses))


def _named(path: Path, records: list[Feedback]) -> list[Feedback]:
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
    told = {
        "not where they say, or not in the response": counts.unmatched,
        "in the response more than once": counts.ambiguous,
        "neither praise nor criticism by their label": counts.no_polarity,
    }
    return [f"record {record.id}: marks {what}: {count}" for what, count in told.items() if count]


def _read(rows: list[Row], path: Path, kind: str, context_characters: int | None) -> list[Feedback]:
    """The records of a file of another kind than ours."""
    if kind == "squality":
        return list(convert_rows(rows, path, frozenset(), squality.reader(rows, path), "SQuALITY review"))
    if kind == "mqm":
        return list(mqm.records(rows, path))
    if kind == "finegrained_qa":
        read = partial(finegrained.records, context_characters=context_characters)
        return list(convert_rows(rows, path, finegrained.KEYS, read, "FineGrainedRLHF record"))
    return list(convert_rows(rows, path, EXPORTS[kind].KEYS, EXPORTS[kind].records, f"{kind} record"))


def merged(existing: Iterable[Feedback], new: Iterable[Feedback]) -> list[Feedback]:
    """Both, in their order; what the same person said of the same response before is replaced in its place.

    So a second file adds to the first, and importing one file twice changes nothing. Of several remarks of one
    person on one response, the k-th replaces the k-th.
    """
    return list((_numbered(existing) | _numbered(new)).values())


def _numbered(records: Iterable[Feedback]) -> dict[tuple[object, ...], Feedback]:
    seen: Counter[tuple[str, ...]] = Counter()
    found: dict[tuple[object, ...], Feedback] = {}
    for record in records:
        key = _identity(record)
        seen[key] += 1
        found[*key, seen[key]] = record
    return found


def _identity(record: Feedback) -> tuple[str, ...]:
    """A table and the same remarks from anywhere else are one data set: what is exported comes back edited."""
    source, annotator = record.source, str(record.meta.get("annotator", ""))
    return source.kind, source.model, record.id, record.response, annotator


def data_set_of(record: Feedback) -> str:
    """Which published data set a record comes from; `feedback` for records that were ours already."""
    return str(record.meta.get("dataset") or "feedback")


def reports_by_data_set(records: Iterable[Feedback]) -> dict[str, ImportReport]:
    """What a feedback file holds of each data set, the data sets in order of appearance."""
    groups: dict[str, list[Feedback]] = {}
    for record in records:
        groups.setdefault(data_set_of(record), []).append(record)
    return {name: _report(name, group) for name, group in groups.items()}


def _kind_of(rows: Sequence[Row], path: Path, mapped: bool) -> str:
    if mapped:
        return "csv" if is_table(path) else "remarks"
    for name, keys in KNOWN_BY.items():
        if rows and keys <= rows[0].keys() and (name != "csv" or is_table(path)):
            return name.partition(",")[0]
    first = rows[0] if rows else {}
    if is_table(path):
        return "csv"  # which says what column is missing
    if "response" in map(plain_name, first):
        return "remarks"
    if {"chosen", "rejected"} <= first.keys() or {"preferred_output", "non_preferred_output"} <= first.keys():
        cure = f"learn from them by: text2grad train-reward --pairs {path}"
        raise UserError(f"{path}: these are pairs of answers, and no feedback on one", cure)
    texts = ", ".join(_paths(first))[:300]
    cure = f"say where what is: --map response=KEY,critique=KEY (or prompt, score, corrected); keys: {texts}"
    raise UserError(f"{path}: cannot tell what kind of feedback this is", cure)


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
        **counts.model_dump(exclude={"fuzzy"}),
    )
