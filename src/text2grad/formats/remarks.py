"""Remarks as people write them: a response with what somebody said of it, in a table or as JSON objects.

Poor and good words are told by quotes (`good`, `poor`, or `spans` with a `text`), by offsets, or by mark-up in the
response itself: `due [-next week-]{the mail says Friday}`, and `[+...+]` for praise. A critique alone will do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import UsageError, UserError
from text2grad.feedback import Critique, Feedback, Label, Message, QuoteCounts, Span
from text2grad.formats.marks import LABELS, POLARITY, Mark, edits, human_record, placed, score_of
from text2grad.tasks.loaders import Row
from text2grad.wire.locate import LocateSettings
from text2grad.wire.quotes import Quote, Resolved, in_order, occurrences, resolve

COLUMNS = ("id", "prompt", "response", "critique", "good", "poor", "score", "corrected", "annotator")
FIELDS = (*COLUMNS, "spans")
SAYS = ("critique", "good", "poor", "spans", "score", "corrected")
"""What is said of a response; a remark has one of them, or mark-up in its response."""
KEYS = frozenset({"response"})
_OPENING = re.compile(r"\[([+-])")
_REASON = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"\S+")


class Unmarked(NamedTuple):
    """A text without its mark-up, and the intervals of it that were marked."""

    text: str
    marks: tuple[Mark, ...]


def unmarked(text: str) -> Unmarked:
    """Take `[-poor-]{reason}` and `[+good+]{reason}` out of a text; the reason may be left out.

    What is marked has as many opening as closing square brackets, so that `[+-]?[0-9+]` and `a[-1]` are no mark-up.
    """
    parts: list[str] = []
    marks: list[Mark] = []
    place = length = 0
    while found := _OPENING.search(text, place):
        inner = _marked(text, found.end(), found[1])
        if inner is None:
            kept, place = text[place : found.end()], found.end()
        else:
            after = found.end() + len(inner) + 2
            why = _REASON.match(text, after)
            before = text[place : found.start()]
            start = length + len(before)
            label, reason = f"{found[1]}1", why[1].strip() if why else ""
            marks.append(Mark(start, start + len(inner), label, inner, reason))
            kept, place = before + inner, why.end() if why else after
        parts.append(kept)
        length += len(kept)
    return Unmarked("".join([*parts, text[place:]]), tuple(marks))


def _marked(text: str, start: int, sign: str) -> str | None:
    """What stands between an opening at `start` and the first closing after which brackets are balanced."""
    end = text.find(f"{sign}]", start)
    while end > start:
        inner = text[start:end]
        if _balanced(inner):
            return inner
        end = text.find(f"{sign}]", end + 1)
    return None


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if depth < 0:
            return False
    return depth == 0


class Remark(NamedTuple):
    """A row that was read: its response without mark-up, what was quoted, and what came of it."""

    response: str
    quotes: tuple[tuple[Quote, Label], ...]
    resolved: tuple[Resolved, Resolved]
    spans: tuple[Span, ...]
    counts: QuoteCounts
    problems: tuple[str, ...]


def read_remark(row: Mapping[str, Any]) -> Remark:
    """A row's response and spans; see `records`.

    Raises:
        ValueError: there is no response, or a list in it is not one.
    """
    text = str(row.get("response") or "")
    if not text.strip():
        raise ValueError("the response is empty")
    spans = _objects(row.get("spans"))
    with_offsets = [Mark.of({**span, "label": _name(span)}) for span in spans if _has_offsets(span)]
    found = Unmarked(text, ()) if with_offsets else unmarked(text)
    marks = (*with_offsets, *found.marks)
    quotes, nameless = _quotes(row, [span for span in spans if not _has_offsets(span)])
    good, poor = (
        resolve([quote for quote, of in quotes if of == label], found.text, label, "skip", LocateSettings())
        for label in LABELS
    )
    of_marks, counts = placed(marks, found.text)
    return Remark(
        found.text,
        tuple(quotes),
        (good, poor),
        in_order([*good.spans, *poor.spans, *of_marks]),
        good.counts + poor.counts + counts + QuoteCounts(no_polarity=len(nameless)),
        (*map(_no_label, nameless), *_misplaced(marks, found.text)),
    )


def records(row: Row, fallback_id: str, dataset: str = "remarks") -> Iterator[Feedback]:
    """The record of a row; none of one that says nothing. Without marks, a corrected text tells by its difference
    what was wrong. A critique that is left out is made of the reasons.

    Raises:
        ValueError: the response is empty, or the score is not a number from -1 to 1.
    """
    if not _says_something(row):
        return
    remark, corrected = read_remark(row), _text(row, "corrected")
    spans = remark.spans
    omissions: tuple[str, ...] = ()
    if not (remark.quotes or remark.spans or remark.problems) and corrected:
        spans, omissions = edits(remark.response, corrected)
    critique = Critique(
        text=_text(row, "critique") or _of_reasons(remark),
        spans=spans,
        score=_score(row.get("score")),
        quotes=remark.counts,
        lost=tuple(chain.from_iterable(each.lost for each in remark.resolved)),
        omissions=omissions,
    )
    meta = {"dataset": dataset, "corrected": corrected, "annotator": _text(row, "annotator")}
    yield human_record(_text(row, "id") or fallback_id, _prompt(row), remark.response, critique, meta)


def losses(row: Row) -> Iterator[str]:
    """What of a row gave no span, and what would mend it."""
    if not _says_something(row):
        if any(map(_filled, row.values())):
            yield f"nothing is said of the response: fill in {', '.join(SAYS[:-1])} or {SAYS[-1]}"
        return
    remark = read_remark(row)
    for resolved in remark.resolved:
        yield from (not_there(quote, remark.response) for quote in resolved.lost)
        yield from (_repeated(quote, remark.response) for quote in resolved.unclear)
    yield from remark.problems


def not_there(quote: str, response: str) -> str:
    """That a quote is not in the response, and what in it is most like the quote."""
    near = nearest(quote, response)
    return f"{_short(quote)} is not in the response" + (f"; nearest: {_short(near)}" if near else "")


def nearest(quote: str, text: str) -> str:
    """The words of a text that are most like a quote, at least by half; "" if none are."""
    words, count = list(_WORD.finditer(text)), max(1, len(quote.split()))
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(quote.casefold())
    best, found = 0.5, ""
    for size in (count, count + 1, count - 1):
        for first, last in zip(words, words[max(1, size) - 1 :], strict=False):
            passage = text[first.start() : last.end()].strip(".,;:!?")
            matcher.set_seq1(passage.casefold())
            if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
                best, found = matcher.ratio(), passage
        if found:
            break
    return found


def check_names(path: Path, rows: Sequence[Row], guess: bool = True) -> list[str]:
    """The columns (or keys) of a file that are not read, in their order. With `guess`, a name may be mistyped.

    Raises:
        UserError: there is no response, nothing is said of one, or a name looks like a mistyped one.
    """
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    others = [name for name in names if name not in FIELDS]
    for name in others if guess else ():
        near = difflib.get_close_matches(name, [each for each in FIELDS if each not in names], n=1, cutoff=0.7)
        if near:
            cure = f"rename it, or read it by --map {near[0]}={name}"
            raise UserError(f"{path}: unknown column {name!r}, did you mean {near[0]!r}?", cure)
    if "response" not in names:
        cure = f"say which it is: --map response=COLUMN; columns: {', '.join(names)[:200]}"
        raise UserError(f"{path}: no column 'response'", cure)
    marked = any(unmarked(str(row["response"] or "")).marks for row in rows if "response" in row)
    if not marked and not set(SAYS) & set(names):
        cure = f"one of {', '.join(SAYS)} is needed: --map critique=COLUMN; columns: {', '.join(names)[:200]}"
        raise UserError(f"{path}: nothing is said of the responses", cure)
    return others


def parse_map(words: Sequence[str]) -> dict[str, str]:
    """`response=answer,critique=comment` as our name -> the file's.

    Raises:
        UsageError: it is written otherwise, or names no field of ours.
    """
    pairs = [pair.partition("=") for word in words for pair in word.split(",")]
    for ours, equals, theirs in pairs:
        if not (equals and ours.strip() and theirs.strip()):
            raise UsageError(f"--map {ours!r} is not a pair", "write --map response=answer,critique=comment")
        if ours.strip() not in FIELDS:
            near = difflib.get_close_matches(ours, FIELDS, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"--map: no field {ours.strip()!r}{hint}", f"fields: {', '.join(FIELDS)}")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def renamed(path: Path, rows: Sequence[Row], names: Mapping[str, str]) -> list[Row]:
    """The rows with the columns of `names` (ours -> theirs) under our names.

    Raises:
        UserError: the file has no such column.
    """
    there = list(dict.fromkeys(str(name) for row in rows for name in row))
    for theirs in names.values():
        if theirs not in there:
            near = difflib.get_close_matches(theirs, there, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"columns: {', '.join(there)[:200]}"
            raise UserError(f"{path}: no column {theirs!r}", hint)
    taken = {*names, *names.values()}
    return [
        {
            **{name: value for name, value in row.items() if name not in taken},
            **{ours: row[theirs] for ours, theirs in names.items() if theirs in row},
        }
        for row in rows
    ]


def _filled(value: Any) -> bool:
    return value is not None and str(value).strip() not in ("", "[]")


def _says_something(row: Mapping[str, Any]) -> bool:
    said = any(_filled(row.get(name)) for name in SAYS)
    return said or bool(unmarked(str(row.get("response") or "")).marks)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value)


def _prompt(row: Mapping[str, Any]) -> str | tuple[Message, ...]:
    value = row.get("prompt")
    if isinstance(value, list) and value:
        return tuple(map(Message.model_validate, value))
    return _text(row, "prompt")


def _objects(value: Any) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else [] if not _filled(value) else [value]
    if odd := [item for item in items if not isinstance(item, dict)]:
        raise ValueError(f'a span is an object {{"text", "label", "reason"}}, not {odd[0]!r:.40}')
    return items


def _has_offsets(span: Mapping[str, Any]) -> bool:
    return span.get("start") is not None and span.get("end") is not None


def _name(span: Mapping[str, Any]) -> str:
    return str(span.get("label", "")).strip()


def _quotes(
    row: Mapping[str, Any], spans: Iterable[Mapping[str, Any]]
) -> tuple[list[tuple[Quote, Label]], list[Mapping[str, Any]]]:
    """The quotes of a row, each with its label, and the spans that have none."""
    quotes: list[tuple[Quote, Label]] = [
        (Quote(line.strip()), label)
        for label, name in LABELS.items()
        for line in _lines(row.get(name))
        if line.strip()
    ]
    nameless = []
    for span in spans:
        label = POLARITY.get(_name(span).casefold())
        text = str(span.get("text") or span.get("quote") or "").strip()
        if not text:
            raise ValueError("a span has no 'text'")
        if label is None:
            nameless.append(span)
        else:
            quotes.append((Quote(text, str(span.get("reason") or ""), _occurrence(span)), label))
    return quotes, nameless


def _occurrence(span: Mapping[str, Any]) -> int | None:
    value = span.get("occurrence")
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ValueError(f"occurrence {value!r} is not a number from 1")
    return value


def _lines(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else str(value or "").splitlines()


def _no_label(span: Mapping[str, Any]) -> str:
    text, label = _short(str(span.get("text") or span.get("quote"))), _name(span)
    return f'{text} has {f"the label {label!r}" if label else "no label"}; write "label": "good" or "poor"'


def _misplaced(marks: Iterable[Mark], response: str) -> Iterator[str]:
    """The marks with offsets that yield no span, and why."""
    for start, end, name, text, _ in marks:
        if not 0 <= start < end <= len(response):
            yield f"[{start}, {end}) is not inside the {len(response)} characters of the response"
        elif text and response[start:end] != text:
            yield f"[{start}, {end}) is {_short(response[start:end])} and not {_short(text)}; leave the offsets out"
        elif name.casefold() not in POLARITY:
            yield _no_label({"text": response[start:end], "label": name})


def _repeated(quote: str, response: str) -> str:
    count = len(occurrences(quote, response))
    times = f"{count} times" if count > 1 else "more than once"
    return f'{_short(quote)} is in the response {times}: quote more of it, or say which by "occurrence"'


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else f"{line[:57]}...")


def _of_reasons(remark: Remark) -> str:
    """What was said of each quote, found or not: the reason, else whether it is good or poor."""
    said = [(quote.text, label, quote.reason) for quote, label in remark.quotes]
    quoted = {text for text, *_ in said}
    said += [(span.text, span.label, span.reason) for span in remark.spans if span.text not in quoted]
    return "\n".join(f'"{text}": {reason or LABELS[label]}' for text, label, reason in said)


def _score(value: Any) -> float | None:
    """A number from -1 to 1, or a word of praise or of blame."""
    if not _filled(value):
        return None
    shown = str(value).strip()
    try:
        number = float(shown)
    except ValueError as error:
        label = POLARITY.get(shown.casefold())
        if label is None:
            raise ValueError(f"the score {shown[:20]!r} is not a number") from error
        return float(label)
    score = score_of(number)
    if score is None:
        raise ValueError(f"the score {shown[:20]} is not between -1 and 1")
    return score
