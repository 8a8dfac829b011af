"""Import: people's feedback as records, from their own tables and JSON, tools, and published data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, QuoteCounts, Record, leads_out, read_jsonl
from text2grad.formats import (
    argilla,
    defacto,
    drafts,
    finegrained,
    label_studio,
    mqm,
    prodigy,
    remarks,
    squality,
)
from text2grad.formats.columns import parse_map, plain_name
from text2grad.tasks.loaders import Row, bad_record, convert_rows, placed_rows
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
    "label_studio": label_studio,
    "argilla": argilla,
    "prodigy": prodigy,
    "defacto": defacto,
    "slf5k": drafts.SLF5K,
    "ilf": drafts.ILF,
    "ultrafeedback": drafts.ULTRAFEEDBACK,
}
REMARKS = ("csv", "remarks")
KINDS = ("auto", "feedback", "finegrained_qa", "squality", *EXPORTS, *REMARKS, "mqm")
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

    `losses` names every line of which something was not used, and why; `ignored` the columns that were not read.
    """

    records: list[Feedback]
    report: ImportReport
    losses: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def import_feedback(
    path: str | Path, kind: str = "auto", context_characters: int | None = None, names: Sequence[str] = ()
) -> Imported:
    """Read people's feedback as records.

    `kind`: `remarks` or `csv` (a response and what somebody said of it: `formats.remarks`), `finegrained_qa`
    (train_feedback.json and dev_feedback.json of FineGrainedRLHF), `squality` (all-responses.jsonl of SQuALITY's
    human evaluation), a tool's export (`EXPORTS`), `mqm` (.tsv), `feedback` (our own records), or `auto`.
    `context_characters` must be what the policy's task uses (`TaskSettings`), so that both see one prompt.
    `names` says which columns or keys remarks are in, where they have other names: `response=answer`.

    Raises:
        UserError: the file cannot be read, is not of a known kind, or has a bad record (which one).
    """
    path, kind = Path(path), _known(kind, path, names)
    if kind == "feedback":
        return _imported(path, kind, list(read_jsonl(path, Feedback)))
    found = list(placed_rows(path))
    if not found and kind == "auto":
        what = "has no rows" if path.stat().st_size else "is empty"
        raise UserError(f"{path} {what}", "check that it is the right file")
    places, rows = [place for place, _ in found], [row for _, row in found]
    kind = _kind_of(rows, path) if kind == "auto" else kind
    if kind == "feedback":
        return _imported(path, kind, list(read_jsonl(path, Feedback)))
    if kind in REMARKS:
        return _import_remarks(path, kind, places, rows, parse_map(names))
    return _imported(path, kind, _read(rows, path, kind, context_characters))


def _known(kind: str, path: Path, names: Sequence[str]) -> str:
    """The kind of a file as far as the command line tells it."""
    if kind not in KINDS:
        raise UsageError(f"unknown kind of feedback {kind!r}", f"one of {', '.join(KINDS)}")
    if not names or kind in REMARKS:
        return kind
    if kind != "auto":
        raise UsageError(f"--map is for tables and remarks, not for {kind}", "leave it out, or --kind remarks")
    return "csv" if is_table(path) else "remarks"


def _import_remarks(
    path: Path, kind: str, places: Sequence[str], rows: list[Row], names: Mapping[str, str]
) -> Imported:
    read = remarks.read(path, places, rows, kind, names)
    imported = _imported(path, kind, read.records)
    return imported.model_copy(update={"losses": (*read.notes, *read.losses), "ignored": read.ignored})


def _imported(path: Path, kind: str, records: list[Feedback]) -> Imported:
    """The records with their figures, after a look at their ids."""
    if not records:
        raise UserError(f"{path} has no records", "check that it is the right file")
    seen: set[str] = set()
    for number, record in enumerate(records, start=1):
        if leads_out(record.id):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} leads out of its folder"))
        if kind in EXPORTS and record.id in seen:
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} occurs twice"))
        seen.add(record.id)
    losses = () if kind == "feedback" else tuple(line for record in records for line in _losses(record))
    return Imported(records=records, report=_report(kind, records), losses=losses)


def _losses(record: Feedback) -> list[str]:
    """What of a record that a tool wrote gave no span, by its id."""
    counts = record.quotes
    told = {
        counts.unmatched: "not where they say, or not in the response",
        counts.ambiguous: "in the response more than once",
        counts.no_polarity: "neither praise nor criticism by their label",
    }
    return [f"record {record.id}: marks {what}: {count}" for count, what in told.items() if count]


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


def _kind_of(rows: Sequence[Row], path: Path) -> str:
    for name, keys in KNOWN_BY.items():
        if rows and keys <= rows[0].keys() and (name != "csv" or is_table(path)):
            return name.partition(",")[0]
    if is_table(path):
        return "csv"  # which says what column is missing
    if "response" in map(plain_name, rows[0] if rows else ()):
        return "remarks"
    keys_there = ", ".join(map(str, rows[0]))[:200] if rows else ""
    cure = f"name its keys: --map response=KEY,critique=KEY, or --kind {'|'.join(KINDS[1:])}; keys: {keys_there}"
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
