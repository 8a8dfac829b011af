"""Import people's feedback in three passes: rows -> opinions -> records.

Here are the third pass and `import_feedback`, which runs all three. Nothing is guessed: a mark that
is not where it says, or whose label is neither praise nor criticism, yields no span and is counted
in the record's `meta`; so is a quote that is not in the response or occurs more than once. What the
person wrote stays in the critique's text.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from text2grad.data import published, remarks
from text2grad.data.conversations import (
    ANSWERS,
    TALKS,
    TurnWriter,
    default_turn_text,
    is_structured,
    read_record,
    refuse_telemetry,
)
from text2grad.data.files import LocatedRow, Row, RowError, bad_record, find_texts, list_files, read_located_rows
from text2grad.data.opinions import COMMENT_KEYS, CORRECTED_KEYS, Importer, Names, Opinion, read_opinions
from text2grad.data.paths import expand_paths, list_paths
from text2grad.data.remarks import RATINGS, SAYS, parse_map, plain_name
from text2grad.data.scale import Scale, Scales, parse_scales
from text2grad.data.spans.marks import (
    as_turns,
    build_human_record,
    drop_empty,
    id_subject,
    resolve_marks,
    to_code_points,
)
from text2grad.data.spreadsheets.tables import bad_rows, is_table
from text2grad.data.tools import IMPORTERS as TOOL_IMPORTERS
from text2grad.data.tools import PAIRS_CURE
from text2grad.errors import InvalidFields, UsageError, UserError
from text2grad.feedback import Critique, Failure, Feedback, Label, QuoteCounts, Record, escapes_folder, response_key
from text2grad.json_text import record_json
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.named import is_import_path, load_named

DATA_SETS = published.IMPORTERS
"""Published data sets: their shape and their scales are known, so no option says any."""
IMPORTERS: Sequence[Importer] = (*DATA_SETS, *TOOL_IMPORTERS)
"""In the order in which a file is tried."""
REMARKS = ("csv", "remarks")
KINDS = ("auto", "feedback", *dict.fromkeys(importer.name for importer in IMPORTERS), *REMARKS)
MAPPED = ("response", "prompt", "score", "critique", "corrected", "good", "poor")
"""What `--map` may name in the files of tools: fields, questions, and (good, poor) labels."""
NO_PROMPT = "if nobody knows what was asked: --no-prompt"
DECLARED = ("texts", "scales", "options", "free_text", "source", "companion")
"""Fields of `Names` that a file declares."""
OWN_KEYS = frozenset({"id", "prompt", "response", "source"})
"""Every record of our own has these."""


class ImportReport(Record):
    """The figures of an import.

    `spans` counts labelled spans; the four counts after it count what yielded none: quotes that are
    not in the response, quotes that occur more than once, comments without polarity, and quotes
    that repeat another of the same review. spans + these four = exact + normalised + unmatched =
    all that was marked: `exact` occurs in the response literally, `normalised` apart from
    whitespace, quotes or dashes. `no_spans` and `failed` count records.
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
    """All records of a file, in its order, and the figures.

    `scales` says how ratings were read, `anchored` which words were marked because a comment quotes
    them; `losses` names every line of which something was not used, and why, `unscored` the ratings
    among them that lack a scale; `ignored` the columns that were not read.
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
        kind: `remarks` or `csv` (a response and what somebody said about it: `data.remarks`), the
            name of one of `IMPORTERS` (a tool's export, a published data set), an `Importer` of
            your own as `module:NAME`, `feedback` (our own records), or `auto`.
        context_characters: what the policy's task uses (`TaskSettings`), so that both see one
            prompt.
        names: which columns, keys or fields are meant, where they have other names:
            `response=answer`.
        scales: scales of ratings, the worst first: `1..5`, or of one question `helpful=1..5`.
        write: the policy's way to write a turn that calls tools or reasons, where a conversation
            has such.
        no_prompt: records may say nothing of what was asked.
        sheet: the one of a workbook to read.
        skip: rows of remarks that cannot be used are left out and named in the losses.

    Returns:
        The records, and a report of what was read and left.

    Raises:
        UserError: the file cannot be read, is not of a known kind, or has a bad record (which one).
    """
    if Path(path).is_dir():
        arguments = (kind, context_characters, names, scales, write, no_prompt, sheet, skip)
        return _import_folder(Path(path), lambda file: import_feedback(file, *arguments))
    path, given = Path(path), parse_scales(scales)
    options = Names(context_characters=context_characters, write=write, no_prompt=no_prompt)
    if kind not in KINDS and not is_import_path(kind):
        raise UsageError(f"unknown kind of feedback {kind!r}", f"one of {', '.join(KINDS)}, or module:NAME")
    placed = [] if kind == "feedback" else list(read_located_rows(path, sheet))
    if not placed and kind == "auto":
        problem = "has no rows" if path.stat().st_size else "is empty"
        raise UserError(f"{path} {problem}", "check that it is the right file")
    read_as = _kind_of(placed, path, bool(names)) if kind == "auto" else _asked_for(kind, placed)
    if read_as in REMARKS:
        return _import_remarks(path, str(read_as), placed, replace(options, mapped=parse_map(names)), given, skip)
    if read_as == "feedback" or read_as in DATA_SETS:
        option = "--map" if names else "--scale" if scales else ""
        if option:
            name = read_as.name if isinstance(read_as, Importer) else read_as
            why = f"{option} is for tables and remarks, and for tools, not for {name}"
            raise UsageError(why, "leave it out")
    if isinstance(read_as, Importer):
        return _import_rows(path, read_as, placed, replace(options, mapped=parse_map(names, MAPPED)), given)
    own = list(_own(path, placed, write))
    if not own:
        raise UserError(f"{path} has no records", "check that it is the right file")
    for number, record in enumerate(own, start=1):
        if escapes_folder(record.id):
            raise bad_record(path, number, ValueError(f"the id {record.id[:60]!r} leads out of its folder"))
        if not (no_prompt or _is_asked(record)):
            raise bad_record(path, number, RowError("the prompt is empty", NO_PROMPT))
    return ImportResult(records=own, report=_report("feedback", own))


