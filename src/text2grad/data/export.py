"""Write feedback records for other tools: annotation tools, spreadsheets, and trainers on preference pairs."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, TextIO

from text2grad.data.conversations import turns_of
from text2grad.data.files import Row
from text2grad.data.marks import LABELS, Mark, utf16_offset, without_empty
from text2grad.data.markup import write_markup
from text2grad.data.opinions import SCORE_SCALE, Importer
from text2grad.data.records import record_of
from text2grad.data.remarks import AS_IT_IS, COLUMNS, DECLARED, NO_SPANS, read_row
from text2grad.data.scale import Scales
from text2grad.errors import UsageError, UserError
from text2grad.feedback import (
    Feedback,
    Label,
    Message,
    Preference,
    Transcript,
    conversation_of,
    conversation_text,
    key_of,
)
from text2grad.jsonl import to_json, whole_file
from text2grad.wire.quotes import Quote, to_quotes

Writer = Callable[[Iterable[Feedback]], Iterator[Row]]
TABLE = Importer("csv", lambda row, id, names: ())


# Annotation tools: what is written is read back by import.


def studio_row(record: Feedback) -> Row:
    """A record as a task that Label Studio imports, with its annotation; import reads it back."""
    result: list[dict[str, Any]] = []
    for number, span in enumerate(record.spans):
        common = {"id": f"span-{number}", "from_name": "label", "to_name": "response"}
        start, end = (utf16_offset(record.response, place) for place in (span.start, span.end))
        place = {"start": start, "end": end, "text": span.text}
        result.append({**common, "type": "labels", "value": {**place, "labels": [LABELS[span.label]]}})
        if span.reason:
            value = {**place, "text": [span.reason]}
            result.append({**common, "from_name": "reason", "type": "textarea", "value": value})
    whole = {"to_name": "response", "from_name": "critique"}
    if record.critique:
        result.append({**whole, "id": "critique", "type": "textarea", "value": {"text": [record.critique]}})
    if record.score is not None:
        number_value = {"value": {"number": record.score}, "type": "number", "id": "score", "from_name": "score"}
        result.append({**whole, **number_value})
    data = {"id": record.id, "prompt": conversation_text(record.prompt), "response": record.response}
    who = str(record.meta.get("annotator", ""))
    annotation = {"result": result, **({"completed_by": who} if who else {})}
    return {"data": data, "annotations": [annotation], "meta": SCORE_SCALE}


def argilla_row(record: Feedback) -> Row:
    """A record as Argilla 2 has it; import reads it back."""
    who = str(record.meta.get("annotator", ""))
    spans = [
        {"start": s.start, "end": s.end, "label": LABELS[s.label], **({"reason": s.reason} if s.reason else {})}
        for s in record.spans
    ]
    values = {"spans": spans, "critique": record.critique, "score": record.score}
    responses = {
        name: [{"value": value, "status": "submitted", "user_id": who}]
        for name, value in values.items()
        if value is not None
    }
    fields = {"prompt": conversation_text(record.prompt), "response": record.response}
    return {"id": record.id, "fields": fields, "responses": responses, "metadata": SCORE_SCALE}


def prodigy_row(record: Feedback) -> Row:
    """A record as Prodigy has it; import reads it back."""
    spans = [
        {"start": s.start, "end": s.end, "label": LABELS[s.label].upper(), "text": s.text, "reason": s.reason}
        for s in record.spans
    ]
    row: Row = {"text": record.response, "spans": spans, "answer": "accept" if record.error is None else "ignore"}
    meta = {"id": record.id, "prompt": conversation_text(record.prompt), **SCORE_SCALE}
    extra = {"score": record.score, "_annotator_id": record.meta.get("annotator") or None}
    row |= {"critique": record.critique, "meta": meta}
    return row | {name: value for name, value in extra.items() if value is not None}


# A spreadsheet: a row is written as a person would write it where that is read back as the same record: quotes, a
# line each, else mark-up in the response. Only otherwise its spans are a list with offsets, as JSON.

_SAME = ("id", "prompt", "response", "critique", "spans", "score")


def table_row(record: Feedback) -> Row:
    """A record as a row; of two spans with the same place and label, a reader will take the first.

    Raises:
        UserError: its response has turns, and its spans cannot be read back from a table.
    """
    rows = list(_rows(record))
    found = next((row for row in rows if _is_read_back(row, record)), None)
    if found is None and isinstance(record.response, Transcript):
        message = f"the response of {record.id!r} has turns that no table gives back with their spans"
        raise UserError(message, "keep the JSON Lines file, or leave such records out")
    return found or rows[-1]


def _rows(record: Feedback) -> Iterator[Row]:
    """What could say the same as a record, the plainest first."""
    score = "" if record.score is None else format(Decimal(repr(record.score)), "f")
    row = {
        **dict.fromkeys(COLUMNS, ""),
        "id": record.id,
        "prompt": _prompt(record.prompt),
        "response": _response(record.response),
        "critique": record.critique,
        "score": score.removesuffix(".0"),
        **{name: _text(record, name) for name in ("corrected", "annotator")},
    }
    by_label = {name: [span.text for span in record.spans if span.label == of] for of, name in LABELS.items()}
    marks = [Mark(span.start, span.end, f"{span.label:+d}", span.text, span.reason) for span in record.spans]
    spans = [span.model_dump(exclude_defaults=True) for span in record.spans]
    yield row
    if isinstance(record.response, Transcript):
        quotes = zip(record.spans, to_quotes(record.spans, record.response), strict=True)
        named = [_named(quote, span.label) for span, quote in quotes]
        yield {**row, "spans": to_json(named) if named else NO_SPANS}
        return
    yield {**row, **{name: "\n".join(texts) for name, texts in by_label.items()}}
    yield {**row, "response": write_markup(record.response, marks)}
    exact = {**row, "spans": to_json(spans) if spans else NO_SPANS}
    yield exact
    yield {**exact, "critique": AS_IT_IS + record.critique}


def _response(response: str) -> str:
    return to_json(as_messages(response)) if isinstance(response, Transcript) else response


def _named(quote: Quote, label: Label) -> Row:
    """A quote as an entry of the spans of a row."""
    named = {"turn": quote.turn, "occurrence": quote.occurrence, "reason": quote.reason}
    return {"text": quote.text, "label": LABELS.get(label, ""), **without_empty(**named)}


def _is_read_back(row: Row, record: Feedback) -> bool:
    try:
        opinion = read_row(row, DECLARED.score(row["score"]))
    except ValueError:
        return False
    if opinion.losses or opinion.skipped:
        return False
    read = record_of(TABLE, opinion, Scales({}), {})
    if any(getattr(read, name) != getattr(record, name) for name in _SAME):
        return False
    invented = read.meta.get("omissions", []) not in ([], record.meta.get("omissions"))
    return not invented and all(_text(read, name) == _text(record, name) for name in ("corrected", "annotator"))


def _text(record: Feedback, name: str) -> str:
    return str(record.meta.get(name) or "")


def _prompt(prompt: tuple[Message, ...]) -> str:
    """One user turn as it is, unless it looks like a list of turns; else the turns as JSON."""
    text = prompt[0].content
    plain = len(prompt) == 1 and prompt[0].role == "user" and bool(text.strip())
    try:
        plain = plain and not turns_of(text, "prompt")
    except ValueError:
        plain = False
    return text if plain else to_json([turn.model_dump() for turn in prompt])


# Preference pairs.


@dataclass(frozen=True)
class Pairs:
    """Pairs in their order, and what gave none, counted by its reason."""

    pairs: list[Preference]
    left_out: Mapping[str, int]


def pairs_of(records: Iterable[Feedback], most: int = 1) -> Pairs:
    """What people corrected over the response; of several scored responses to one prompt, the better over the worse
    (programs that pass and that fail: paper, appendix N), at most `most` pairs.

    The first is the best over the worst, then the second best over the second worst and so on; where one side is
    short, its responses come again beside others. A prompt gives no pair if it has one scored response, if all have
    one score, or if best and worst read the same.
    """
    found: list[Preference] = []
    left_out = Counter[str]()
    scored: dict[str, list[Feedback]] = {}
    for record in records:
        corrected = str(record.meta.get("corrected") or "")
        if corrected and corrected != record.response:
            found.append(_preference(record, corrected, record.response))
        elif record.score is None:
            left_out["without_score"] += 1
        else:
            scored.setdefault(to_json([turn.model_dump() for turn in record.prompt]), []).append(record)
    for group in scored.values():
        best, worst = (choose(group, key=lambda record: record.score or 0.0) for choose in (max, min))
        if len(group) < 2:
            left_out["single"] += 1
        elif best.score == worst.score:
            left_out["equal_scores"] += 1
        elif key_of(best.response).strip() == key_of(worst.response).strip():
            left_out["equal_sides"] += 1
        else:
            found += _from_both_ends(group, most)
    return Pairs(found, dict(left_out))


def _from_both_ends(group: Sequence[Feedback], most: int) -> Iterator[Preference]:
    """Pairs of distinct responses to one prompt, from the best and the worst inwards; the first of equals first."""
    distinct = {key_of(record.response).strip(): record for record in reversed(group)}
    downwards = sorted(reversed(distinct.values()), key=lambda record: -(record.score or 0.0))
    upwards = sorted(reversed(distinct.values()), key=lambda record: record.score or 0.0)
    ranks = sorted(product(range(len(distinct)), repeat=2), key=lambda pair: (abs(pair[0] - pair[1]), pair))
    both = ((downwards[i], upwards[j]) for i, j in ranks)
    apart = (pair for pair in both if (pair[0].score or 0.0) > (pair[1].score or 0.0))
    for better, worse in islice(apart, most):
        yield _preference(better, better.response, worse.response)


def _preference(record: Feedback, chosen: str, rejected: str) -> Preference:
    return Preference(id=record.id, prompt=record.prompt, chosen=chosen, rejected=rejected, meta=record.meta)


def as_messages(response: str) -> list[dict[str, str]]:
    """A response as the messages of a chat, in JSON."""
    return [message.model_dump() for message in conversation_of(response)]


def preference_row(pair: Preference) -> Row:
    """A pair in TRL's conversational shape."""
    sides = {"chosen": pair.chosen, "rejected": pair.rejected}
    answers = {side: as_messages(text) for side, text in sides.items()}
    return {"id": pair.id, "prompt": [turn.model_dump() for turn in pair.prompt], **answers}


