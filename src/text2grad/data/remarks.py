"""Remarks: a response with a comment on it, in a table or as JSON objects.

Poor and good words are marked by quotes (columns `good` and `poor`, or `spans` with a `text`), by
offsets, or by mark-up in the response (`data.spans.markup`). A critique alone is enough.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from text2grad.data.conversations import TurnWriter, default_turn_text, parse_turns, read_exchange
from text2grad.data.files import LocatedRow, Row, RowError, cell_text, describe_kind, name_text
from text2grad.data.keys import (
    ANSWER_KEYS,
    COLUMNS,
    CONVERSATION_KEYS,
    EXCHANGE_KEYS,
    FIELDS,
    JUDGEMENT_COLUMNS,
    RATING_COLUMNS,
    TOOL_RESPONSE_KEYS,
)
from text2grad.data.opinions import Importer, Names, Opinion, read_opinions
from text2grad.data.scale import Scale, Scales, is_rated, parse_number
from text2grad.data.spans.anchors import criticises, find_anchors
from text2grad.data.spans.marks import LABELS, POLARITY, Mark, as_turns, diff_spans, resolve_marks
from text2grad.data.spans.markup import BRACKETS, MarkedText, has_markup, read_markup
from text2grad.data.spreadsheets.tables import is_filled
from text2grad.errors import UsageError, UserError, suggestion
from text2grad.feedback import Label, Message, QuoteCounts, Span, Tolerance, is_foreign, response_key
from text2grad.feedback.quotes import Quote, occurrences, resolve, sort_spans
from text2grad.json_text import from_json, split_lines, to_json
from text2grad.wire.nearest import find_nearest

DECLARED = Scale(-1, 1, "")
HUMAN_TOLERANCE: Tolerance = "any_case"
NO_SPANS = "none"
"""A cell of `spans`: no spans, and none are derived from other cells."""
LITERAL_PREFIX = '""'
"""Precedes the critique of a row with exact spans; what follows is the critique, even if empty."""
_AROUND = " \t\xa0\ufeff'\"“”„‘’«»`"
_OPENING, _CLOSING = "\"'“‘„«`", "\"'”’“»`"


# Columns.


def plain_name(name: object) -> str:
    """Normalise a name: no quotation marks or spaces around it, lower case, normal width."""
    return unicodedata.normalize("NFKC", str(name)).strip(_AROUND).casefold()


def parse_map(options: Sequence[str], fields: Sequence[str] = FIELDS) -> dict[str, tuple[str, ...]]:
    """Parse `--map` options such as `response=answer,critique=comment`.

    Returns:
        Our field -> the names in the file; a label may have several (`poor=Typo`, `poor=Error`).

    Raises:
        UsageError: an option is not a pair, or names none of `fields`.
    """
    mapped: dict[str, tuple[str, ...]] = {}
    # A comma may be part of a column's name: it separates only before another `field=`.
    pairs = (pair for option in options for pair in re.split(r",(?=\s*\w+\s*=)", option))
    for ours, equals, theirs in (pair.partition("=") for pair in pairs):
        name = ours.strip()
        if not (equals and name and theirs.strip()):
            raise UsageError(f"--map {ours!r} is not a pair", "write --map response=answer,critique=comment")
        if name not in fields:
            names = ", ".join(field for field in fields if field not in RATING_COLUMNS)
            raise UsageError(f"--map: no field {name!r}", suggestion(name, fields, f"fields: {names}"))
        mapped[name] = (*mapped.get(name, ()), theirs.strip())
    return mapped


def map_columns(path: Path, rows: Sequence[LocatedRow], names: Mapping[str, str]) -> dict[str, str]:
    """Map the columns of a file to our fields, by `names` (ours -> theirs) or by their own names.

    Raises:
        UserError: a column is missing, or two are the same field (`Response` and `response`).
    """
    columns = list(dict.fromkeys(str(name) for _, row in rows for name in row))
    mapped = {find_column(path, name, columns): ours for ours, name in names.items()}
    fields: dict[str, str] = {}
    for column in columns:
        plain = plain_name(column)
        is_ours = plain in (*FIELDS, *EXCHANGE_KEYS) and plain not in names
        field = mapped.get(column) or (plain if is_ours else column)
        if other := next((name for name in fields if fields[name] == field), ""):
            problem = f"two columns are {field!r}: {other!r} and {column!r}"
            raise UserError(f"{path}: {problem}", "rename or remove one of them")
        fields[column] = field
    return fields


def find_column(path: Path, name: str, columns: Sequence[str]) -> str:
    """Return the column that `--map` names.

    Raises:
        UserError: the file has no such column.
    """
    for column in columns:
        if column == name or (name not in columns and plain_name(column) == plain_name(name)):
            return column
    cure = suggestion(name, columns) or f"columns: {', '.join(columns)[:200]}"
    raise UserError(f"{path}: no column {name!r}", cure)


def _check_columns(path: Path, rows: Sequence[LocatedRow], suggest: bool) -> None:
    """Check that some columns hold responses and some say something about them.

    Raises:
        UserError: either is missing; or, with `suggest`, a name looks like a mistyped field.
    """
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    unknown = [name for name in names if name not in (*FIELDS, *EXCHANGE_KEYS)]
    columns = f"columns: {', '.join(names)[:200]}"
    missing = [column for column in COLUMNS if column not in names]
    similar = {
        match[0]: name
        for name in unknown
        if (match := difflib.get_close_matches(plain_name(name), missing, 1, 0.7))
    }
    if not {*ANSWER_KEYS, *CONVERSATION_KEYS} & set(names):
        headers = (location for location, row in rows[:20] if "response" in map(plain_name, row.values()))
        if header := next(headers, ""):
            cure = f"{header} looks like the header: remove the rows above it"
        elif name := similar.get("response"):
            cure = f"did you mean 'response'? rename {name!r}, or read it by --map response={name}; {columns}"
        else:
            cure = f"name it: --map response=COLUMN; {columns}"
        raise UserError(f"{path}: no column 'response'", cure)
    for column, name in similar.items() if suggest else ():
        cure = f"rename it, or read it by --map {column}={name}"
        raise UserError(f"{path}: unknown column {name!r}, did you mean {column!r}?", cure)
    if {*JUDGEMENT_COLUMNS, *RATING_COLUMNS} & set(names) or any(
        _may_be_marked(row.get("response")) for _, row in rows
    ):
        return
    cure = f"one of {', '.join(JUDGEMENT_COLUMNS)} is needed: --map critique=COLUMN; {columns}"
    raise UserError(f"{path}: no column judges the responses", cure)


def _may_be_marked(response: object) -> bool:
    try:
        return isinstance(response, str) and has_markup(response)
    except ValueError:  # reading the malformed row names it
        return True


# Cells.


def _cell(row: Mapping[str, Any], name: str) -> str:
    """Return the text of a cell, "" where it is empty; the texts of a critique as lines.

    Raises:
        ValueError: it is not text.
    """
    value = row.get(name)
    if name == "critique" and isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if name in ("id", "annotator") and (text := name_text(value)):
        return text
    return cell_text(row, name)


def _read_spans(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the spans of a row, as objects or as JSON text of objects.

    Raises:
        ValueError: the cell holds something else.
    """
    value = row.get("spans")
    if not is_filled(value) or value == NO_SPANS:
        return []
    content = value
    if isinstance(value, str):
        try:
            content = from_json(value)
        except json.JSONDecodeError:
            content = None
    if not isinstance(content, list | dict):
        raise ValueError(f"the spans are not a JSON list of objects: {str(value)[:40]!r}")
    spans = content if isinstance(content, list) else [content]
    if invalid := [span for span in spans if not isinstance(span, dict)]:
        raise ValueError(f'a span is an object {{"text", "label", "reason"}}, not {invalid[0]!r:.40}')
    return spans