def _import_folder(folder: Path, read: Callable[[Path], ImportResult]) -> ImportResult:
    """All records of the files in a folder; lines on them begin with the file's name."""
    files, others = list_files(folder)
    if not files:
        raise UserError(f"{folder} has no files of feedback", f"it holds: {', '.join(others[:6]) or 'nothing'}")
    results = [(file.name, read(file)) for file in files]
    all_records = [record for _, result in results for record in result.records]

    def named(lines: str) -> tuple[str, ...]:
        return tuple(f"{name}: {line}" for name, result in results for line in getattr(result, lines))

    ignored = dict.fromkeys(name for _, result in results for name in result.ignored)
    kinds = dict.fromkeys(result.report.source for _, result in results)
    return ImportResult(
        records=all_records,
        report=_report(", ".join(kinds), all_records),
        unscored=named("unscored"),
        scales=named("scales"),
        anchored=named("anchored"),
        losses=(*(f"{name}: no feedback, not read" for name in others), *named("losses")),
        ignored=tuple(ignored),
    )


def _import_rows(
    path: Path, importer: Importer, placed: list[LocatedRow], options: Names, given: Mapping[str, Scale]
) -> ImportResult:
    """The records that an importer makes of a file. `options` are those of the command."""
    try:
        declared = importer.names(path, [row for _, row in placed])
    except (AttributeError, KeyError, TypeError, ValueError):  # a bad row, which is named when it is read
        declared = Names()
    chosen = options.mapped
    names = replace(options, **{name: getattr(declared, name) for name in DECLARED})
    found = read_opinions(importer, path, placed, names)
    meant = [opinion for opinion in found if not opinion.skipped]
    values: dict[str, list[object]] = {}
    for question, value in ((q, v) for opinion in meant for q, v in opinion.ratings.items()):
        values.setdefault(question, []).append(value)
    main = next(iter(chosen.get("score", ())), "")
    scales = Scales.of(values, given, names.scales, main, names.options)
    kept, losses = build_records(path, importer, found, scales, names)
    losses += [*_left(found), *_unlabelled(meant, names.labels()), *scales.problems]
    if not kept:
        why = f"{path}: nobody's opinion is in it: {'; '.join(losses)}" if losses else f"{path} has no records"
        raise UserError(why, "export what people answered")
    return ImportResult(
        records=kept,
        report=_report(importer.name, kept),
        unscored=scales.unscored,
        scales=scales.lines,
        losses=tuple(losses),
    )


