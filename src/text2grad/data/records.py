"""Import people's feedback in three passes: rows -> opinions -> records.

This module has the third pass and `import_feedback`, which runs all three. Nothing is guessed: a
mark that does not fit its text, or whose label is neither praise nor criticism, yields no span and
is counted in the record's `meta`, as is a quote that is missing or ambiguous. The person's own
words stay in the critique.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from text2grad.data import published
from text2grad.data.conversations import (
    TurnWriter,
    default_turn_text,
    read_record,
    refuse_telemetry,
)
from text2grad.data.files import (
    LocatedRow,
    Row,
    RowError,
    bad_record,
    find_texts,
    list_files,
    place_in,
    read_located_rows,
)
from text2grad.data.keys import (
    ANSWER_KEYS,
    COMMENT_KEYS,
    CONVERSATION_KEYS,
    CORRECTED_KEYS,
    JUDGEMENT_COLUMNS,
    RATING_COLUMNS,
    RECORD_KEYS,
)
from text2grad.data.opinions import Importer, Names, Opinion, read_opinions
from text2grad.data.paths import expand_paths, list_paths
from text2grad.data.remarks import Remarks, parse_map, plain_name, read_remarks
from text2grad.data.scale import Scale, Scales, parse_scales
from text2grad.data.spans.marks import (
    as_turns,
    build_human_record,
    drop_empty,
    id_subject,
    resolve_marks,
    to_code_points,
)
from text2grad.data.spreadsheets.tables import bad_rows, is_filled, is_table
from text2grad.data.tools import IMPORTERS as TOOL_IMPORTERS
from text2grad.data.tools import PAIRS_CURE
from text2grad.errors import InvalidFields, UsageError, UserError, first_error
from text2grad.feedback import Critique, Failure, Feedback, Label, QuoteCounts, Record, escapes_folder, response_key
from text2grad.json_text import record_json
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.named import is_import_path, load_named

DATA_SETS = published.IMPORTERS
"""Published data sets, whose shapes and scales are known; they take no `--map` or `--scale`."""
IMPORTERS: Sequence[Importer] = (*DATA_SETS, *TOOL_IMPORTERS)
"""In the order in which they are tried."""
REMARKS = ("csv", "remarks")
KINDS = ("auto", "feedback", *(importer.name for importer in IMPORTERS), *REMARKS)
MAPPED = ("response", "prompt", "score", "critique", "corrected", "good", "poor")
"""The fields and labels (good, poor) that `--map` may name in the files of tools."""
NO_PROMPT = "if the questions are unknown: --no-prompt"


class ImportReport(Record):
    """The figures of an import.

    Each mark or quote is counted once in `spans`, `unmatched`, `ambiguous`, `no_polarity` or
    `repeated`, and again in `exact`, `normalised` or `unmatched`.

    Attributes:
        source: the kind of file.
        unmatched: quotes that are not in the response.
        ambiguous: quotes that occur more than once.
        no_polarity: marks that are neither praise nor criticism.
        repeated: quotes that repeat another of the same review.
        exact: quotes that occur literally.
        normalised: quotes that occur apart from whitespace, quotation marks or dashes.
        no_spans: records without spans.
        failed: records without a judgement.
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
    """The records of a file, in its order, and what was not used.

    Attributes:
        unscored: lines on ratings that lack a scale.
        scales: lines on how ratings were read.
        anchored: lines on words that were marked because a comment quotes them.
        losses: lines on everything in the file that was not used, with the reason.
        ignored: columns that were not read.
    """

    records: list[Feedback]
    report: ImportReport
    unscored: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    anchored: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def import_feedback(
    path: str | Path,
    kind: str = "auto",
    context_characters: int | None = None,
    names: Sequence[str] = (),
    scales: Sequence[str] = (),
    write: TurnWriter = default_turn_text,
    no_prompt: bool = False,
    sheet: str = "",
    skip: bool = False,
) -> ImportResult:
    """Read people's feedback as records.

    Args:
        path: the file, or a folder of such files.
        kind: `remarks` or `csv` (responses with comments: `data.remarks`), the name of one of
            `IMPORTERS` (a tool's export, a published data set), a user-defined `Importer` as
            `module:NAME`, `feedback` (feedback records), or `auto`.
        context_characters: as in `TaskSettings`, so that critic and policy see the same prompt.
        names: columns, keys or fields with other names: `response=answer`.
        scales: scales of ratings, worst first: `1..5`, or for one question `helpful=1..5`.
        write: the policy's way to write a turn that calls tools or reasons.
        no_prompt: allow records without a prompt.
        sheet: the sheet of a workbook.
        skip: leave out unusable remarks, and list them in the losses.

    Returns:
        The records, and what could not be used.

    Raises:
        UserError: the file cannot be read, is of an unknown kind, or has an unusable record (which
            one).
    """
    if Path(path).is_dir():
        arguments = (kind, context_characters, names, scales, write, no_prompt, sheet, skip)
        return _import_folder(Path(path), lambda file: import_feedback(file, *arguments))
    if kind not in KINDS and not is_import_path(kind):
        raise UsageError(f"unknown kind of feedback {kind!r}", f"one of {', '.join(KINDS)}, or module:NAME")
    rows = list(read_located_rows(Path(path), sheet))
    options = Names(context_characters=context_characters, write=write, no_prompt=no_prompt)
    return import_rows(Path(path), rows, names, scales, options, kind, skip)