def _read_quotes(value: Any, name: str) -> list[str]:
    """Return the quotes in a cell, one per line or a list.

    Raises:
        ValueError: an entry is not text.
    """
    items = split_lines(value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    items = [item for item in items if (item.strip() if isinstance(item, str) else is_filled(item))]
    if invalid := [item for item in items if not isinstance(item, str)]:
        kind = describe_kind(invalid[0])
        raise ValueError(f"{name} has {kind} instead of a quote: {str(invalid[0])[:40]}; put spans into 'spans'")
    return items


# Scores.


def read_scales(rows: Sequence[Row], scales: Mapping[str, Scale]) -> Scales:
    """Choose the column of scores: `score`, from -1 to 1, or the first rating with a scale.

    The keys of `rows` and `scales` are our fields.

    Raises:
        UsageError: `scales` names a missing rating, or a rating is not on its scale.
    """
    filled = [name for name in ("score", *RATING_COLUMNS) if any(is_rated(row.get(name)) for row in rows)]
    column = next((name for name in filled if name in scales), next(iter(filled), ""))
    values = {column: [row[column] for row in rows if is_rated(row.get(column))]} if column else {}
    return Scales.of(values, scales, {"score": DECLARED}, column)


def _read_score(row: Row, scales: Scales) -> float | None:
    """Return the score of a row, or None.

    Raises:
        ValueError: the column `score` holds something else.
    """
    value = row.get(scales.main) if scales.main else None
    score = scales.score({scales.main: value}) if is_rated(value) else None
    if score is None and scales.main == "score" and is_rated(value):
        text = str(value).strip()[:20]
        if parse_number(value) is not None:
            cure = "if it has another scale, declare it, worst first: --scale 1..5"
            raise RowError(f"the score {text} is not between -1 and 1", cure)
        raise ValueError(f"the score {text!r} is not a number (none: leave the cell empty)")
    return score


# Rows.


@dataclass(frozen=True)
class Remarks:
    """The opinions of a file, the scales of its scores, and the columns that were not read."""

    opinions: list[Opinion]
    scales: Scales
    ignored: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines on how the scores were read."""
        scores = {opinion.score for opinion in self.opinions if not opinion.skipped}
        if self.scales.main != "score" or self.scales.lines or scores != {0.0, 1.0}:
            return self.scales.lines
        return ("scores 0 and 1 are used unchanged, so 0 is neutral (thumbs down and up: --scale 0..1)",)


def read_remarks(
    path: Path,
    rows: Sequence[LocatedRow],
    names: Mapping[str, str],
    scales: Mapping[str, Scale],
    write: TurnWriter = default_turn_text,
) -> Remarks:
    """Read all remarks of a file.

    `names` are the columns of `--map` by field. `scales` are those of `--scale` by column, "" for
    the only one.

    Raises:
        UserError: no column is the response, or rows cannot be read (all are named).
    """
    fields = map_columns(path, rows, names)
    rows = [(location, {fields[str(name)]: value for name, value in row.items()}) for location, row in rows]
    if rows:
        _check_columns(path, rows, suggest=not names)
    scales_by_field = {fields.get(name, plain_name(name)): scale for name, scale in scales.items()}
    file_scales = read_scales([row for _, row in rows], scales_by_field)
    others = [name for name in ("score", *RATING_COLUMNS) if name != file_scales.main]
    ignored = [name for name in others if any(is_filled(row.get(name)) for _, row in rows)]

    def read_remark(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
        opinion = read_row(row, _read_score(row, file_scales), write)
        if opinion.losses or not opinion.skipped:
            yield opinion

    opinions = read_opinions(Importer("remarks", read_remark), path, rows, Names())
    if all(opinion.skipped for opinion in opinions):
        losses = [f"{opinion.location}: {loss}" for opinion in opinions for loss in opinion.losses]
        raise UserError(f"{path}: {[*file_scales.problems, *losses, 'no row judges a response'][0]}")
    unread = dict.fromkeys(name for opinion in opinions for name in opinion.unread)
    return Remarks(opinions, file_scales, (*unread, *ignored))


def read_row(row: Row, score: float | None, write: TurnWriter = default_turn_text) -> Opinion:
    """Read the opinion of a row; it is `skipped` if the row says nothing.

    Without a critique, the reasons of the spans are the critique. Without marks, the differences
    between the response and the corrected text are the spans. Without an id, prompt, response and
    annotator make one, so that rows can be reordered.

    Raises:
        ValueError: there is no response, or a cell holds the wrong kind of value.
    """
    if row and all(plain_name(value) == name for name, value in row.items()):
        return Opinion("", skipped="a header", losses=["a repeated header: left out"])
    if score is None and not _has_judgement(row):
        *columns, last = JUDGEMENT_COLUMNS
        loss = f"no judgement of the response: fill in {', '.join(columns)} or {last}"
        return Opinion("", skipped="an empty row", losses=[loss] if any(map(is_filled, row.values())) else [])
    spans = _read_spans(row)
    marks = [_parse_mark(span) for span in spans if _has_offsets(span)]
    is_exact = row.get("spans") == NO_SPANS or 0 < len(marks) == len(spans)
    exchange = read_exchange(row, write, literal=is_exact)
    prompt, text = as_turns(exchange.prompt), exchange.response or ""
    if exchange.response is None and "response" not in row:
        key = next((key for key in TOOL_RESPONSE_KEYS if isinstance(row.get(key), str)), "KEY")
        raise RowError("there is no response", f"name its key: --map response={key}")
    if not (text.strip() or is_exact):
        raise ValueError("the response is empty")
    quotes, unlabelled = _quotes(row, [span for span in spans if not _has_offsets(span)])
    has_brackets = any(BRACKETS.search(quote.text) and quote.text in text for quote, _ in quotes)
    # A response with offsets, a turn, or quoted brackets is literal text.
    is_literal = is_exact or exchange.is_turn or marks or has_brackets
    parsed = MarkedText(text) if is_literal else read_markup(text)
    opinion = Opinion("", parsed.text, prompt, _cell(row, "annotator"), score=score, omissions=parsed.omissions)
    opinion.prompt_key = exchange.prompt_key
    opinion.unread = {
        name: value for name, value in exchange.extra.items() if name not in FIELDS and is_filled(value)
    }
    reasons = [line for label in LABELS for line in _add_quotes(opinion, quotes, label)]
    opinion.losses += map(_label_problem, unlabelled)
    reasons += _add_marks(opinion, [*marks, *parsed.marks])
    opinion.counts += QuoteCounts(no_polarity=len(unlabelled))
    notice = "is kept as text; a mark is written [-next week-]{why}"
    opinion.losses += [f"{_short(doubt)} {notice}" for doubt in parsed.doubts]
    turns = () if is_exact else parse_turns(row.get("corrected"), "corrected")
    opinion.corrected = turns[-1].content if turns else _cell(row, "corrected") or parsed.corrected
    is_marked = is_exact or quotes or unlabelled or marks or parsed.marks
    if opinion.corrected and not (is_marked or opinion.omissions):
        opinion.spans, opinion.omissions = diff_spans(opinion.response, opinion.corrected)
    critique = _cell(row, "critique")
    has_prefix = is_exact and critique.startswith(LITERAL_PREFIX)
    if has_prefix:
        critique = critique.removeprefix(LITERAL_PREFIX)
    else:
        critique = critique or "\n".join(dict.fromkeys(reasons))
    opinion.comments = [critique]
    if not (is_marked or opinion.spans or opinion.omissions or has_prefix) and criticises(critique, score):
        _add_anchors(opinion, critique)
    opinion.id = _cell(row, "id") or _content_id(prompt, opinion.response, opinion.annotator)
    return opinion


def _content_id(prompt: Iterable[Message], response: str, annotator: str) -> str:
    """Return an id for the remark of one person on one response."""
    content = to_json([[turn.model_dump() for turn in prompt], response_key(response), annotator])
    return f"remark-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _has_judgement(row: Row) -> bool:
    """True if a row judges its response in a column, or by markup in the response."""
    columns = any(is_filled(row.get(name)) for name in JUDGEMENT_COLUMNS if name != "score")
    response = row.get("response")
    return columns or is_rated(row.get("score")) or (isinstance(response, str) and has_markup(response))


# Marks and quotes. Those without a span are counted and named in the losses.


def _add_anchors(opinion: Opinion, comment: str) -> None:
    """Mark as poor the words of the response that a critical comment quotes."""
    text, reason = opinion.response, " ".join(comment.split())
    places = find_anchors(comment, text)
    opinion.spans = tuple(Span(start=s, end=e, label=-1, text=text[s:e], reason=reason) for s, e in places)
    opinion.anchored = [span.text for span in opinion.spans]


def _add_quotes(opinion: Opinion, quotes: Iterable[tuple[Quote, Label]], label: Label) -> list[str]:
    """Add the spans of the quotes with one label, and return a line for each for the critique."""
    text = opinion.response
    unquoted = [_unquote(quote, text) for quote, other in quotes if other == label]
    resolved = resolve(unquoted, text, label, HUMAN_TOLERANCE)
    opinion.spans = sort_spans([*opinion.spans, *resolved.spans])
    opinion.counts += resolved.counts
    opinion.missing_quotes = [*opinion.missing_quotes, *resolved.unmatched]
    for quote in resolved.unmatched:
        if is_foreign(quote, text):
            loss = "is from a tool or a user: quote the turns that are judged"
        else:
            similar = find_nearest(quote, text)
            loss = "is not in the response" + (f"; nearest: {_short(similar)}" if similar else "")
        opinion.losses.append(f"{_short(quote)} {loss}")
    for quote in resolved.ambiguous:
        count = len(occurrences(quote, text))
        times = f"{count} times" if count > 1 else "more than once"
        cure = 'quote more of it, or set "occurrence"'
        opinion.losses.append(f"{_short(quote)} is in the response {times}: {cure}")
    return [
        _reason_line(spans[0].text if spans else quote.text, quote.reason, label)
        for quote, spans in zip(unquoted, resolved.by_quote, strict=True)
    ]


def _add_marks(opinion: Opinion, marks: Sequence[Mark]) -> list[str]:
    """Add the spans of marks, and return a line for each for the critique."""
    text = opinion.response
    spans, unresolved = resolve_marks(marks, text)
    opinion.spans = sort_spans([*opinion.spans, *spans])
    opinion.counts += QuoteCounts(**Counter(reason for reason, _ in unresolved))
    for reason, (start, end, label, quote, *_) in unresolved:
        if reason == "no_polarity":
            opinion.losses.append(_label_problem({"text": text[start:end], "label": label}))
        elif not 0 <= start < end <= len(text):
            opinion.losses.append(f"[{start}, {end}) is not inside the {len(text)} characters of the response")
        elif reason == "unmatched":
            mismatch = f"[{start}, {end}) is {_short(text[start:end])} and not {_short(quote)}"
            opinion.losses.append(f"{mismatch}; leave the offsets out")
    return [_reason_line(span.text, span.reason, span.label) for span in spans]


def _reason_line(text: str, reason: str, label: Label) -> str:
    return f'"{text}": {reason or LABELS[label]}'


def _has_offsets(span: Mapping[str, Any]) -> bool:
    return span.get("start") is not None and span.get("end") is not None


def _parse_mark(span: Mapping[str, Any]) -> Mark:
    weight = 1.0 if span.get("weight") is None else span["weight"]
    return Mark.parse({**span, "label": _label_name(span)})._replace(weight=weight)


def _label_name(span: Mapping[str, Any]) -> str:
    return str(span.get("label", "")).strip()


def _quotes(
    row: Mapping[str, Any], spans: Iterable[Mapping[str, Any]]
) -> tuple[list[tuple[Quote, Label]], list[Mapping[str, Any]]]:
    """Return the quotes of a row with their labels, and the spans without a label."""
    quotes: list[tuple[Quote, Label]] = [
        (Quote(line.strip()), label) for label, name in LABELS.items() for line in _read_quotes(row.get(name), name)
    ]
    unlabelled = []
    for span in spans:
        label = POLARITY.get(_label_name(span).casefold())
        text = str(span.get("text") or span.get("quote") or "")
        if not text:
            raise ValueError("a span has no 'text'")
        occurrence, turn = (_positive(span, name) for name in ("occurrence", "turn"))
        if label is None:
            unlabelled.append(span)
        else:
            quote = Quote(text.strip() or text, str(span.get("reason") or ""), occurrence, turn=turn)
            quotes.append((quote, label))
    return quotes, unlabelled


def _positive(span: Mapping[str, Any], name: str) -> int | None:
    value = span.get(name)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} {value!r} is not a number from 1")
    return value


def _unquote(quote: Quote, response: str) -> Quote:
    """Drop the quotation marks around a quote if only the words inside are in the response."""
    text = quote.text
    if len(text) < 3 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return quote
    inner = quote._replace(text=text[1:-1].strip())
    outer_matches, inner_matches = (
        not resolve([form], response, 1, HUMAN_TOLERANCE).unmatched for form in (quote, inner)
    )
    return inner if inner_matches and not outer_matches else quote


def _label_problem(span: Mapping[str, Any]) -> str:
    text, label = _short(str(span.get("text") or span.get("quote"))), _label_name(span)
    return f'{text} has {f"the label {label!r}" if label else "no label"}; write "label": "good" or "poor"'


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"{line[:57]}...")