def _import_remarks(
    path: Path, kind: str, placed: list[LocatedRow], options: Names, given: Mapping[str, Scale], skip: bool
) -> ImportResult:
    """The records of a file of remarks; with `skip`, of those rows that can be used."""
    columns = {ours: theirs[-1] for ours, theirs in options.mapped.items()}
    inside = [(place, expand_paths(row, options.mapped)) for place, row in placed]
    importer = Importer(kind, lambda row, id, names: ())

    def converted(part: Sequence[LocatedRow]) -> tuple[remarks.Remarks, list[Feedback], list[str]]:
        read = remarks.remarks(path, part, columns, given, options.write)
        return read, *build_records(path, importer, read.opinions, read.scales, options)

    left_out: list[str] = []
    try:
        read, kept, losses = converted(inside)
    except UserError:
        if not skip:
            raise
        usable, left_out = _usable(path, inside, converted)
        read, kept, losses = converted(usable)
    losses += [*left_out, *_unread(read.opinions), *read.scales.problems]
    anchored = [f"{each.place}: {', '.join(map(repr, each.anchored))}" for each in read.opinions if each.anchored]
    return ImportResult(
        records=kept,
        report=_report(kind, kept),
        unscored=read.scales.unscored,
        scales=read.lines,
        anchored=tuple(anchored),
        losses=tuple(losses),
        ignored=read.ignored,
    )


def _usable(
    path: Path, placed: Sequence[LocatedRow], convert: Callable[[Sequence[LocatedRow]], object]
) -> tuple[list[LocatedRow], list[str]]:
    """The rows that can be converted alone, and a line on each other one; if none can, all of
    them."""
    names = dict.fromkeys(name for _, row in placed for name in row)
    usable, left_out = [], []
    for place, row in placed:
        try:
            convert([(place, {**names, **row})])
        except UserError as error:
            left_out.append(error.problem.removeprefix(f"{path}: "))
        else:
            usable.append((place, row))
    return (usable, left_out) if usable else (list(placed), [])


# The third pass.


def build_records(
    path: Path, importer: Importer, opinions: Sequence[Opinion], scales: Scales, names: Names
) -> tuple[list[Feedback], list[str]]:
    """The records of all opinions of a file, and lines on what of them is not used.

    The same remark of one person twice is one record.

    Raises:
        UserError: records have no prompt, cannot be written, or have the id of another text (all
            are named).
    """
    meant = [opinion for opinion in opinions if not opinion.skipped]
    unasked = [opinion for opinion in meant if not _is_asked(opinion)]
    if unasked and not names.no_prompt:
        raise _no_prompt(path, unasked, len(unasked) == len(meant))
    labels = names.labels()
    first: dict[str, Opinion] = {}
    subjects: dict[str, tuple[object, str]] = {}
    kept: list[Feedback] = []
    losses: list[str] = []
    bad: list[tuple[str, str]] = []
    for opinion in opinions:
        lines = opinion.losses
        if not opinion.skipped:
            try:
                record = build_record(importer, opinion, scales, labels)
            except InvalidFields as error:
                bad.append((opinion.place, error.problem))
                continue
            before = first.setdefault(record_json(record), opinion)
            if before is opinion:
                kept.append(record)
                bad += [(opinion.place, fault) for fault in _faults(record, opinion.place, subjects)]
                losses += [] if lines else _lost_marks(record)
            elif before.losses == lines:
                lines = [f"the same remark as in {before.place}: left out"]
        losses += [f"{opinion.place}: {line}" for line in lines]
    if bad:
        raise bad_rows(path, bad, "correct these rows, or give each text an id of its own")
    return kept, losses


