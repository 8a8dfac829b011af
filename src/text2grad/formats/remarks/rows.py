"""Remarks as people write them: a response with what somebody said of it, in a table or as JSON objects.

Poor and good words are told by quotes (`good`, `poor`, or `spans` with a `text`), by offsets, or by mark-up in the
response itself (`formats.remarks.markup`). A critique alone will do.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from text2grad.errors import UserError
from text2grad.feedback import (
    Critique,
    Feedback,
    Label,
    Message,
    QuoteCounts,
    Span,
    Transcript,
    first_error,
    is_foreign,
    key_of,
    leads_out,
    record_json,
    to_json,
)
from text2grad.formats.importer import Records
from text2grad.formats.marks import LABELS, POLARITY, Mark, edits, human_record, spans_of, subject_of, without_empty
from text2grad.formats.remarks.cells import Scores, is_filled, kind_of, scores_of, spans_in, text_of, turns_of
from text2grad.formats.remarks.columns import RATINGS, SAYS, check_names, plain_name, rename
from text2grad.formats.remarks.markup import BRACKETS, MarkedText, has_markup, read_markup
from text2grad.formats.scale import Scale
from text2grad.tasks.loaders import Row
from text2grad.tasks.sheets import bad_rows
from text2grad.wire.locate import LocateSettings
from text2grad.wire.nearest import nearest
from text2grad.wire.quotes import Quote, in_order, occurrences, resolve

AS_PEOPLE_QUOTE = LocateSettings(ignore_case=True)
NO_SPANS = "none"
"""In the cell of spans: there are none, and none are made of anything else."""
AS_IT_IS = '""'
"""In front of the critique of a row with exact spans: it is what follows; if that is nothing, there is none."""
_OPENING, _CLOSING = "\"'“‘„«`", "\"'”’“»`"


@dataclass
class Remark:
    """A row that was read: its response without mark-up, each quote with its label and the spans it gave, and the
    spans of marks. `losses` says what gave no span and what would mend it. `exact`: all spans are given by offsets,
    or it is said that there are none.
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


def read(
    path: Path,
    places: Sequence[str],
    rows: Sequence[Row],
    dataset: str,
    names: Mapping[str, str] | None = None,
    given: Mapping[str, Scale] | None = None,
) -> Records:
    """All remarks of a file. `names` are columns by our names, `given` scales of ratings ("": of the score).

    A remark has its id from its prompt, response and annotator, wherever it stands; the same remark twice is one.

    Raises:
        UserError: no column is the response, or rows cannot be read (which, all of them).
    """
    ours = {theirs: name for name, theirs in (names or {}).items()}
    given = {ours.get(name, plain_name(name)): scale for name, scale in (given or {}).items()}
    rows = rename(path, places, rows, names)
    ignored = check_names(path, places, rows, guess=not names) if rows else []
    scores = scores_of(rows, given)
    others = [name for name in ("score", *RATINGS) if name != scores.name]
    ignored += [name for name in others if any(is_filled(row.get(name)) for row in rows)]
    records, losses, bad = _read_all(places, rows, scores, dataset)
    if bad:
        off_scale = any("is not between" in fault for _, fault in bad)
        scale = "of another scale, say it from worst to best: --scale 1..5"
        raise bad_rows(path, bad, scale if off_scale else "correct these rows")
    if not records:
        raise UserError(f"{path}: {[*scores.problems, *losses, 'no row says anything of a response'][0]}")
    return Records(records, scores.notes, (*losses, *scores.problems), tuple(ignored))


def _read_all(
    places: Sequence[str], rows: Sequence[Row], scores: Scores, dataset: str
) -> tuple[list[Feedback], list[str], list[tuple[str, str]]]:
    """The records, what was not used, and the rows that cannot be read, each with its place."""
    kept: dict[str, tuple[str, list[str]]] = {}
    subjects: dict[str, tuple[object, str]] = {}
    records: list[Feedback] = []
    losses: list[str] = []
    bad: list[tuple[str, str]] = []
    asks = any(is_filled(row.get("prompt")) for row in rows)
    for place, row in zip(places, rows, strict=True):
        try:
            found, lost = read_row(row, scores.of(row), dataset)
        except ValueError as error:
            bad.append((place, first_error(error) if isinstance(error, ValidationError) else str(error)))
            continue
        first, known = kept.setdefault(record_json(found), (place, lost)) if found else (place, lost)
        if first != place:
            lost = [f"the same remark as in {first}: left out"] if lost == known else lost
        elif found is not None:
            records.append(found)
            subject, first = subjects.setdefault(found.id, (subject_of(found), place))
            if leads_out(found.id):
                bad.append((place, f"the id {found.id[:40]!r} leads out of its folder"))
            if subject != subject_of(found):
                bad.append((place, f"the id {found.id[:40]!r} is that of another text in {first}"))
            if asks and not (is_filled(row.get("prompt")) or any(turn.content for turn in found.prompt)):
                bad.append((place, "the prompt is empty (of merged cells, only the first holds the text)"))
        losses += [f"{place}: {loss}" for loss in lost]
    return records, losses, bad


