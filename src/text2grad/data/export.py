"""Write feedback records as a table for people, or as preference pairs for trainers."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, product
from pathlib import Path

from text2grad.data.conversations import parse_turns
from text2grad.data.files import Row
from text2grad.data.opinions import Importer
from text2grad.data.records import build_record
from text2grad.data.remarks import AS_IT_IS, COLUMNS, DECLARED, NO_SPANS, read_row
from text2grad.data.scale import Scales
from text2grad.data.spans.marks import LABELS, Mark, drop_empty
from text2grad.data.spans.markup import write_markup
from text2grad.data.spreadsheets.tables import as_cell
from text2grad.errors import UsageError, UserError
from text2grad.feedback import (
    Feedback,
    Label,
    Message,
    Preference,
    Transcript,
    conversation_of,
    response_key,
)
from text2grad.feedback.quotes import Quote, to_quotes
from text2grad.json_text import to_json
from text2grad.jsonl import whole_file

TABLE = Importer("csv", lambda row, id, names: ())


# A spreadsheet: a row is written as a person would write it where that is read back as the same
# record: quotes, a # line each, else mark-up in the response. Only otherwise its spans are a list
# with offsets, as JSON.

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
    return {"text": quote.text, "label": LABELS.get(label, ""), **drop_empty(**named)}


def _is_read_back(row: Row, record: Feedback) -> bool:
    try:
        opinion = read_row(row, DECLARED.score(row["score"]))
    except ValueError:
        return False
    if opinion.losses or opinion.skipped:
        return False
    read = build_record(TABLE, opinion, Scales({}), {})
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
        plain = plain and not parse_turns(text, "prompt")
    except ValueError:
        plain = False
    return text if plain else to_json([turn.model_dump() for turn in prompt])


# Preference pairs.


@dataclass(frozen=True)
class Pairs:
    """Pairs in their order, and what gave none, counted by its reason."""

    pairs: list[Preference]
    left_out: Mapping[str, int]


def build_pairs(records: Iterable[Feedback], most: int = 1) -> Pairs:
    """What people corrected over the response; of several scored responses to one prompt, the
    better over the worse (programs that pass and that fail: paper, appendix N), at most `most`
    pairs.

    The first is the best over the worst, then the second best over the second worst and so on;
    where one side is short, its responses come again beside others. A prompt gives no pair if it
    has one scored response, if all have one score, or if best and worst read the same.
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
        elif response_key(best.response).strip() == response_key(worst.response).strip():
            left_out["equal_sides"] += 1
        else:
            found += _from_both_ends(group, most)
    return Pairs(found, dict(left_out))


def _from_both_ends(group: Sequence[Feedback], most: int) -> Iterator[Preference]:
    """Pairs of distinct responses to one prompt, from the best and the worst inwards; the first of
    equals first."""
    distinct = {response_key(record.response).strip(): record for record in reversed(group)}
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


WRITERS: Mapping[str, Callable[[Iterable[Feedback], int], Iterator[Row]]] = {
    "csv": lambda records, _: (table_row(record) for record in records if record.error is None),
    "preference": lambda records, most: map(preference_row, build_pairs(records, most).pairs),
}
MORE_ANSWERS = "more answers to a prompt: text2grad annotate --annotate.samples_per_prompt 4"


def export(records: Iterable[Feedback], kind: str, out: Path, pairs: int = 1) -> int:
    """Write records for another tool, at once.

    Spans of neither sign are left out: no other tool has a label for them.

    Args:
        records: what is written.
        kind: the shape of the file, one of `WRITERS`.
        out: the file.
        pairs: preference pairs of a prompt, at most.

    Returns:
        The number of rows.

    Raises:
        UsageError: the format is unknown.
        UserError: the file cannot be written, or there is no pair to write.
    """
    if kind not in WRITERS:
        raise UsageError(f"unknown shape {kind!r}", f"one of {', '.join(WRITERS)}")
    signed = (
        record.model_copy(update={"spans": tuple(span for span in record.spans if span.label)})
        for record in records
    )
    rows = list(WRITERS[kind](signed, pairs))
    if kind == "preference" and not rows:
        raise UserError("no two answers to one prompt have different scores, and none was corrected", MORE_ANSWERS)
    write_rows(rows, kind, out)
    return len(rows)


def write_rows(rows: Sequence[Row], kind: str, out: Path) -> None:
    """Write rows of the shape `kind`, at once.

    Raises:
        UserError: the file cannot be written.
    """
    encoding = "utf-8-sig" if kind == "csv" else "utf-8"  # without it Excel reads another code page, and saves that
    with whole_file(out, encoding=encoding, errors="replace", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
        else:
            file.writelines(to_json(row) + "\n" for row in rows)


def count_left_out(records: Iterable[Feedback], kind: str) -> dict[str, Mapping[str, int]]:
    """What was not written, by the reason: records that gave no preference pair, else spans without
    a sign."""
    if kind == "preference":
        return {"left_out": build_pairs(records).left_out}
    count = sum(not span.label for record in records for span in record.spans)
    return {"left_out": {"improvable_spans": count}} if count else {}
