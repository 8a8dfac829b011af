"""People as critics: import of published human feedback, and a critic that plays it back.

Nothing is guessed. A quote that is not in the response, or stands there more than once, yields no span and
is counted; so is a comment that does not say whether it praises or criticises. What the person wrote stays in
the critique's text in any case.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from text2grad.critics import finegrained, squality
from text2grad.critics.shapes import argilla, defacto, label_studio, mqm, prodigy, table
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Example, Failure, Feedback, Judgement, QuoteCounts, Record, Source, read_jsonl
from text2grad.tasks.loaders import Row, bad_record, read_rows

Reader = Callable[[Row, str], Iterator[Feedback]]
SHAPES: Mapping[str, tuple[frozenset[str], Reader]] = {
    "label_studio": (label_studio.KEYS, label_studio.records),
    "argilla": (argilla.KEYS, argilla.records),
    "prodigy": (prodigy.KEYS, prodigy.records),
    "defacto": (defacto.KEYS, defacto.records),
    "csv": (table.KEYS, table.records),
}
"""Shapes whose rows are read one by one: the keys they are known by, and (row, id where it has none) -> records."""
KINDS = ("auto", "feedback", "finegrained_qa", "squality", *SHAPES, "mqm")


class ImportReport(Record):
    """What an import found. `spans` counts labelled spans; the four counts after it say what yielded none:
    quotes not in the response, quotes that occur more than once, comments without polarity, and quotes that
    repeat another of the same review. spans + these four = exact + normalised + unmatched = all that was marked:
    `exact` stands in the response to the letter, `normalised` but for white space, quotes or dashes.
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
    (all-responses.jsonl of SQuALITY's human evaluation), a tool's export (`SHAPES`), `mqm` (.tsv), `feedback` (our
    own records), or `auto`.
    `context_characters` must be what the policy's task uses (`TaskSettings`), so that both see one prompt.

    Raises:
        UserError: the file cannot be read, is of none of these kinds, or has a bad record (which one).
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of feedback {kind!r}", f"one of {', '.join(KINDS)}")
    if kind == "feedback":
        return _imported("feedback", list(read_jsonl(path, Feedback)), path)
    rows = list(_rows(path, kind))
    kind = _kind_of(rows, path) if kind == "auto" else kind
    if kind == "feedback":
        return _imported(kind, list(read_jsonl(path, Feedback)), path)
    if kind == "squality":
        return _imported(kind, list(squality.records(rows, path)), path)
    if kind == "mqm":
        return _imported(kind, _mqm(rows, path), path)
    if kind in SHAPES:
        return _imported(kind, _shaped(rows, path, kind), path)
    return _imported(kind, _finegrained(rows, path, context_characters), path)


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


class HumanCritic:
    """Answers with what people said about exactly this response to exactly this example; else `unsupported`.

    Raises:
        UserError: two records say different things about one response to one example.
    """

    source = Source(kind="human")

    def __init__(self, records: Iterable[Feedback]) -> None:
        self._known: dict[tuple[str, str], Judgement] = {}
        for record in records:
            key, judgement = (record.id, record.response), record.judgement()
            if self._known.setdefault(key, judgement) != judgement:
                raise UserError(
                    f"two critiques of one response to {record.id!r}", "give each review an id of its own"
                )

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Look the pairs up; a response nobody has reviewed gives a `Failure`."""
        return [self._of(example, text) for example, text in zip(examples, responses, strict=True)]

    def _of(self, example: Example, response: str) -> Judgement:
        unknown = Failure(kind="unsupported", message=f"{example.id}: nobody has reviewed this response")
        return self._known.get((example.id, response), unknown)


def example_of(record: Feedback) -> Example:
    """The example a record is about; its reference is the answer as people corrected it, if there is one."""
    corrected = record.meta.get("corrected") or record.meta.get("gold") or ""
    return Example(id=record.id, prompt=record.prompt, reference=str(corrected), meta=record.meta)


def _kind_of(rows: Sequence[Row], path: Path) -> str:
    known = {
        "finegrained_qa": finegrained.KEYS,
        "squality": squality.NESTED_KEYS,
        "squality, flat": squality.FLAT_KEYS,
        "mqm": mqm.KEYS,
        **{name: keys for name, (keys, _) in SHAPES.items() if name != "csv" or path.suffix == ".csv"},
        "feedback": frozenset({"id", "prompt", "response", "source"}),
    }
    for name, keys in known.items():
        if rows and keys <= rows[0].keys():
            return name.partition(",")[0]
    raise UserError(f"{path}: cannot tell what kind of feedback this is", f"--kind {'|'.join(KINDS[1:])}")


def _rows(path: Path, kind: str) -> Iterator[Row]:
    if path.suffix not in (".csv", ".tsv"):
        yield from read_rows(path)
        return
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".tsv":
                reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            else:
                reader = csv.DictReader(file)
            if path.suffix == ".csv" and kind in ("auto", "csv"):
                _check_header(path, list(reader.fieldnames or ()))
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{path}:{reader.line_num}: not as many cells as the header", "mend that line")
                yield dict(row)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}", "save the file as UTF-8") from error
    except csv.Error as error:
        raise UserError(f"{path}: {error}", "mend the table") from error


def _check_header(path: Path, names: list[str]) -> None:
    try:
        table.check_columns(names)
    except ValueError as error:
        raise UserError(f"{path}: {error}", "response, critique, good, poor") from error


def _shaped(rows: Sequence[Row], path: Path, kind: str) -> list[Feedback]:
    """The records of an export, each id once.

    Raises:
        UserError: a row is bad, or an id stands twice (which one).
    """
    records: list[Feedback] = []
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        keys, read = SHAPES[kind]
        try:
            if absent := sorted(keys - row.keys()):
                raise ValueError(f"no {absent[0]!r}")
            for record in read(row, f"{path.stem}-{number}"):
                _check_id(record.id, seen)
                records.append(record)
        except (AttributeError, KeyError, TypeError) as error:
            raise bad_record(path, number, ValueError(f"not a {kind} record: {error}")) from error
        except ValueError as error:
            raise bad_record(path, number, error) from error
    return records


def _check_id(id: str, seen: set[str]) -> None:
    if id in seen:
        raise ValueError(f"the id {id[:60]!r} stands twice")
    seen.add(id)


def leads_out(id: str) -> bool:
    """Whether an id, taken for a path, would name a place above its folder."""
    return ".." in id.replace("\\", "/").split("/")


def _mqm(rows: Sequence[Row], path: Path) -> list[Feedback]:
    for number, row in enumerate(rows, start=1):
        if absent := sorted(mqm.KEYS - row.keys()):
            raise bad_record(path, number, ValueError(f"no {absent[0]!r}"))
    try:
        return list(mqm.records(rows, path.stem))
    except ValueError as error:
        raise UserError(f"{path}: {error}", "mend that line") from error


def _finegrained(rows: Sequence[Row], path: Path, context_characters: int | None) -> list[Feedback]:
    records: list[Feedback] = []
    for number, row in enumerate(rows, start=1):
        try:
            records.append(finegrained.record(row, f"{path.stem}-{number}", context_characters))
        except ValueError as error:
            raise bad_record(path, number, error) from error
    return records


def _imported(source: str, records: list[Feedback], path: Path) -> Imported:
    if not records:
        raise UserError(f"{path} has no records", "check that it is the right file")
    for number, record in enumerate(records, start=1):
        if leads_out(record.id):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} leads out of its folder"))
    return Imported(records=records, report=_report(source, records))


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