def read_row(row: Row, score: float | None, dataset: str) -> tuple[Feedback | None, list[str]]:
    """The record of a row and what of it gave no span; none of a row that says nothing.

    Raises:
        ValueError: there is no response, or a cell holds what it cannot.
    """
    if row and all(plain_name(value) == name for name, value in row.items()):
        return None, ["the header again: left out"]
    response = row.get("response")
    says = score is not None or any(is_filled(row.get(name)) for name in SAYS)
    if not (says or (isinstance(response, str) and has_markup(response))):
        blank = not any(map(is_filled, row.values()))
        loss = f"nothing is said of the response: fill in {', '.join(SAYS[:-1])} or {SAYS[-1]}"
        return None, [] if blank else [loss]
    remark = _remark(row)
    return _record(row, remark, score, dataset), remark.losses


def _remark(row: Mapping[str, Any]) -> Remark:
    none = row.get("spans") == NO_SPANS
    spans = [] if none else spans_in(row.get("spans"))
    marks = [_mark(span) for span in spans if _has_offsets(span)]
    exact = none or 0 < len(marks) == len(spans)
    prompt, text, is_turn = _conversation(row, exact)
    if not (text.strip() or exact):
        raise ValueError("the response is empty")
    quotes, nameless = _quotes(row, [span for span in spans if not _has_offsets(span)])
    has_brackets = any(BRACKETS.search(quote.text) and quote.text in text for quote, _ in quotes)
    # What has offsets, is a turn, or is quoted with its brackets is text as it stands.
    response = MarkedText(text) if exact or is_turn or marks or has_brackets else read_markup(text)
    marked, unplaced = spans_of([*marks, *response.marks], response.text)
    counts = QuoteCounts(**Counter(why for why, _ in unplaced)) + QuoteCounts(no_polarity=len(nameless))
    remark = Remark(prompt, response, exact, marked, counts)
    for label in LABELS:
        _find(remark, [_bare(quote, response.text) for quote, of in quotes if of == label], label)
    remark.losses += [*map(_no_label, nameless), *_misplaced(unplaced, response.text)]
    stays = "stays in the response as text; marks are written [-next week-]{why}"
    remark.losses += [f"{_short(doubt)} {stays}" for doubt in response.doubts]
    return remark


def _find(remark: Remark, quotes: Sequence[Quote], label: Label) -> None:
    """Add the quotes of one label, with the spans that they give."""
    text = remark.response.text
    found = resolve(quotes, text, label, "skip", AS_PEOPLE_QUOTE)
    remark.quoted += [(quote, label, spans) for quote, spans in zip(quotes, found.by_quote, strict=True)]
    remark.counts += found.counts
    remark.lost += found.lost
    for quote in found.lost:
        if is_foreign(quote, text):
            remark.losses.append(f"{_short(quote)} was said by a tool or a user: quote the turns that are judged")
            continue
        near = nearest(quote, text)
        hint = f"; nearest: {_short(near)}" if near else ""
        remark.losses.append(f"{_short(quote)} is not in the response{hint}")
    for quote in found.unclear:
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
    prompt = turns_of(value, "prompt") or (Message(role="user", content=text_of(row, "prompt")),)
    value = row.get("response")
    turns = () if exact and isinstance(value, str) else turns_of(value, "response")
    if not turns:
        return prompt, text_of(row, "response"), False
    first = next((place for place, turn in enumerate(turns) if turn.role == "assistant"), None)
    if first is None:
        raise ValueError("the response has no message of the assistant")
    before, answer = turns[:first], turns[first:]
    if before and is_filled(row.get("prompt")) and before[-1].content.strip() != prompt[-1].content.strip():
        raise ValueError("the response is a conversation that begins with another prompt than the row's")
    text = answer[0].content if len(answer) == 1 else Transcript.of_messages(answer)
    return prompt if is_filled(row.get("prompt")) else before or prompt, text, True


