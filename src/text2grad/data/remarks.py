"""People's own remarks: a response with what somebody said about it, in a table or as JSON objects.

Poor and good words are told by quotes (`good`, `poor`, or `spans` with a `text`), by offsets, or by
mark-up in the response itself (`data.spans.markup`). A critique alone will do.
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

from text2grad.data.conversations import (
    ANSWERS,
    PROMPTS,
    SYSTEMS,
    TALKS,
    TurnWriter,
    default_turn_text,
    parse_turns,
    read_exchange,
)
from text2grad.data.files import LocatedRow, Row, RowError, cell_text, describe_kind, name_text
from text2grad.data.opinions import RESPONSE_KEYS, Importer, Names, Opinion, read_opinions
from text2grad.data.scale import Scale, Scales, is_rated, parse_number
from text2grad.data.spans.anchors import criticises, find_anchors
from text2grad.data.spans.marks import LABELS, POLARITY, Mark, as_turns, diff_spans, resolve_marks
from text2grad.data.spans.markup import BRACKETS, MarkedText, has_markup, read_markup
from text2grad.data.spreadsheets.tables import is_filled
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Label, Message, QuoteCounts, Span, Tolerance, is_foreign, response_key
from text2grad.feedback.quotes import Quote, occurrences, resolve, sort_spans
from text2grad.json_text import from_json, split_lines, to_json
from text2grad.wire.nearest import find_nearest

COLUMNS = ("id", "prompt", "response", "critique", "good", "poor", "score", "corrected", "annotator", "spans")
RATINGS = ("rating", "stars", "thumbs", "reward")
"""Columns that are read as a score where there is none, on a scale that has to be declared."""
FIELDS = (*COLUMNS, *RATINGS)
EXCHANGED = frozenset({*PROMPTS, *SYSTEMS, *TALKS, *ANSWERS, "input"})
"""Other keys of what was asked and answered (`data.conversations`)."""
SAYS = ("critique", "good", "poor", "spans", "score", "corrected")
"""The columns of which a remark fills one, or has mark-up in its response."""
DECLARED = Scale(-1, 1, "")
AS_PEOPLE_QUOTE: Tolerance = "any_case"
NO_SPANS = "none"
"""In the cell of spans: there are none, and none are made of anything else."""
AS_IT_IS = '""'
"""In front of the critique of a row with exact spans: the rest is the critique, also where it is
empty."""
_AROUND = " \t\xa0\ufeff'\"“”„‘’«»`"
_OPENING, _CLOSING = "\"'“‘„«`", "\"'”’“»`"


# Columns.


def plain_name(name: object) -> str:
    """A name without the quotation marks and spaces around it, in small letters of normal width."""
    return unicodedata.normalize("NFKC", str(name)).strip(_AROUND).casefold()


def parse_map(words: Sequence[str], fields: Sequence[str] = FIELDS) -> dict[str, tuple[str, ...]]:
    """Parse `response=answer,critique=comment` as our name -> theirs; a tool has several of some
    (`poor=Typo`).

    Raises:
        UsageError: it is written otherwise, or names none of `fields`.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    # A comma may be part of a column's name: it parts what names a field behind it.
    pairs = (pair for word in words for pair in re.split(r",(?=\s*\w+\s*=)", word))
    for ours, equals, theirs in (pair.partition("=") for pair in pairs):
        name = ours.strip()
        if not (equals and name and theirs.strip()):
            raise UsageError(f"--map {ours!r} is not a pair", "write --map response=answer,critique=comment")
        if name not in fields:
            near = difflib.get_close_matches(ours, fields, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            listed = [field for field in fields if field not in RATINGS]
            raise UsageError(f"--map: no field {name!r}{hint}", f"fields: {', '.join(listed)}")
        chosen[name] = (*chosen.get(name, ()), theirs.strip())
    return chosen


def map_columns(path: Path, rows: Sequence[LocatedRow], names: Mapping[str, str]) -> dict[str, str]:
    """The columns of a file -> our names: by `names` (ours -> theirs), else as they are written.

    Raises:
        UserError: the file has no such column, or has one of ours twice (`Response` and
            `response`).
    """
    columns = list(dict.fromkeys(str(name) for _, row in rows for name in row))
    chosen = {_column(path, name, columns): ours for ours, name in names.items()}
    ours: dict[str, str] = {}
    for column in columns:
        plain = plain_name(column)
        field = chosen.get(column) or (plain if {plain} & {*FIELDS, *EXCHANGED} and plain not in names else column)
        if other := next((name for name in ours if ours[name] == field), ""):
            twice = f"the column {field!r} is there twice ({other!r} and {column!r})"
            raise UserError(f"{path}: {twice}", "rename or remove one of them")
        ours[column] = field
    return ours


def _column(path: Path, name: str, columns: Sequence[str]) -> str:
    """The column that `--map` names.

    Raises:
        UserError: there is none.
    """
    for column in columns:
        if column == name or (name not in columns and plain_name(column) == plain_name(name)):
            return column
    near = difflib.get_close_matches(name, columns, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"columns: {', '.join(columns)[:200]}"
    raise UserError(f"{path}: no column {name!r}", hint)


def _check_names(path: Path, rows: Sequence[LocatedRow], guess: bool) -> None:
    """Check that columns say what was answered and what is said of it. With `guess`, a name may be
    mistyped.

    Raises:
        UserError: there is no response, nothing is said of one, or a name looks like a mistyped
            one.
    """
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    others = [name for name in names if name not in (*FIELDS, *EXCHANGED)]
    listed = f"columns: {', '.join(names)[:200]}"
    missing = [column for column in COLUMNS if column not in names]
    similar = {
        near[0]: name for name in others if (near := difflib.get_close_matches(plain_name(name), missing, 1, 0.7))
    }
    if not {*ANSWERS, *TALKS} & set(names):
        headers = (place for place, row in rows[:20] if "response" in map(plain_name, row.values()))
        if header := next(headers, ""):
            cure = f"{header} looks like the header: remove what stands above it"
        elif meant := similar.get("response"):
            cure = f"did you mean 'response'? rename {meant!r}, or read it by --map response={meant}; {listed}"
        else:
            cure = f"say which it is: --map response=COLUMN; {listed}"
        raise UserError(f"{path}: no column 'response'", cure)
    for column, name in similar.items() if guess else ():
        cure = f"rename it, or read it by --map {column}={name}"
        raise UserError(f"{path}: unknown column {name!r}, did you mean {column!r}?", cure)
    if not {*SAYS, *RATINGS} & set(names) and not any(_is_marked(row.get("response")) for _, row in rows):
        cure = f"one of {', '.join(SAYS)} is needed: --map critique=COLUMN; {listed}"
        raise UserError(f"{path}: nothing is said of the responses", cure)


def _is_marked(response: object) -> bool:
    try:
        return isinstance(response, str) and has_markup(response)
    except ValueError:  # mark-up that is wrong; its row is named when it is read
        return True


# Cells.


def _text(row: Mapping[str, Any], name: str) -> str:
    """The text of a cell, "" where it is empty; of the critique, a list of texts is one in a line
    each.

    Raises:
        ValueError: it is no text.
    """
    value = row.get(name)
    if name == "critique" and isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if name in ("id", "annotator") and (written := name_text(value)):
        return written
    return cell_text(row, name)


def _spans_in(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The spans of a row, or those in the JSON text of their cell; none where it is empty.

    Raises:
        ValueError: it holds something other than objects.
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
        raise ValueError(f"the spans are no list of objects, as JSON: {str(value)[:40]!r}")
    spans = content if isinstance(content, list) else [content]
    if odd := [span for span in spans if not isinstance(span, dict)]:
        raise ValueError(f'a span is an object {{"text", "label", "reason"}}, not {odd[0]!r:.40}')
    return spans


def _lines(value: Any, name: str) -> list[str]:
    """The quotes in a cell, one in a line, or in a list."""
    items = split_lines(value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    items = [item for item in items if (item.strip() if isinstance(item, str) else is_filled(item))]
    if odd := [item for item in items if not isinstance(item, str)]:
        raise ValueError(
            f"{name} has {describe_kind(odd[0])} and no quote: {str(odd[0])[:40]}; spans go into 'spans'"
        )
    return items


# Scores.


def read_scales(rows: Sequence[Row], given: Mapping[str, Scale]) -> Scales:
    """The reading of a file's scores: of `score` on its scale from -1 to 1, or of the first rating
    with a scale in `given` ("" or its name).

    Raises:
        UsageError: `given` names a rating that the file does not have, or a rating is not on its
            scale.
    """
    there = [name for name in ("score", *RATINGS) if any(is_rated(row.get(name)) for row in rows)]
    column = next((name for name in there if name in given), next(iter(there), ""))
    values = {column: [row[column] for row in rows if is_rated(row.get(column))]} if column else {}
    return Scales.of(values, given, {"score": DECLARED}, column)


def _score(row: Row, scales: Scales) -> float | None:
    """The score of a row; None: it has none.

    Raises:
        ValueError: the value of the column `score` is none.
    """
    value = row.get(scales.main) if scales.main else None
    score = scales.score({scales.main: value}) if is_rated(value) else None
    if score is None and scales.main == "score" and is_rated(value):
        shown = str(value).strip()[:20]
        if parse_number(value) is not None:
            cure = "of another scale, say it from worst to best: --scale 1..5"
            raise RowError(f"the score {shown} is not between -1 and 1", cure)
        raise ValueError(f"the score {shown!r} is not a number (none: leave the cell empty)")
    return score


# Rows.


@dataclass(frozen=True)
class Remarks:
    """The opinions of a file of remarks, the reading of its scores, and the columns that were not
    read."""

    opinions: list[Opinion]
    scales: Scales
    ignored: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """How the scores were read."""
        scores = {opinion.score for opinion in self.opinions if not opinion.skipped}
        if self.scales.main != "score" or self.scales.lines or scores != {0.0, 1.0}:
            return self.scales.lines
        return ("scores 0 and 1 read as they are, and 0 is neither good nor bad (thumbs: --scale 0..1)",)


def remarks(
    path: Path,
    rows: Sequence[LocatedRow],
    names: Mapping[str, str],
    given: Mapping[str, Scale],
    write: TurnWriter = default_turn_text,
) -> Remarks:
    """All remarks of a file. `names` are columns by our names, `given` scales of ratings ("": of
    the score).

    Raises:
        UserError: no column is the response, or rows cannot be read (all of them are named).
    """
    ours = map_columns(path, rows, names)
    rows = [(place, {ours[str(name)]: value for name, value in row.items()}) for place, row in rows]
    if rows:
        _check_names(path, rows, guess=not names)
    scales = read_scales(
        [row for _, row in rows], {ours.get(name, plain_name(name)): given[name] for name in given}
    )
    others = [name for name in ("score", *RATINGS) if name != scales.main]
    ignored = [name for name in others if any(is_filled(row.get(name)) for _, row in rows)]

    def read(row: Row, id: str, names: Names) -> Iterator[Opinion]:
        opinion = read_row(row, _score(row, scales), write)
        yield from [opinion] if opinion.losses or not opinion.skipped else []

    found = read_opinions(Importer("remarks", read), path, rows, Names())
    if all(opinion.skipped for opinion in found):
        losses = [f"{opinion.place}: {loss}" for opinion in found for loss in opinion.losses]
        raise UserError(f"{path}: {[*scales.problems, *losses, 'no row says anything of a response'][0]}")
    unread = dict.fromkeys(name for opinion in found for name in opinion.unread)
    return Remarks(found, scales, (*unread, *ignored))


def read_row(row: Row, score: float | None, write: TurnWriter = default_turn_text) -> Opinion:
    """Read the opinion of a row; one that is skipped for a row that says nothing.

    A critique that is left out is made of the reasons. Without marks, the differences of a
    corrected text are the spans. The id is made of prompt, response and annotator, so that rows can
    move.

    Raises:
        ValueError: there is no response, or a cell holds what it cannot.
    """
    if row and all(plain_name(value) == name for name, value in row.items()):
        return Opinion("", skipped="a header", losses=["the header again: left out"])
    response = row.get("response")
    says = score is not None or any(is_filled(row.get(name)) for name in SAYS if name != "score")
    says = says or is_rated(row.get("score"))
    if not (says or (isinstance(response, str) and has_markup(response))):
        blank = not any(map(is_filled, row.values()))
        loss = f"nothing is said of the response: fill in {', '.join(SAYS[:-1])} or {SAYS[-1]}"
        return Opinion("", skipped="an empty row", losses=[] if blank else [loss])
    spans = _spans_in(row)
    placed = [_mark(span) for span in spans if _has_offsets(span)]
    exact = row.get("spans") == NO_SPANS or 0 < len(placed) == len(spans)
    asked = read_exchange(row, write, literal=exact)
    prompt, text = as_turns(asked.prompt), asked.response or ""
    if asked.response is None and "response" not in row:
        there = [name for name in RESPONSE_KEYS if isinstance(row.get(name), str)] or ["KEY"]
        raise RowError("there is no response", f"say which it is: --map response={there[0]}")
    if not (text.strip() or exact):
        raise ValueError("the response is empty")
    quotes, unlabelled = _quotes(row, [span for span in spans if not _has_offsets(span)])
    has_brackets = any(BRACKETS.search(quote.text) and quote.text in text for quote, _ in quotes)
    # A response with offsets, a turn, or quoted brackets is text as it stands.
    marked = MarkedText(text) if exact or asked.is_turn or placed or has_brackets else read_markup(text)
    opinion = Opinion("", marked.text, prompt, _text(row, "annotator"), score=score, omissions=marked.omissions)
    others, opinion.prompt_key = asked.extra.items(), asked.prompt_key
    opinion.unread = {name: value for name, value in others if name not in FIELDS and is_filled(value)}
    reasons = [line for label in LABELS for line in _add_quotes(opinion, quotes, label)]
    opinion.losses += map(_no_label, unlabelled)
    reasons += _add_marks(opinion, [*placed, *marked.marks])
    opinion.counts += QuoteCounts(no_polarity=len(unlabelled))
    stays = "stays in the response as text; marks are written [-next week-]{why}"
    opinion.losses += [f"{_short(doubt)} {stays}" for doubt in marked.doubts]
    turns = () if exact else parse_turns(row.get("corrected"), "corrected")
    opinion.corrected = turns[-1].content if turns else _text(row, "corrected") or marked.corrected
    is_marked = exact or quotes or unlabelled or placed or marked.marks
    if opinion.corrected and not (is_marked or opinion.omissions):
        opinion.spans, opinion.omissions = diff_spans(opinion.response, opinion.corrected)
    critique = _text(row, "critique")
    literal = exact and critique.startswith(AS_IT_IS)
    written = critique.removeprefix(AS_IT_IS) if literal else critique or "\n".join(dict.fromkeys(reasons))
    opinion.comments = [written]
    if not (is_marked or opinion.spans or opinion.omissions or literal) and criticises(written, score):
        _add_anchors(opinion, written)
    opinion.id = _text(row, "id") or content_id(prompt, opinion.response, opinion.annotator)
    return opinion


def content_id(prompt: Iterable[Message], response: str, annotator: str) -> str:
    """The id of a remark that brings none: the same for what the same person says of the same
    response."""
    content = to_json([[turn.model_dump() for turn in prompt], response_key(response), annotator])
    return f"remark-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


# Marks and quotes. Those that give no span are counted, and named in the losses.


def _add_quotes(opinion: Opinion, quotes: Iterable[tuple[Quote, Label]], label: Label) -> list[str]:
    """Add the spans of the quotes with one label; return a line with the reason of each, for the
    critique."""
    text = opinion.response
    bare = [_bare(quote, text) for quote, other in quotes if other == label]
    resolved = resolve(bare, text, label, AS_PEOPLE_QUOTE)
    opinion.spans = sort_spans([*opinion.spans, *resolved.spans])
    opinion.counts += resolved.counts
    opinion.missing_quotes = [*opinion.missing_quotes, *resolved.unmatched]
    for quote in resolved.unmatched:
        if is_foreign(quote, text):
            loss = "was said by a tool or a user: quote the turns that are judged"
        else:
            near = find_nearest(quote, text)
            loss = "is not in the response" + (f"; nearest: {_short(near)}" if near else "")
        opinion.losses.append(f"{_short(quote)} {loss}")
    for quote in resolved.ambiguous:
        count = len(occurrences(quote, text))
        times = f"{count} times" if count > 1 else "more than once"
        cure = 'quote more of it, or say which by "occurrence"'
        opinion.losses.append(f"{_short(quote)} is in the response {times}: {cure}")
    return [
        _reason(spans[0].text if spans else quote.text, quote.reason, label)
        for quote, spans in zip(bare, resolved.by_quote, strict=True)
    ]


def _add_marks(opinion: Opinion, marks: Sequence[Mark]) -> list[str]:
    """Add the spans of marks with offsets; return a line with the reason of each, for the
    critique."""
    text = opinion.response
    spans, unplaced = resolve_marks(marks, text)
    opinion.spans = sort_spans([*opinion.spans, *spans])
    opinion.counts += QuoteCounts(**Counter(why for why, _ in unplaced))
    for why, (start, end, label, quote, *_) in unplaced:
        if why == "no_polarity":
            opinion.losses.append(_no_label({"text": text[start:end], "label": label}))
        elif not 0 <= start < end <= len(text):
            opinion.losses.append(f"[{start}, {end}) is not inside the {len(text)} characters of the response")
        elif why == "unmatched":
            there = f"[{start}, {end}) is {_short(text[start:end])} and not {_short(quote)}"
            opinion.losses.append(f"{there}; leave the offsets out")
    return [_reason(span.text, span.reason, span.label) for span in spans]


def _add_anchors(opinion: Opinion, comment: str) -> None:
    """Mark as poor what a comment that finds fault quotes of the response."""
    text = opinion.response
    places = find_anchors(comment, text)
    reason = " ".join(comment.split())
    opinion.spans = tuple(Span(start=s, end=e, label=-1, text=text[s:e], reason=reason) for s, e in places)
    opinion.anchored = [text[start:end] for start, end in places]


def _reason(text: str, reason: str, label: Label) -> str:
    return f'"{text}": {reason or LABELS[label]}'


def _has_offsets(span: Mapping[str, Any]) -> bool:
    return span.get("start") is not None and span.get("end") is not None


def _label_name(span: Mapping[str, Any]) -> str:
    return str(span.get("label", "")).strip()


def _mark(span: Mapping[str, Any]) -> Mark:
    weight = span.get("weight")
    return Mark.parse({**span, "label": _label_name(span)})._replace(weight=1.0 if weight is None else weight)


def _quotes(
    row: Mapping[str, Any], spans: Iterable[Mapping[str, Any]]
) -> tuple[list[tuple[Quote, Label]], list[Mapping[str, Any]]]:
    """The quotes of a row, each with its label, and the spans without one."""
    quotes: list[tuple[Quote, Label]] = [
        (Quote(line.strip()), label) for label, name in LABELS.items() for line in _lines(row.get(name), name)
    ]
    unlabelled = []
    for span in spans:
        label = POLARITY.get(_label_name(span).casefold())
        written = str(span.get("text") or span.get("quote") or "")
        if not (text := written.strip() or written):
            raise ValueError("a span has no 'text'")
        which, turn = (_count(span, name) for name in ("occurrence", "turn"))
        if label is None:
            unlabelled.append(span)
        else:
            quotes.append((Quote(text, str(span.get("reason") or ""), which, turn=turn), label))
    return quotes, unlabelled


def _count(span: Mapping[str, Any], name: str) -> int | None:
    value = span.get(name)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} {value!r} is not a number from 1")
    return value


def _bare(quote: Quote, response: str) -> Quote:
    """A quote without the quotation marks around it, where only the words in them are in the
    response."""
    text = quote.text
    if len(text) < 3 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return quote
    inner = quote._replace(text=text[1:-1].strip())
    there = [not resolve([form], response, 1, AS_PEOPLE_QUOTE).unmatched for form in (quote, inner)]
    return inner if there == [False, True] else quote


def _no_label(span: Mapping[str, Any]) -> str:
    text, label = _short(str(span.get("text") or span.get("quote"))), _label_name(span)
    return f'{text} has {f"the label {label!r}" if label else "no label"}; write "label": "good" or "poor"'


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"{line[:57]}...")
