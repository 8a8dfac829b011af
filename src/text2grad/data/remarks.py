"""People's own remarks: a response with what somebody said about it, in a table or as JSON objects.

Poor and good words are told by quotes (`good`, `poor`, or `spans` with a `text`), by offsets, or by mark-up in the
response itself (`data.markup`). A critique alone will do.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.data.conversations import turns_of
from text2grad.data.files import Placed, Row, detail
from text2grad.data.marks import LABELS, POLARITY, Mark, edits, spans_of
from text2grad.data.markup import BRACKETS, MarkedText, has_markup, read_markup
from text2grad.data.opinions import Opinion
from text2grad.data.scale import Reading, Scale, number_of, share_of, verdict
from text2grad.data.tables import bad_rows
from text2grad.errors import UsageError, UserError
from text2grad.feedback import Label, Message, QuoteCounts, Span, Transcript, is_foreign, key_of
from text2grad.jsonl import from_json, to_json
from text2grad.wire.locate import LocateSettings
from text2grad.wire.nearest import nearest
from text2grad.wire.quotes import Quote, in_order, occurrences, resolve

COLUMNS = ("id", "prompt", "response", "critique", "good", "poor", "score", "corrected", "annotator", "spans")
RATINGS = ("rating", "stars", "thumbs", "reward")
"""Columns that are read as a score where there is none, on a scale that has to be declared."""
FIELDS = (*COLUMNS, *RATINGS)
SAYS = ("critique", "good", "poor", "spans", "score", "corrected")
"""The columns of which a remark fills one, or has mark-up in its response."""
DECLARED = Scale(-1, 1, "as scores of this format are")
AS_PEOPLE_QUOTE = LocateSettings(ignore_case=True)
NO_SPANS = "none"
"""In the cell of spans: there are none, and none are made of anything else."""
AS_IT_IS = '""'
"""In front of the critique of a row with exact spans: the rest is the critique, also where it is empty."""
_AROUND = " \t\xa0\ufeff'\"“”„‘’«»`"
_OPENING, _CLOSING = "\"'“‘„«`", "\"'”’“»`"


# Columns.


def plain_name(name: object) -> str:
    """A name without the quotation marks and spaces around it, in small letters of normal width."""
    return unicodedata.normalize("NFKC", str(name)).strip(_AROUND).casefold()


def parse_map(words: Sequence[str], fields: Sequence[str] = FIELDS) -> dict[str, tuple[str, ...]]:
    """Parse `response=answer,critique=comment` as our name -> theirs; a tool has several of some (`poor=Typo`).

    Raises:
        UsageError: it is written otherwise, or names none of `fields`.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    for ours, equals, theirs in (pair.partition("=") for word in words for pair in word.split(",")):
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


def rename(path: Path, rows: Sequence[Placed], names: Mapping[str, str]) -> list[Row]:
    """The rows under our names: the columns of `names` (ours -> theirs), and ours as they are written in the file.

    Raises:
        UserError: the file has no such column, or a row has one of ours twice (`Response` and `response`).
    """
    there = list(dict.fromkeys(str(name) for _, row in rows for name in row))
    theirs = {_column(path, name, there): ours for ours, name in names.items()}

    def ours(name: str) -> str:
        plain = plain_name(name)
        return theirs.get(name) or (plain if plain in FIELDS and plain not in names else name)

    for place, row in rows:
        by_field: dict[str, str] = {}
        for name in map(str, row):
            if (other := by_field.setdefault(ours(name), name)) != name:
                twice = f"the column {ours(name)!r} is there twice ({other!r} and {name!r})"
                raise bad_rows(path, [(place, twice)], "rename or remove one of them")
    return [{ours(str(name)): value for name, value in row.items()} for _, row in rows]