def _record(row: Row, remark: Remark, score: float | None, dataset: str) -> Feedback:
    """The record of a row that was read. Without marks, a corrected text tells by its difference what was wrong. A
    critique that is left out is made of the reasons.
    """
    turns = turns_of(row.get("corrected"), "corrected") if not remark.exact else ()
    corrected = turns[-1].content if turns else text_of(row, "corrected") or remark.response.corrected
    spans, omissions = remark.spans, remark.response.omissions
    is_marked = remark.quoted or spans or remark.counts.no_polarity + remark.counts.unmatched or remark.exact
    if not is_marked and corrected and not omissions:
        spans, omissions = edits(remark.response.text, corrected)
    written = text_of(row, "critique")
    literal = remark.exact and written.startswith(AS_IT_IS)
    critique = Critique(
        text=written.removeprefix(AS_IT_IS) if literal else written or _critique_of(remark),
        spans=spans,
        score=score,
        quotes=remark.counts,
        lost=tuple(remark.lost),
        omissions=omissions,
    )
    annotator = text_of(row, "annotator")
    meta = without_empty(dataset=dataset, corrected=corrected, annotator=annotator)
    id = text_of(row, "id") or content_id(remark.prompt, remark.response.text, annotator)
    return human_record(id, remark.prompt, remark.response.text, critique, meta)


def content_id(prompt: Iterable[Message], response: str, annotator: str) -> str:
    """The id of a remark that brings none: the same for what the same person says of the same response."""
    content = to_json([[turn.model_dump() for turn in prompt], key_of(response), annotator])
    return f"remark-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _has_offsets(span: Mapping[str, Any]) -> bool:
    return span.get("start") is not None and span.get("end") is not None


def _name(span: Mapping[str, Any]) -> str:
    return str(span.get("label", "")).strip()


def _mark(span: Mapping[str, Any]) -> Mark:
    weight = span.get("weight")
    return Mark.of({**span, "label": _name(span)})._replace(weight=1.0 if weight is None else weight)


def _quotes(
    row: Mapping[str, Any], spans: Iterable[Mapping[str, Any]]
) -> tuple[list[tuple[Quote, Label]], list[Mapping[str, Any]]]:
    """The quotes of a row, each with its label, and the spans that have none."""
    quotes: list[tuple[Quote, Label]] = [
        (Quote(line.strip()), label) for label, name in LABELS.items() for line in _lines(row.get(name), name)
    ]
    nameless = []
    for span in spans:
        label = POLARITY.get(_name(span).casefold())
        written = str(span.get("text") or span.get("quote") or "")
        if not (text := written.strip() or written):
            raise ValueError("a span has no 'text'")
        which, turn = (_count(span, name) for name in ("occurrence", "turn"))
        if label is None:
            nameless.append(span)
        else:
            quotes.append((Quote(text, str(span.get("reason") or ""), which, turn=turn), label))
    return quotes, nameless


def _count(span: Mapping[str, Any], name: str) -> int | None:
    value = span.get(name)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} {value!r} is not a number from 1")
    return value


def _lines(value: Any, name: str) -> list[str]:
    """The quotes in a cell, one in a line, or in a list."""
    items = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else [value]
    items = [item for item in items if (item.strip() if isinstance(item, str) else is_filled(item))]
    if odd := [item for item in items if not isinstance(item, str)]:
        raise ValueError(f"{name} has {kind_of(odd[0])} and no quote: {str(odd[0])[:40]}; spans go into 'spans'")
    return items


def _bare(quote: Quote, response: str) -> Quote:
    """A quote without the quotation marks around it, where only the words in them are in the response."""
    text = quote.text
    if len(text) < 3 or text[0] not in _OPENING or text[-1] not in _CLOSING:
        return quote
    inner = quote._replace(text=text[1:-1].strip())
    there = [not resolve([each], response, 1, "first", AS_PEOPLE_QUOTE).lost for each in (quote, inner)]
    return inner if there == [False, True] else quote


def _no_label(span: Mapping[str, Any]) -> str:
    text, label = _short(str(span.get("text") or span.get("quote"))), _name(span)
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
    """What was said of each quote as it stands in the response, or as it was written where it is not found there:
    the reason, else whether it is good or poor.
    """
    marks = [(spans[0].text if spans else quote.text, quote.reason, label) for quote, label, spans in remark.quoted]
    marks += [(span.text, span.reason, span.label) for span in remark.marked]
    return "\n".join(f'"{text}": {reason or LABELS[label]}' for text, reason, label in dict.fromkeys(marks))
