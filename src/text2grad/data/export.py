"""Write feedback records as a table for people, or as preference pairs for trainers."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path

from text2grad.data.conversations import parse_turns
from text2grad.data.files import Row
from text2grad.data.keys import COLUMNS
from text2grad.data.opinions import Importer
from text2grad.data.records import build_record
from text2grad.data.remarks import DECLARED, LITERAL_PREFIX, NO_SPANS, read_row
from text2grad.data.scale import Scales
from text2grad.data.spans.marks import LABELS, Mark, drop_empty
from text2grad.data.spans.markup import write_markup
from text2grad.data.spreadsheets.tables import as_cell
from text2grad.errors import UsageError, UserError
from text2grad.feedback import (
    Feedback,
    Message,
    Preference,
    Transcript,
    conversation_of,
    response_key,
)
from text2grad.feedback.quotes import to_quotes
from text2grad.json_text import to_json
from text2grad.jsonl import whole_file

TABLE = Importer("csv", lambda row, id, names: ())


# A table. A row is written as a person would write it, if that is read back as the same record:
# with quotes, one per line, else with mark-up in the response. Otherwise the spans are JSON with
# offsets.

_COMPARED = ("id", "prompt", "response", "critique", "spans", "score")


def table_row(record: Feedback) -> Row:
    """Write a record as a row; of two spans with one place and label, a reader uses the first.

    Raises:
        UserError: the response has turns, and its spans cannot be read back from a table.
    """
    candidates = list(_candidate_rows(record))
    row = next((row for row in candidates if _is_read_back(row, record)), None)
    if row is None and isinstance(record.response, Transcript):
        message = f"the response of {record.id!r} has turns with spans that a table cannot hold"
        raise UserError(message, "keep the JSON Lines file, or leave such records out")
    return row or candidates[-1]


def _candidate_rows(record: Feedback) -> Iterator[Row]:
    """Yield rows that may be read back as the record, the plainest first."""
    has_turns = isinstance(record.response, Transcript)
    score = "" if record.score is None else format(Decimal(repr(record.score)), "f")
    row = {
        **dict.fromkeys(COLUMNS, ""),
        "id": record.id,
        "prompt": _prompt(record.prompt),
        "response": to_json(as_messages(record.response)) if has_turns else record.response,
        "critique": record.critique,
        "score": score.removesuffix(".0"),
        **{name: _text(record, name) for name in ("corrected", "annotator")},
    }
    by_label = {name: [span.text for span in record.spans if span.label == label] for label, name in LABELS.items()}
    marks = [Mark(span.start, span.end, f"{span.label:+d}", span.text, span.reason) for span in record.spans]
    spans = [span.model_dump(exclude_defaults=True) for span in record.spans]
    yield row
    if isinstance(record.response, Transcript):
        entries = []
        for span, quote in zip(record.spans, to_quotes(record.spans, record.response), strict=True):
            optional = drop_empty(turn=quote.turn, occurrence=quote.occurrence, reason=quote.reason)
            entries.append({"text": quote.text, "label": LABELS.get(span.label, ""), **optional})
        yield {**row, "spans": to_json(entries) if entries else NO_SPANS}
        return
    yield {**row, **{name: "\n".join(texts) for name, texts in by_label.items()}}
    yield {**row, "response": write_markup(record.response, marks)}
    exact = {**row, "spans": to_json(spans) if spans else NO_SPANS}
    yield exact
    yield {**exact, "critique": LITERAL_PREFIX + record.critique}


def _is_read_back(row: Row, record: Feedback) -> bool:
    try:
        opinion = read_row(row, DECLARED.score(row["score"]))
    except ValueError:
        return False
    if opinion.losses or opinion.skipped:
        return False
    parsed = build_record(TABLE, opinion, Scales({}), {})
    if any(getattr(parsed, name) != getattr(record, name) for name in _COMPARED):
        return False
    invented = parsed.meta.get("omissions", []) not in ([], record.meta.get("omissions"))
    return not invented and all(_text(parsed, name) == _text(record, name) for name in ("corrected", "annotator"))


def _text(record: Feedback, name: str) -> str:
    return str(record.meta.get(name) or "")


def _prompt(prompt: tuple[Message, ...]) -> str:
    """Return a single user turn as text, unless it looks like turns itself; else turns as JSON."""
    text = prompt[0].content
    is_text = len(prompt) == 1 and prompt[0].role == "user" and bool(text.strip())
    try:
        is_text = is_text and not parse_turns(text, "prompt")
    except ValueError:
        is_text = False
    return text if is_text else to_json([turn.model_dump() for turn in prompt])


# Preference pairs.


@dataclass(frozen=True)
class Pairs:
    """Preference pairs in order, and the records or prompts that gave none, by reason."""

    pairs: list[Preference]
    left_out: Mapping[str, int]


def build_pairs(records: Iterable[Feedback], pairs_per_prompt: int = 1) -> Pairs:
    """Build preference pairs: corrections over responses, and better over worse responses.

    The responses to a prompt are paired by their scores, from both ends: the best over the worst,
    the second best over the second worst, and so on. Where one side is short, its responses are
    used again. This also pairs programs that pass with programs that fail (paper, appendix N). A
    prompt gives no pair if it has one scored response, if all scores are equal, or if the best and
    the worst response are the same text.
    """
    pairs: list[Preference] = []
    left_out = Counter[str]()
    scored: dict[str, list[Feedback]] = {}
    for record in records:
        corrected = str(record.meta.get("corrected") or "")
        if corrected and corrected != record.response:
            pairs.append(_preference(record, corrected, record.response))
        elif record.score is None:
            left_out["without_score"] += 1
        elif not any(turn.content.strip() for turn in record.prompt):  # which answers belong together is unknown
            left_out["without_prompt"] += 1
        else:
            scored.setdefault(to_json([turn.model_dump() for turn in record.prompt]), []).append(record)
    for group in scored.values():
        best, worst = (choose(group, key=_score) for choose in (max, min))
        if len(group) < 2:
            left_out["single"] += 1
        elif best.score == worst.score:
            left_out["equal_scores"] += 1
        elif response_key(best.response).strip() == response_key(worst.response).strip():
            left_out["equal_sides"] += 1
        else:
            pairs += _pairs_from_both_ends(group, pairs_per_prompt)
    return Pairs(pairs, dict(left_out))


def _score(record: Feedback) -> float:
    return record.score or 0.0


def _pairs_from_both_ends(group: Sequence[Feedback], count: int) -> Iterator[Preference]:
    """Yield pairs of distinct responses to one prompt; ties keep the order of the records."""
    distinct = {response_key(record.response).strip(): record for record in reversed(group)}
    best_first = sorted(reversed(distinct.values()), key=lambda record: -_score(record))
    worst_first = sorted(reversed(distinct.values()), key=_score)
    pairs = ((best_first[i], worst_first[j]) for i, j in _ranks(len(distinct)))
    ordered = (pair for pair in pairs if _score(pair[0]) > _score(pair[1]))
    for better, worse in islice(ordered, count):
        yield _preference(better, better.response, worse.response)


def _ranks(count: int) -> Iterator[tuple[int, int]]:
    """Yield all pairs of ranks below `count`, the nearest first."""
    for distance in range(count):
        for i in range(count):
            yield from ((i, j) for j in sorted({i - distance, i + distance}) if 0 <= j < count)


def _preference(record: Feedback, chosen: str, rejected: str) -> Preference:
    return Preference(id=record.id, prompt=record.prompt, chosen=chosen, rejected=rejected, meta=record.meta)


def as_messages(response: str) -> list[dict[str, str]]:
    """Return a response as chat messages."""
    return [message.model_dump() for message in conversation_of(response)]


def preference_row(pair: Preference) -> Row:
    """Return a pair in TRL's conversational format."""
    sides = {"chosen": pair.chosen, "rejected": pair.rejected}
    answers = {side: as_messages(text) for side, text in sides.items()}
    return {"id": pair.id, "prompt": [turn.model_dump() for turn in pair.prompt], **answers}