def import_rows(
    path: Path,
    rows: Sequence[LocatedRow],
    names: Sequence[str],
    scales: Sequence[str],
    options: Names,
    kind: str = "auto",
    skip: bool = False,
) -> ImportResult:
    """Read the rows of a file as records; see `import_feedback`."""
    given_scales = parse_scales(scales)
    if not rows and kind == "auto":
        problem = "has no rows" if path.stat().st_size else "is empty"
        raise UserError(f"{path} {problem}", "check that it is the right file")
    importer = _detect_kind(rows, path, bool(names)) if kind == "auto" else _importer_of_kind(kind)
    if importer in REMARKS:
        options = replace(options, mapped=parse_map(names))
        return _import_remarks(path, str(importer), rows, options, given_scales, skip)
    if (importer == "feedback" or importer in DATA_SETS) and (names or scales):
        option = "--map" if names else "--scale"
        name = importer.name if isinstance(importer, Importer) else importer
        raise UsageError(f"{option} is for tables and remarks, and for tools, not for {name}", "leave it out")
    if isinstance(importer, Importer):
        options = replace(options, mapped=parse_map(names, MAPPED))
        return _import_rows(path, importer, rows, options, given_scales)
    records = list(_read_records(path, rows, options.write))
    if not records:
        raise UserError(f"{path} has no records", "check that it is the right file")
    for number, record in enumerate(records, start=1):
        if escapes_folder(record.id):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} leads out of its folder"))
        if not (options.no_prompt or _has_prompt(record)):
            raise bad_record(path, number, RowError("the prompt is empty", NO_PROMPT))
    return ImportResult(records=records, report=_report("feedback", records))


def _import_folder(folder: Path, import_file: Callable[[Path], ImportResult]) -> ImportResult:
    """Import all files of a folder; the lines on each begin with its name."""
    files, others = list_files(folder)
    if not files:
        raise UserError(f"{folder} has no files of feedback", f"it holds: {', '.join(others[:6]) or 'nothing'}")
    results = [(file.name, import_file(file)) for file in files]
    records = [record for _, result in results for record in result.records]

    def collect(field: str) -> tuple[str, ...]:
        return tuple(f"{name}: {line}" for name, result in results for line in getattr(result, field))

    ignored = dict.fromkeys(name for _, result in results for name in result.ignored)
    kinds = dict.fromkeys(result.report.source for _, result in results)
    return ImportResult(
        records=records,
        report=_report(", ".join(kinds), records),
        unscored=collect("unscored"),
        scales=collect("scales"),
        anchored=collect("anchored"),
        losses=(*(f"{name}: no feedback, not read" for name in others), *collect("losses")),
        ignored=tuple(ignored),
    )