def build_record(importer: Importer, opinion: Opinion, scales: Scales, labels: Mapping[str, Label]) -> Feedback:
    """The record of an opinion."""
    answers = drop_empty(corrected=opinion.corrected, ratings=opinion.ratings, aside=opinion.aside)
    meta = {**drop_empty(dataset=importer.name, annotator=opinion.annotator), **answers, **opinion.meta}
    judgement: Critique | Failure = Failure(kind="unsupported", message=opinion.failure)
    if not opinion.failure:
        marks = to_code_points(opinion.marks, opinion.response, importer.counting)
        spans, lost = resolve_marks(marks, opinion.response, labels)
        counts = Counter(why for why, _ in lost) + Counter(unmatched=opinion.misplaced.total())
        judgement = Critique(
            text="\n".join(opinion.comments),
            spans=opinion.spans or spans,
            score=scales.score(opinion.ratings) if opinion.score is None else opinion.score,
            quotes=opinion.counts + QuoteCounts(**counts),
            lost=tuple(opinion.missing_quotes),
            omissions=tuple(opinion.omissions),
        )
    return build_human_record(opinion.id, opinion.prompt, opinion.response, judgement, meta, opinion.source)


def _faults(record: Feedback, place: str, subjects: dict[str, tuple[object, str]]) -> Iterator[str]:
    """The faults of a record's id; `subjects` holds the text of every id so far, and its place."""
    subject, first = subjects.setdefault(record.id, (id_subject(record), place))
    if escapes_folder(record.id):
        yield f"the id {record.id[:60]!r} leads out of its folder"
    if subject != id_subject(record):
        yield f"the id {record.id[:60]!r} is that of another text in {first}"


def _lost_marks(record: Feedback) -> list[str]:
    """The marks of a record that gave no span, by its id."""
    counts = record.quotes
    lost = {
        "not where they say, or not in the response": counts.unmatched,
        "in the response more than once": counts.ambiguous,
        "neither praise nor criticism by their label": counts.no_polarity,
    }
    return [f"record {record.id}: marks {why}: {count}" for why, count in lost.items() if count]


def _left(opinions: Sequence[Opinion]) -> Iterator[str]:
    """A line for each kind of entry that is no opinion, or is kept aside, with its count."""
    why, aside, misplaced = Counter[str](), Counter[str](), Counter[str]()
    for opinion in opinions:
        why.update([opinion.skipped] if opinion.skipped else [])
        aside.update(opinion.aside.keys())
        misplaced.update(opinion.misplaced)
    yield from (f"{reason}: {count} not read" for reason, count in why.items())
    texts = {name for opinion in opinions for name, value in opinion.aside.items() if isinstance(value, str)}
    for name, count in aside.items():
        cure = f" (if it is a critique: --map critique={name})" if name in texts else ""
        yield f"{name}: kept in meta.aside, as no verdict on the response: {count}{cure}"
    yield from (f"marks {reason}: {count}" for reason, count in misplaced.items())
    yield from _unread(opinions)
    if empty := sum(not (opinion.skipped or opinion.has_content) for opinion in opinions):
        yield f"records in which nothing was marked, rated or written: {empty}"


def _unlabelled(opinions: Iterable[Opinion], labels: Mapping[str, Label]) -> Iterator[str]:
    """The labels of marks that neither praise nor blame, and the option that says which they do."""
    marks = [mark for opinion in opinions for mark in opinion.marks]
    names = Counter(mark.label for mark in marks if mark.label.strip().casefold() not in labels)
    if names:
        shown = ", ".join(f"{name!r} ({count})" for name, count in names.most_common(6))
        example = shlex.quote(f"poor={next(iter(names)) or 'LABEL'}")
        yield f"labels that neither praise nor blame give no span: {shown} (say which do: --map {example})"