# Files.


WRITERS: Mapping[str, Callable[[Iterable[Feedback], int], Iterator[Row]]] = {
    "csv": lambda records, _: (table_row(record) for record in records if record.error is None),
    "preference": lambda records, count: map(preference_row, build_pairs(records, count).pairs),
}
MORE_ANSWERS = "more answers to a prompt: text2grad annotate --annotate.samples_per_prompt 4"


def export(records: Iterable[Feedback], kind: str, out: Path, pairs: int = 1) -> int:
    """Write records for another tool, atomically.

    Spans without a sign are left out: no other tool has a label for them.

    Args:
        records: the feedback to write.
        kind: one of `WRITERS`.
        out: the file to write.
        pairs: the largest number of preference pairs for a prompt.

    Returns:
        The number of rows.

    Raises:
        UsageError: the format is unknown.
        UserError: the file cannot be written, or there is no pair to write.
    """
    if kind not in WRITERS:
        raise UsageError(f"unknown format {kind!r}", f"one of {', '.join(WRITERS)}")
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
    """Write rows in the format `kind`, atomically.

    Raises:
        UserError: the file cannot be written.
    """
    # Without the signature, Excel reads and saves a table in another code page.
    encoding = "utf-8-sig" if kind == "csv" else "utf-8"
    with whole_file(out, encoding=encoding, errors="replace", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
        else:
            file.writelines(to_json(row) + "\n" for row in rows)


def count_left_out(records: Iterable[Feedback], kind: str) -> dict[str, Mapping[str, int]]:
    """Count what `export` leaves out: records without a pair, or spans without a sign."""
    if kind == "preference":
        return {"left_out": build_pairs(records).left_out}
    count = sum(not span.label for record in records for span in record.spans)
    return {"left_out": {"improvable_spans": count}} if count else {}