def _import_rows(
    path: Path,
    importer: Importer,
    rows: Sequence[LocatedRow],
    options: Names,
    given_scales: Mapping[str, Scale],
) -> ImportResult:
    """Import a file by an importer; `options` and `given_scales` come from the command line."""
    try:
        declared = importer.names(path, [row for _, row in rows])
    except (AttributeError, KeyError, TypeError, ValueError):  # reading the malformed row names it
        declared = Names()
    names = replace(
        declared,
        mapped=options.mapped,
        context_characters=options.context_characters,
        write=options.write,
        no_prompt=options.no_prompt,
    )
    opinions = read_opinions(importer, path, rows, names)
    used = [opinion for opinion in opinions if not opinion.skipped]
    values: dict[str, list[object]] = {}
    for opinion in used:
        for question, value in opinion.ratings.items():
            values.setdefault(question, []).append(value)
    main = next(iter(options.mapped.get("score", ())), "")
    scales = Scales.of(values, given_scales, names.scales, main, names.options)
    records, losses = build_records(path, importer, opinions, scales, names)
    losses += [*_unused(opinions), *_unlabelled(used, names.labels()), *scales.problems]
    if not records:
        problem = f"{path} has no opinions: {'; '.join(losses)}" if losses else f"{path} has no records"
        raise UserError(problem, "export people's answers")
    return ImportResult(
        records=records,
        report=_report(importer.name, records),
        unscored=scales.unscored,
        scales=scales.lines,
        losses=tuple(losses),
    )


def _import_remarks(
    path: Path,
    kind: str,
    rows: Sequence[LocatedRow],
    options: Names,
    given_scales: Mapping[str, Scale],
    skip: bool,
) -> ImportResult:
    columns = {ours: theirs[-1] for ours, theirs in options.mapped.items()}
    rows = [(location, expand_paths(row, options.mapped)) for location, row in rows]
    importer = Importer(kind, lambda row, id, names: ())

    def convert(
        part: Sequence[LocatedRow], scales: Mapping[str, Scale] = given_scales
    ) -> tuple[Remarks, list[Feedback], list[str]]:
        remarks = read_remarks(path, part, columns, scales, options.write)
        return remarks, *build_records(path, importer, remarks.opinions, remarks.scales, options)

    def convert_row(row: LocatedRow) -> None:
        filled = {plain_name(key) for key, value in row[1].items() if is_filled(value)}
        convert(
            [row], {name: scale for name, scale in given_scales.items() if not name or plain_name(name) in filled}
        )

    unusable: list[str] = []
    try:
        remarks, records, losses = convert(rows)
    except UserError:
        if not skip:
            raise
        rows, unusable = _split_usable(path, rows, convert_row)
        remarks, records, losses = convert(rows)
    losses += [*unusable, *_unread_lines(remarks.opinions), *remarks.scales.problems]
    anchored = [
        f"{opinion.location}: {', '.join(map(repr, opinion.anchored))}"
        for opinion in remarks.opinions
        if opinion.anchored
    ]
    return ImportResult(
        records=records,
        report=_report(kind, records),
        unscored=remarks.scales.unscored,
        scales=remarks.lines,
        anchored=tuple(anchored),
        losses=tuple(losses),
        ignored=remarks.ignored,
    )


def _split_usable(
    path: Path, rows: Sequence[LocatedRow], convert: Callable[[LocatedRow], object]
) -> tuple[list[LocatedRow], list[str]]:
    """Return the rows that can be converted by themselves, and a line on each of the others.

    If no row is usable, all rows are returned, so that their error is raised.
    """
    keys = dict.fromkeys(key for _, row in rows for key in row)
    usable, problems = [], []
    for location, row in rows:
        try:
            convert((location, {**keys, **row}))
        except UserError as error:
            problems.append(error.problem.removeprefix(f"{path}: "))
        else:
            usable.append((location, row))
    return (usable, problems) if usable else (list(rows), [])


# The third pass.