# Files.


def _judged(row_of: Callable[[Feedback], Row]) -> Writer:
    """A row per record that was judged."""
    return lambda records: (row_of(record) for record in records if record.error is None)


def preference_rows(records: Iterable[Feedback], most: int = 1) -> Iterator[Row]:
    """TRL's preference format: the corrected text over the response; of several scored responses to one prompt the
    better ones over the worse ones (`pairs_of`).
    """
    return map(preference_row, pairs_of(records, most).pairs)


WRITERS: Mapping[str, Writer] = {
    "label_studio": _judged(studio_row),
    "argilla": _judged(argilla_row),
    "prodigy": lambda records: map(prodigy_row, records),
    "csv": _judged(table_row),
    "preference": preference_rows,
}
MORE_ANSWERS = "more answers to a prompt: text2grad annotate --annotate.samples_per_prompt 4"
OF_ONE_TURN = ("label_studio", "argilla", "prodigy")
"""Tools for people that have one text to mark."""
LISTS = ("label_studio", "argilla")
"""What these tools read is one list."""


def export(records: Iterable[Feedback], kind: str, out: Path, pairs: int = 1) -> int:
    """Write records in the shape `kind`, at once; how many rows. `pairs`: preference pairs of a prompt, at most.

    Raises:
        UsageError: the format is unknown. UserError: the file cannot be written, or there is no pair to write.
    """
    if kind not in WRITERS:
        raise UsageError(f"unknown shape {kind!r}", f"one of {', '.join(WRITERS)}")
    records = map(_without_suggestions, records)
    if kind in OF_ONE_TURN:
        records = map(partial(_of_one_turn, kind=kind), records)
    rows = list(preference_rows(records, pairs) if kind == "preference" else WRITERS[kind](records))
    if kind == "preference" and not rows:
        raise UserError("no two answers to one prompt have different scores, and none was corrected", MORE_ANSWERS)
    write_rows(rows, kind, out)
    return len(rows)


