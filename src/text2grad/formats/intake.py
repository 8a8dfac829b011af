"""Import: people's feedback as records, from the files of annotation tools and of published data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from text2grad.errors import UsageError, UserError
from text2grad.feedback import Feedback, QuoteCounts, Record, leads_out, read_jsonl
from text2grad.formats import argilla, defacto, finegrained, label_studio, mqm, prodigy, squality, table
from text2grad.tasks.loaders import Row, bad_record, convert_rows, read_rows

EXPORTS = {
    "label_studio": label_studio,
    "argilla": argilla,
    "prodigy": prodigy,
    "defacto": defacto,
    "csv": table,
}
"""Formats whose rows are read one by one: `KEYS` they are known by, and `records` of a row."""
KINDS = ("auto", "feedback", "finegrained_qa", "squality", *EXPORTS, "mqm")
KNOWN_BY: Mapping[str, frozenset[str]] = {
    "finegrained_qa": finegrained.KEYS,
    "squality": squality.NESTED_KEYS,
    "squality, flat": squality.FLAT_KEYS,
    "mqm": mqm.KEYS,
    **{name: module.KEYS for name, module in EXPORTS.items()},
    "feedback": frozenset({"id", "prompt", "response", "source"}),
}


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
    """All records of a file, in its order, and what was found."""

    records: list[Feedback]
    report: ImportReport


def import_feedback(path: Path, kind: str = "auto", context_characters: int | None = None) -> Imported:
    """Read people's feedback as records.

    `kind`: `finegrained_qa` (train_feedback.json and dev_feedback.json of FineGrainedRLHF), `squality`
    (all-responses.jsonl of SQuALITY's human evaluation), a tool's export (`EXPORTS`), `mqm` (.tsv), `feedback` (our
    own records), or `auto`.
    `context_characters` must be what the policy's task uses (`TaskSettings`), so that both see one prompt.

    Raises:
        UserError: the file cannot be read, is not of a known kind, or has a bad record (which one).
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of feedback {kind!r}", f"one of {', '.join(KINDS)}")
    rows = list(read_rows(path)) if kind != "feedback" else []
    if path.suffix == ".csv" and kind in ("auto", "csv") and rows:
        table.check_columns(path, list(rows[0]))
    kind = _kind_of(rows, path) if kind == "auto" else kind
    records = (
        list(read_jsonl(path, Feedback)) if kind == "feedback" else _read(rows, path, kind, context_characters)
    )
    if not records:
        raise UserError(f"{path} has no records", "check that it is the right file")
    seen: set[str] = set()
    for number, record in enumerate(records, start=1):
        if leads_out(record.id):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} leads out of its folder"))
        if kind in EXPORTS and record.id in seen:
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} occurs twice"))
        seen.add(record.id)
    return Imported(records=records, report=_report(kind, records))


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
    """Both, in their order; a record about the same response from the same data set is replaced in its place.

    So a second file adds to the first, and importing one file twice changes nothing.
    """
    kept = {_identity(record): record for record in existing}
    return list((kept | {_identity(record): record for record in new}).values())


def _identity(record: Feedback) -> tuple[str, ...]:
    source = record.source
    return data_set_of(record), source.kind, source.model, record.id, record.response


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
        if rows and keys <= rows[0].keys() and (name != "csv" or path.suffix == ".csv"):
            return name.partition(",")[0]
    raise UserError(f"{path}: cannot tell what kind of feedback this is", f"--kind {'|'.join(KINDS[1:])}")


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