def build_records(
    path: Path, importer: Importer, opinions: Sequence[Opinion], scales: Scales, names: Names
) -> tuple[list[Feedback], list[str]]:
    """Build the records of all opinions of a file; identical records of one person become one.

    Returns:
        The records, and lines on what of the opinions was not used.

    Raises:
        UserError: records lack a prompt, are invalid, or share an id (all are named).
    """
    used = [opinion for opinion in opinions if not opinion.skipped]
    without_prompt = [opinion for opinion in used if not _has_prompt(opinion)]
    if without_prompt and not names.no_prompt:
        raise _no_prompt_error(path, without_prompt, len(without_prompt) == len(used))
    labels = names.labels()
    first_opinions: dict[str, Opinion] = {}  # by the JSON of the record
    subjects: dict[str, tuple[object, str]] = {}
    records: list[Feedback] = []
    losses: list[str] = []
    bad: list[tuple[str, str]] = []
    for opinion in opinions:
        lines = opinion.losses
        if not opinion.skipped:
            try:
                record = build_record(importer, opinion, scales, labels)
            except InvalidFields as error:
                bad.append((opinion.location, error.problem))
                continue
            first = first_opinions.setdefault(record_json(record), opinion)
            if first is opinion:
                records.append(record)
                subject = id_subject(record)
                other, location = subjects.setdefault(record.id, (subject, opinion.location))
                id = repr(record.id[:60])
                if escapes_folder(record.id):
                    bad.append((opinion.location, f"the id {id} leads out of its folder"))
                if subject != other:
                    bad.append((opinion.location, f"the id {id} belongs to another text in {location}"))
                losses += [] if lines else _lost_marks(record)
            elif first.losses == lines:
                lines = [f"repeats the remark in {first.location}: left out"]
        losses += [f"{opinion.location}: {line}" for line in lines]
    if bad:
        raise bad_rows(path, bad, "correct these rows, or give each text an id of its own")
    return records, losses


def build_record(importer: Importer, opinion: Opinion, scales: Scales, labels: Mapping[str, Label]) -> Feedback:
    """Build the record of an opinion."""
    answers = drop_empty(corrected=opinion.corrected, ratings=opinion.ratings, aside=opinion.aside)
    meta = {**drop_empty(dataset=importer.name, annotator=opinion.annotator), **answers, **opinion.meta}
    judgement: Critique | Failure = Failure(kind="unsupported", message=opinion.failure)
    if not opinion.failure:
        marks = to_code_points(opinion.marks, opinion.response, importer.counting)
        spans, unresolved = resolve_marks(marks, opinion.response, labels)
        counts = Counter(reason for reason, _ in unresolved) + Counter(unmatched=opinion.misplaced.total())
        judgement = Critique(
            text="\n".join(opinion.comments),
            spans=opinion.spans or spans,
            score=scales.score(opinion.ratings) if opinion.score is None else opinion.score,
            quotes=opinion.counts + QuoteCounts(**counts),
            lost=tuple(opinion.missing_quotes),
            omissions=tuple(opinion.omissions),
        )
    return build_human_record(opinion.id, opinion.prompt, opinion.response, judgement, meta, opinion.source)


def _lost_marks(record: Feedback) -> list[str]:
    """Return lines on the marks of a record that gave no span."""
    counts = record.quotes
    reasons = {
        "not where they say, or not in the response": counts.unmatched,
        "in the response more than once": counts.ambiguous,
        "with a label that is neither praise nor criticism": counts.no_polarity,
    }
    return [f"record {record.id}: marks {reason}: {count}" for reason, count in reasons.items() if count]