def _is_asked(item: Opinion | Feedback) -> bool:
    """True if a prompt says anything."""
    return any(turn.content.strip() for turn in as_turns(item.prompt))


def _no_prompt(path: Path, unasked: Sequence[Opinion], none_asks: bool) -> UserError:
    """The line on opinions without a prompt, with the texts that may be it."""
    texts = [name for opinion in unasked for name in find_texts(opinion.unread)]
    shown = shlex.quote(f"prompt={next(iter(texts), 'KEY')}")
    cure = f"say which it is: --map {shown}" if none_asks else "of merged cells, only the first holds the text"
    places = [(opinion.place, "the prompt is empty") for opinion in unasked]
    return bad_rows(path, places, f"{cure}; {NO_PROMPT}")


def _unread(opinions: Sequence[Opinion]) -> Iterator[str]:
    """A line for each key whose text was not read, with the option that reads it."""
    counts = Counter(name for opinion in opinions for name in find_texts(opinion.unread))
    asks = next((opinion.prompt_key for opinion in opinions if opinion.prompt_key), "")
    for name, count in counts.items():
        corrects = name in (*CORRECTED_KEYS, "reference")
        ours = "critique" if name in COMMENT_KEYS else "corrected" if corrects else f"prompt={asks},prompt"
        cure = f"to read it: --map {shlex.quote(f'{ours}={name}')}"
        shown = cure if asks or "," not in ours else "what counts of it belongs into the messages"
        yield f"{name}: text that was not read: {count} ({shown})"


# The kind of a file.


def has_known_format(row: Row) -> bool:
    """True if a row is of a format whose keys say what they hold: a record of ours, a tool's, a
    published set's."""
    return row.keys() >= OWN_KEYS or any(importer.recognises(row) for importer in IMPORTERS)


def _asked_for(kind: str, placed: Sequence[LocatedRow]) -> Importer | str:
    """The importer of a kind; of several that share a name, the one that knows a row."""
    if is_import_path(kind):
        own = load_named("importer", kind, kinds=(object,))
        if not isinstance(own, Importer):
            cure = "write NAME = Importer(...) there: text2grad.data.opinions"
            raise UserError(f"--kind {kind}: it is {type(own).__name__}, and no Importer", cure)
        return own
    named = [importer for importer in IMPORTERS if importer.name == kind]
    knowing = (importer for importer in named if any(importer.recognises(row) for _, row in placed))
    return next(knowing, named[0]) if named else kind


def _kind_of(placed: Sequence[LocatedRow], path: Path, mapped: bool) -> Importer | str:
    """The importer that knows the first row; else `feedback`, `csv` or `remarks`. What is `mapped`
    is never read as one of the kinds that take no names.
    """
    first = placed[0][1]
    keys = set(map(plain_name, first))
    own = first.keys() >= OWN_KEYS
    try:
        refuse_telemetry(first)
    except RowError as error:
        raise bad_rows(path, [(placed[0][0], str(error))], error.cure) from error
    importer = next((importer for importer in IMPORTERS if not own and importer.recognises(first)), None)
    if importer and not (mapped and importer in DATA_SETS):
        return importer
    if own and not mapped:
        return "feedback"
    if is_table(path):
        return "csv"  # which says what column is missing
    if mapped or "response" in keys or (keys & {*TALKS, *ANSWERS} and keys & {*SAYS, *RATINGS}):
        return "remarks"
    if {"chosen", "rejected"} <= first.keys() or {"preferred_output", "non_preferred_output"} <= first.keys():
        raise UserError(f"{path}: these are pairs of answers, and no feedback on one", PAIRS_CURE)
    texts = ", ".join(list_paths(first))[:300]
    cure = f"say where what is: --map response=KEY,critique=KEY (or prompt, score, corrected); keys: {texts}"
    raise UserError(f"{path}: cannot tell what kind of feedback this is", cure)