def _column(path: Path, name: str, there: Sequence[str]) -> str:
    """The column that `--map` means.

    Raises:
        UserError: there is none.
    """
    if name in there:
        return name
    if (alike := next((other for other in there if plain_name(other) == plain_name(name)), None)) is not None:
        return alike
    near = difflib.get_close_matches(name, there, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"columns: {', '.join(there)[:200]}"
    raise UserError(f"{path}: no column {name!r}", hint)


def _check_names(path: Path, places: Sequence[str], rows: Sequence[Row], guess: bool) -> list[str]:
    """The columns that are not read, in their order. With `guess`, a name may be mistyped.

    Raises:
        UserError: there is no response, nothing is said of one, or a name looks like a mistyped one.
    """
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    others = [name for name in names if name not in FIELDS]
    if "response" not in names:
        raise UserError(f"{path}: no column 'response'", _no_response(names, places, rows))
    for name in others if guess else ():
        missing = [column for column in COLUMNS if column not in names]
        if near := difflib.get_close_matches(plain_name(name), missing, 1, 0.7):
            cure = f"rename it, or read it by --map {near[0]}={name}"
            raise UserError(f"{path}: unknown column {name!r}, did you mean {near[0]!r}?", cure)
    if not {*SAYS, *RATINGS} & set(names) and not any(_marked(row.get("response")) for row in rows):
        cure = f"one of {', '.join(SAYS)} is needed: --map critique=COLUMN; columns: {', '.join(names)[:200]}"
        raise UserError(f"{path}: nothing is said of the responses", cure)
    return others


def _no_response(names: Sequence[str], places: Sequence[str], rows: Sequence[Row]) -> str:
    for place, row in zip(places, rows[:20], strict=False):
        if "response" in map(plain_name, row.values()):
            return f"{place} looks like the header: remove what stands above it"
    near = difflib.get_close_matches("response", [plain_name(name) for name in names], n=1, cutoff=0.7)
    meant = next((name for name in names if plain_name(name) in near), "")
    hint = f"did you mean 'response'? rename {meant!r}, or read it by" if meant else "say which it is:"
    return f"{hint} --map response={meant or 'COLUMN'}; columns: {', '.join(names)[:200]}"


def _marked(response: object) -> bool:
    try:
        return isinstance(response, str) and has_markup(response)
    except ValueError:  # mark-up that is wrong; its row is named when it is read
        return True


# Cells.


def is_filled(value: Any) -> bool:
    """True if a cell says anything: an empty list, blank text and NaN do not."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return not missing and str(value).strip() not in ("", "[]")


def _text(row: Mapping[str, Any], name: str) -> str:
    """The text of a cell, "" where it is empty; of the critique, a list of texts is one in a line each.

    Raises:
        ValueError: it is no text.
    """
    value = row.get(name)
    if isinstance(value, str):
        return value
    if not is_filled(value):
        return ""
    if name == "critique" and isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if name in ("id", "annotator") and (number := number_of(value)) is not None and number.is_integer():
        return str(int(number))
    raise ValueError(f"the {name} is {_kind(value)}, not text; write it as text, in quotation marks")


def _kind(value: Any) -> str:
    """The kind of a value of JSON, in words."""
    if isinstance(value, bool):
        return f"the value {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    return "a list" if isinstance(value, list) else "an object"


def _spans_in(value: Any) -> list[dict[str, Any]]:
    """The spans in a cell, or in its JSON text; none where it is empty.

    Raises:
        ValueError: it holds something else than objects.
    """
    content = value if is_filled(value) else []
    if isinstance(content, str):
        try:
            content = from_json(content)
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
    items = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else [value]
    items = [item for item in items if (item.strip() if isinstance(item, str) else is_filled(item))]
    if odd := [item for item in items if not isinstance(item, str)]:
        raise ValueError(f"{name} has {_kind(odd[0])} and no quote: {str(odd[0])[:40]}; spans go into 'spans'")
    return items


# Scores.


class Scores(NamedTuple):
    """The column of the scores, its scale or reading, how it was read, and which of its values have no score."""

    column: str
    scale: Scale
    reading: Reading | None = None
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def score(self, row: Row) -> float | None:
        """The score of a row; None: it has none.

        Raises:
            ValueError: the value of the column `score` is none.
        """
        value = row.get(self.column)
        if self.reading is None:
            return score_of(value, self.scale)
        share = _of_maximum(value, self.reading.scale)
        return self.reading.score(value) if share is None and is_filled(value) else share


def scores_of(rows: Sequence[Row], given: Mapping[str, Scale]) -> Scores:
    """The scores of a file: `score` is from -1 to 1 unless `given` ("" or its name) has its scale.

    A rating has the scale given; `4/5` and `80 %` say their own.

    Raises:
        UsageError: `given` names a rating that the file does not have.
    """
    there = [name for name in ("score", *RATINGS) if any(is_filled(row.get(name)) for row in rows)]
    if given and not set(given) & {"", *there}:
        listed = f"ratings there: {', '.join(there) or 'none'}"
        raise UsageError(f"--scale: the file has no rating {next(iter(given))!r}", listed)
    column = next((name for name in there if name in given), next(iter(there), ""))
    scale = given.get(column) or given.get("")
    values = [row[column] for row in rows if is_filled(row.get(column))]
    own = [value for value in values if _of_maximum(value) is not None]
    notes = [
        f"{str(value).strip()} read as {_of_maximum(value):g}: of 0 to its own maximum (1 is worst: --scale 1..5)"
        for value in own[:1]
    ]
    if column == "score":
        if scale and not scale.words:
            notes.insert(0, f"ratings {scale} read as -1 to 1 (score: {scale.declared})")
        elif not scale and len(rows) > 1 and {number_of(value) for value in values} == {0.0, 1.0}:
            thumbs = "scores 0 and 1 read as they are, and 0 is neither good nor bad (thumbs: --scale 0..1)"
            notes.insert(0, thumbs)
        return Scores(column, scale or DECLARED, None, tuple(notes))
    reading = Reading(column, [value for value in values if value not in own], scale)
    notes = [line for line in (reading.line, *notes) if line]
    return Scores(column, scale or DECLARED, reading, tuple(notes), tuple(filter(None, [reading.problem])))


def score_of(value: Any, scale: Scale = DECLARED) -> float | None:
    """A score: a number on the scale, `4/5` or `80 %` of their own, or a word of praise or of blame.

    Raises:
        ValueError: it is none of these.
    """
    if not is_filled(value):
        return None
    if (share := _of_maximum(value, scale)) is not None:
        return share
    shown, number = str(value).strip(), number_of(value)
    if (score := scale.score(value)) is not None:
        return number if scale is DECLARED else score
    if number is not None:
        raise ValueError(f"the score {shown[:20]} is not between {scale.low:g} and {scale.high:g}")
    word = shown.casefold()
    label = verdict(word) if verdict(word) is not None else POLARITY.get(word) if word.isalpha() else None
    if label is None:
        raise ValueError(f"the score {shown[:20]!r} is not a number (none: leave the cell empty)")
    return float(label)


def _of_maximum(value: Any, scale: Scale | None = None) -> float | None:
    """`4/5` or `80 %` as a score from -1 to 1: of 0 to that maximum, or on a scale that ends there."""
    if (share := share_of(value)) is None:
        return None
    part, most = share
    if scale is not None and scale is not DECLARED and scale.high == most:
        return scale.score(value)
    return round(2 * part / most - 1, 6) if most and 0 <= part <= most else None


# Rows.


@dataclass(frozen=True)
class Remarks:
    """The opinions of a file of remarks, its scores, and the columns that were not read."""

    opinions: list[Opinion]
    scores: Scores
    ignored: tuple[str, ...] = ()


def opinions(path: Path, rows: Sequence[Placed], names: Mapping[str, str], given: Mapping[str, Scale]) -> Remarks:
    """All remarks of a file. `names` are columns by our names, `given` scales of ratings ("": of the score).

    Raises:
        UserError: no column is the response, or rows cannot be read (all of them are named).
    """
    theirs = {name: ours for ours, name in names.items()}
    given = {theirs.get(name, plain_name(name)): scale for name, scale in given.items()}
    places, renamed = [place for place, _ in rows], rename(path, rows, names)
    ignored = _check_names(path, places, renamed, guess=not names) if rows else []
    scores = scores_of(renamed, given)
    others = [name for name in ("score", *RATINGS) if name != scores.column]
    ignored += [name for name in others if any(is_filled(row.get(name)) for row in renamed)]
    asks = any(is_filled(row.get("prompt")) for row in renamed)
    found: list[Opinion] = []
    bad: list[tuple[str, str]] = []
    for place, row in zip(places, renamed, strict=True):
        try:
            opinion = read_row(row, scores.score(row))
        except ValueError as error:
            bad.append((place, detail(error)))
            continue
        if opinion.skipped and not opinion.losses:
            continue
        opinion.place = place
        found.append(opinion)
        prompt = opinion.prompt if isinstance(opinion.prompt, tuple) else ()
        answers = is_filled(row.get("prompt")) or any(turn.content for turn in prompt)
        if asks and not opinion.skipped and not answers:
            bad.append((place, "the prompt is empty (of merged cells, only the first holds the text)"))
    if bad:
        off_scale = any("is not between" in fault for _, fault in bad)
        scale = "of another scale, say it from worst to best: --scale 1..5"
        raise bad_rows(path, bad, scale if off_scale else "correct these rows")
    if all(opinion.skipped for opinion in found):
        losses = [f"{opinion.place}: {loss}" for opinion in found for loss in opinion.losses]
        raise UserError(f"{path}: {[*scores.problems, *losses, 'no row says anything of a response'][0]}")
    return Remarks(found, scores, tuple(ignored))


def read_row(row: Row, score: float | None) -> Opinion:
    """Read the opinion of a row; one that is skipped for a row that says nothing.

    Raises:
        ValueError: there is no response, or a cell holds what it cannot.
    """
    if row and all(plain_name(value) == name for name, value in row.items()):
        return Opinion("", skipped="a header", losses=["the header again: left out"])
    response = row.get("response")
    says = score is not None or any(is_filled(row.get(name)) for name in SAYS)
    if not (says or (isinstance(response, str) and has_markup(response))):
        blank = not any(map(is_filled, row.values()))
        loss = f"nothing is said of the response: fill in {', '.join(SAYS[:-1])} or {SAYS[-1]}"
        return Opinion("", skipped="an empty row", losses=[] if blank else [loss])
    return _opinion(row, _remark(row), score)


@dataclass
class Remark:
    """A row that was read: its response without mark-up, each quote with its label and the spans it gave, and the
    spans of marks. `losses` says what gave no span and how to fix it. `exact`: all spans are given by offsets, or
    it is said that there are none.
    """

    prompt: tuple[Message, ...]
    response: MarkedText
    exact: bool
    marked: tuple[Span, ...]
    counts: QuoteCounts
    quoted: list[tuple[Quote, Label, list[Span]]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans, in order."""
        return in_order([*(span for *_, spans in self.quoted for span in spans), *self.marked])


def _remark(row: Mapping[str, Any]) -> Remark:
    none = row.get("spans") == NO_SPANS
    spans = [] if none else _spans_in(row.get("spans"))
    marks = [_mark(span) for span in spans if _has_offsets(span)]
    exact = none or 0 < len(marks) == len(spans)
    prompt, text, is_turn = _conversation(row, exact)
    if not (text.strip() or exact):
        raise ValueError("the response is empty")
    quotes, unlabelled = _quotes(row, [span for span in spans if not _has_offsets(span)])
    has_brackets = any(BRACKETS.search(quote.text) and quote.text in text for quote, _ in quotes)
    # A response with offsets, a turn, or quoted brackets is text as it stands.
    response = MarkedText(text) if exact or is_turn or marks or has_brackets else read_markup(text)
    marked, unplaced = spans_of([*marks, *response.marks], response.text)
    counts = QuoteCounts(**Counter(why for why, _ in unplaced)) + QuoteCounts(no_polarity=len(unlabelled))
    remark = Remark(prompt, response, exact, marked, counts)
    for label in LABELS:
        _find(remark, [_bare(quote, response.text) for quote, of in quotes if of == label], label)
    remark.losses += [*map(_no_label, unlabelled), *_misplaced(unplaced, response.text)]
    stays = "stays in the response as text; marks are written [-next week-]{why}"
    remark.losses += [f"{_short(doubt)} {stays}" for doubt in response.doubts]
    return remark


def _find(remark: Remark, quotes: Sequence[Quote], label: Label) -> None:
    """Add the quotes of one label, with the spans that they give."""
    text = remark.response.text
    resolved = resolve(quotes, text, label, "skip", AS_PEOPLE_QUOTE)
    remark.quoted += [(quote, label, spans) for quote, spans in zip(quotes, resolved.by_quote, strict=True)]
    remark.counts += resolved.counts
    remark.lost += resolved.lost
    for quote in resolved.lost:
        if is_foreign(quote, text):
            remark.losses.append(f"{_short(quote)} was said by a tool or a user: quote the turns that are judged")
            continue
        near = nearest(quote, text)
        hint = f"; nearest: {_short(near)}" if near else ""
        remark.losses.append(f"{_short(quote)} is not in the response{hint}")
    for quote in resolved.unclear:
        count = len(occurrences(quote, text))
        times = f"{count} times" if count > 1 else "more than once"
        cure = 'quote more of it, or say which by "occurrence"'
        remark.losses.append(f"{_short(quote)} is in the response {times}: {cure}")


def _conversation(row: Mapping[str, Any], exact: bool) -> tuple[tuple[Message, ...], str, bool]:
    """The prompt and the response of a row, and whether that was a chat turn.

    Raises:
        ValueError: the response has no answer, or answers another prompt than the row's.
    """
    value = row.get("prompt")
    prompt = turns_of(value, "prompt") or (Message(role="user", content=_text(row, "prompt")),)
    value = row.get("response")
    turns = () if exact and isinstance(value, str) else turns_of(value, "response")
    if not turns:
        return prompt, _text(row, "response"), False
    first = next((place for place, turn in enumerate(turns) if turn.role == "assistant"), None)
    if first is None:
        raise ValueError("the response has no message of the assistant")
    before, answer = turns[:first], turns[first:]
    if before and is_filled(row.get("prompt")) and before[-1].content.strip() != prompt[-1].content.strip():
        raise ValueError("the response is a conversation that begins with another prompt than the row's")
    text = answer[0].content if len(answer) == 1 else Transcript.of_messages(answer)
    return prompt if is_filled(row.get("prompt")) else before or prompt, text, True


def _opinion(row: Row, remark: Remark, score: float | None) -> Opinion:
    """The opinion of a row that was read.

    Without marks, the differences of a corrected text are the spans. A critique that is left out is made of the
    reasons. The id is made of prompt, response and annotator, so that rows can move.
    """
    turns = turns_of(row.get("corrected"), "corrected") if not remark.exact else ()
    corrected = turns[-1].content if turns else _text(row, "corrected") or remark.response.corrected
    spans, omissions = remark.spans, remark.response.omissions
    is_marked = remark.quoted or spans or remark.counts.no_polarity + remark.counts.unmatched or remark.exact
    if not is_marked and corrected and not omissions:
        spans, omissions = edits(remark.response.text, corrected)
    written = _text(row, "critique")
    literal = remark.exact and written.startswith(AS_IT_IS)
    critique = written.removeprefix(AS_IT_IS) if literal else written or _critique_of(remark)
    annotator = _text(row, "annotator")
    return Opinion(
        _text(row, "id") or content_id(remark.prompt, remark.response.text, annotator),
        remark.response.text,
        remark.prompt,
        annotator,
        comments=[critique],
        score=score,
        spans=spans,
        counts=remark.counts,
        omissions=omissions,
        lost=tuple(remark.lost),
        corrected=corrected,
        losses=remark.losses,
    )


def content_id(prompt: Iterable[Message], response: str, annotator: str) -> str:
    """The id of a remark that brings none: the same for what the same person says of the same response."""
    content = to_json([[turn.model_dump() for turn in prompt], key_of(response), annotator])
    return f"remark-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _has_offsets(span: Mapping[str, Any]) -> bool:
    return span.get("start") is not None and span.get("end") is not None


def _label_name(span: Mapping[str, Any]) -> str:
    return str(span.get("label", "")).strip()


def _mark(span: Mapping[str, Any]) -> Mark:
    weight = span.get("weight")
    return Mark.of({**span, "label": _label_name(span)})._replace(weight=1.0 if weight is None else weight)


def _quotes(
    row: Mapping[str, Any], spans: Iterable[Mapping[str, Any]]
) -> tuple[list[tuple[Quote, Label]], list[Mapping[str, Any]]]:
    """The quotes of a row, each with its label, and the spans that have none."""
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
    """A quote without the quotation marks around it, where only the words in them are in the response."""
    text = quote.text
    if len(text) < 3 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return quote
    inner = quote._replace(text=text[1:-1].strip())
    there = [not resolve([form], response, 1, "first", AS_PEOPLE_QUOTE).lost for form in (quote, inner)]
    return inner if there == [False, True] else quote


def _no_label(span: Mapping[str, Any]) -> str:
    text, label = _short(str(span.get("text") or span.get("quote"))), _label_name(span)
    return f'{text} has {f"the label {label!r}" if label else "no label"}; write "label": "good" or "poor"'


def _misplaced(lost: Iterable[tuple[str, Mark]], response: str) -> Iterator[str]:
    """The marks with offsets that yield no span, and why."""
    for why, (start, end, label, text, *_) in lost:
        if why == "no_polarity":
            yield _no_label({"text": response[start:end], "label": label})
        elif not 0 <= start < end <= len(response):
            yield f"[{start}, {end}) is not inside the {len(response)} characters of the response"
        elif why == "unmatched":
            yield f"[{start}, {end}) is {_short(response[start:end])} and not {_short(text)}; leave the offsets out"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


def _critique_of(remark: Remark) -> str:
    """Each quote as it stands in the response, or as it was written where it is not found there, with its reason,
    else its label.
    """
    marks = [(spans[0].text if spans else quote.text, quote.reason, label) for quote, label, spans in remark.quoted]
    marks += [(span.text, span.reason, span.label) for span in remark.marked]
    return "\n".join(f'"{text}": {reason or LABELS[label]}' for text, reason, label in dict.fromkeys(marks))