def _unused(opinions: Sequence[Opinion]) -> Iterator[str]:
    """Yield lines on skipped entries, answers kept aside, and marks on other texts."""
    skipped, aside, misplaced = Counter[str](), Counter[str](), Counter[str]()
    for opinion in opinions:
        skipped.update([opinion.skipped] if opinion.skipped else [])
        aside.update(opinion.aside.keys())
        misplaced.update(opinion.misplaced)
    yield from (f"{reason}: {count} not read" for reason, count in skipped.items())
    texts = {name for opinion in opinions for name, value in opinion.aside.items() if isinstance(value, str)}
    for name, count in aside.items():
        cure = f" (if it is a critique: --map critique={name})" if name in texts else ""
        yield f"{name}: kept in meta.aside, not feedback on the response: {count}{cure}"
    yield from (f"marks {reason}: {count}" for reason, count in misplaced.items())
    yield from _unread_lines(opinions)
    if empty := sum(not (opinion.skipped or opinion.has_content) for opinion in opinions):
        yield f"records in which nothing was marked, rated or written: {empty}"


def _unlabelled(opinions: Iterable[Opinion], labels: Mapping[str, Label]) -> Iterator[str]:
    """Yield a line on labels that are neither praise nor criticism, with the cure."""
    marks = [mark for opinion in opinions for mark in opinion.marks]
    counts = Counter(mark.label for mark in marks if mark.label.strip().casefold() not in labels)
    if counts:
        names = ", ".join(f"{name!r} ({count})" for name, count in counts.most_common(6))
        example = shlex.quote(f"poor={next(iter(counts)) or 'LABEL'}")
        yield f"no span for labels that are neither praise nor criticism: {names} (to map one: --map {example})"


def _has_prompt(item: Opinion | Feedback) -> bool:
    return any(turn.content.strip() for turn in as_turns(item.prompt))


def _no_prompt_error(path: Path, opinions: Sequence[Opinion], is_column_unknown: bool) -> UserError:
    """Return the error for opinions without a prompt, with a text that may be the prompt."""
    text = next((name for opinion in opinions for name in find_texts(opinion.unread)), "KEY")
    if is_column_unknown:
        cure = f"name its key: --map {shlex.quote(f'prompt={text}')}"
    else:
        cure = "of merged cells, only the first has the text"
    bad = [(opinion.location, "the prompt is empty") for opinion in opinions]
    return bad_rows(path, bad, f"{cure}; {NO_PROMPT}")


def _unread_lines(opinions: Sequence[Opinion]) -> Iterator[str]:
    """Yield a line for each key whose text was not read, with the option that reads it."""
    counts = Counter(name for opinion in opinions for name in find_texts(opinion.unread))
    prompt_key = next((opinion.prompt_key for opinion in opinions if opinion.prompt_key), "")
    for name, count in counts.items():
        if name in COMMENT_KEYS:
            field = "critique"
        elif name in (*CORRECTED_KEYS, "reference"):
            field = "corrected"
        else:
            field = f"prompt={prompt_key},prompt" if prompt_key else ""
        option = shlex.quote(f"{field}={name}")
        cure = f"to read it: --map {option}" if field else "move what matters into the messages"
        yield f"{name}: unread text: {count} ({cure})"


# The kind of a file.


def has_known_format(row: Row) -> bool:
    """True for a row of our own records, of a tool, or of a published data set."""
    return row.keys() >= RECORD_KEYS or any(importer.recognises(row) for importer in IMPORTERS)


def _importer_of_kind(kind: str) -> Importer | str:
    if is_import_path(kind):
        importer = load_named("importer", kind, kinds=(object,))
        if not isinstance(importer, Importer):
            cure = "write NAME = Importer(...) there: text2grad.data.opinions"
            raise UserError(f"--kind {kind}: {type(importer).__name__} is not an Importer", cure)
        return importer
    return next((importer for importer in IMPORTERS if importer.name == kind), kind)