def _own(path: Path, placed: Sequence[LocatedRow], write: TurnWriter) -> Iterator[Feedback]:
    """Records of our own: as they are written, or with turns that were read off structured
    messages."""
    if not any(is_structured(row.get("response")) for _, row in placed):
        yield from read_jsonl(path, Feedback)
        return
    for number, (_, row) in enumerate(placed, start=1):
        try:
            yield read_record(row, write)
        except ValueError as error:
            raise bad_record(path, number, error) from error


# Files of records.


def merge_feedback(existing: Iterable[Feedback], new: Iterable[Feedback]) -> list[Feedback]:
    """Both, in their order; what the same person said about the same response before is replaced in
    its place.

    So a second file adds to the first, and importing one file twice changes nothing. Of several
    remarks of one person on one response, the k-th replaces the k-th.
    """
    return list((_by_content(existing) | _by_content(new)).values())


def _by_content(records: Iterable[Feedback]) -> dict[tuple[object, ...], Feedback]:
    """The records by what they are about and their number there. A table and the same remarks from
    anywhere else are one data set: what is exported comes back edited.
    """
    seen: Counter[tuple[str, ...]] = Counter()
    by_content: dict[tuple[object, ...], Feedback] = {}
    for record in records:
        source, annotator = record.source, str(record.meta.get("annotator", ""))
        key = source.kind, source.model, record.id, record.response, annotator
        seen[key] += 1
        by_content[*key, seen[key]] = record
    return by_content


def reports_by_data_set(records: Iterable[Feedback]) -> dict[str, ImportReport]:
    """The figures of a feedback file for each data set, in order of appearance; `feedback` where
    none is named."""
    groups: dict[str, list[Feedback]] = {}
    for record in records:
        groups.setdefault(str(record.meta.get("dataset") or "feedback"), []).append(record)
    return {name: _report(name, group) for name, group in groups.items()}


def _report(source: str, records: Sequence[Feedback]) -> ImportReport:
    counts = sum((record.quotes for record in records), QuoteCounts())
    spans = sum(len(record.spans) for record in records)
    placed = spans + counts.ambiguous + counts.no_polarity + counts.repeated
    return ImportReport(
        source=source,
        records=len(records),
        spans=spans,
        exact=placed - counts.normalised,
        no_spans=sum(not record.spans for record in records),
        failed=sum(record.error is not None for record in records),
        **counts.model_dump(exclude={"foreign"}),
    )


def write_feedback(target: Path, records: Iterable[Feedback], replaces: str = "") -> tuple[int, int]:
    """Write records beside those of other critics; return how many, and how many others stay before
    them.

    A record about the same response, from the same kind of critic, is replaced; of the kind
    `replaces`, every one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(target.name + ".new")
    about: set[bytes] = set()

    def noted() -> Iterator[Feedback]:
        for record in records:
            about.add(_identity(record))
            yield record

    try:
        count, stay = write_jsonl(fresh, noted()), 0
        if count or target.is_file():
            both = chain(other_feedback(target, replaces, about), read_jsonl(fresh, Feedback))
            stay = write_jsonl(target, both) - count
        return count, stay
    finally:
        fresh.unlink(missing_ok=True)


def other_feedback(path: Path, kind: str = "", about: Collection[bytes] = ()) -> Iterator[Feedback]:
    """The records of a file from other kinds of critics (people's, say) and not `about` the same
    responses."""
    for record in read_jsonl(path, Feedback) if path.is_file() else ():
        if record.source.kind != kind and _identity(record) not in about:
            yield record


def _identity(record: Feedback) -> bytes:
    """The response of a record and its kind of critic: a later judgement of the same takes its
    place."""
    words = "\0".join((record.source.kind, record.id, response_key(record.response)))
    return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=16).digest()