def _of_one_turn(record: Feedback, kind: str) -> Feedback:
    """The record, if its response is plain text.

    Raises:
        UserError: it has turns, which what is read back would lack.
    """
    if isinstance(record.response, Transcript):
        message = f"the response of {record.id!r} has turns, and {kind} holds plain text alone"
        raise UserError(message, "keep the JSON Lines file, or leave such records out")
    return record


def _without_suggestions(record: Feedback) -> Feedback:
    """The record without its spans of neither sign: the other tools have no label for them."""
    return record.model_copy(update={"spans": tuple(span for span in record.spans if span.label)})


def write_rows(rows: Sequence[Row], kind: str, out: Path) -> None:
    """Write rows of the shape `kind`, at once.

    Raises:
        UserError: the file cannot be written.
    """
    encoding = "utf-8-sig" if kind == "csv" else "utf-8"  # without it Excel reads another code page, and saves that
    with whole_file(out, encoding=encoding, errors="replace", newline="") as file:
        _write(rows, kind, file)


def left_out(records: Iterable[Feedback], kind: str) -> dict[str, Mapping[str, int]]:
    """What was not written, by the reason: records that gave no preference pair, else spans without a sign."""
    if kind == "preference":
        return {"left_out": pairs_of(records).left_out}
    count = sum(not span.label for each in records for span in each.spans)
    return {"left_out": {"improvable_spans": count}} if count else {}


def _write(rows: Sequence[Row], kind: str, file: TextIO) -> None:
    if kind == "csv":
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    elif kind in LISTS:
        file.write("[\n" + ",\n".join(map(to_json, rows)) + "\n]\n")
    else:
        file.writelines(to_json(row) + "\n" for row in rows)