def _detect_kind(rows: Sequence[LocatedRow], path: Path, is_mapped: bool) -> Importer | str:
    """Return the importer that recognises the first row, else `feedback`, `csv` or `remarks`.

    With `--map`, a file is never one of the kinds that take no names.
    """
    location, first = rows[0]
    keys = set(map(plain_name, first))
    is_record = first.keys() >= RECORD_KEYS
    try:
        refuse_telemetry(first)
    except RowError as error:
        raise bad_rows(path, [(location, str(error))], error.cure) from error
    importer = next((importer for importer in IMPORTERS if not is_record and importer.recognises(first)), None)
    if importer and not (is_mapped and importer in DATA_SETS):
        return importer
    if is_record and not is_mapped:
        return "feedback"
    if is_table(path):
        return "csv"  # names a missing column
    has_answer = bool(keys & {*CONVERSATION_KEYS, *ANSWER_KEYS})
    if is_mapped or "response" in keys or (has_answer and keys & {*JUDGEMENT_COLUMNS, *RATING_COLUMNS}):
        return "remarks"
    if {"chosen", "rejected"} <= first.keys() or {"preferred_output", "non_preferred_output"} <= first.keys():
        raise UserError(f"{path}: these are pairs of answers, not feedback on one answer", PAIRS_CURE)
    texts = ", ".join(list_paths(first))[:300]
    cure = f"name the keys: --map response=KEY,critique=KEY (or prompt, score, corrected); keys: {texts}"
    raise UserError(f"{path}: cannot tell what kind of feedback this is", cure)


def _read_records(path: Path, rows: Sequence[LocatedRow], write: TurnWriter) -> Iterator[Feedback]:
    """Yield feedback records; responses may also be structured messages."""
    for location, row in rows:
        try:
            yield read_record(row, write)
        except ValueError as error:
            cure = getattr(error, "cure", "") or f"fix or remove {location}"
            raise UserError(f"{place_in(path, location)}: {first_error(error)}", cure) from error


# Files of records.


def merge_feedback(existing: Iterable[Feedback], new: Iterable[Feedback]) -> list[Feedback]:
    """Add `new` records; one by the same person on the same response replaces the existing one.

    So a second file adds to the first, and importing a file twice changes nothing. Of several
    remarks of one person on one response, the k-th replaces the k-th.
    """
    return list((_by_subject(existing) | _by_subject(new)).values())


def _by_subject(records: Iterable[Feedback]) -> dict[tuple[object, ...], Feedback]:
    """Return records by source, response and annotator, and their number among equals.

    The data set is not part of the key, so that an exported table comes back edited.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    by_subject: dict[tuple[object, ...], Feedback] = {}
    for record in records:
        source, annotator = record.source, str(record.meta.get("annotator", ""))
        key = source.kind, source.model, record.id, record.response, annotator
        counts[key] += 1
        by_subject[*key, counts[key]] = record
    return by_subject


def reports_by_data_set(records: Iterable[Feedback]) -> dict[str, ImportReport]:
    """Return the figures of each data set in a feedback file, in order; `feedback` is unnamed."""
    groups: dict[str, list[Feedback]] = {}
    for record in records:
        groups.setdefault(str(record.meta.get("dataset") or "feedback"), []).append(record)
    return {name: _report(name, group) for name, group in groups.items()}


def _report(source: str, records: Sequence[Feedback]) -> ImportReport:
    counts = sum((record.quotes for record in records), QuoteCounts())
    spans = sum(len(record.spans) for record in records)
    located = spans + counts.ambiguous + counts.no_polarity + counts.repeated
    return ImportReport(
        source=source,
        records=len(records),
        spans=spans,
        exact=located - counts.normalised,
        no_spans=sum(not record.spans for record in records),
        failed=sum(record.error is not None for record in records),
        **counts.model_dump(exclude={"foreign"}),
    )


def write_feedback(target: Path, records: Sequence[Feedback], replaces: str = "") -> int:
    """Write records to a file that may hold records of other critics.

    A record on the same response by the same kind of critic is replaced, as are all records of the
    kind `replaces`.

    Returns:
        The number of other records, which stay before the new ones.
    """
    if not (records or target.is_file()):
        return 0
    identities = set(map(_identity, records))
    others = [
        record
        for record in (read_jsonl(target, Feedback) if target.is_file() else ())
        if record.source.kind != replaces and _identity(record) not in identities
    ]
    return write_jsonl(target, [*others, *records]) - len(records)


def _identity(record: Feedback) -> tuple[str, ...]:
    return record.source.kind, record.id, response_key(record.response)
