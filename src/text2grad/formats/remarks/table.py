"""A spreadsheet: `response` and what is said of it (`formats.remarks.rows`), a cell for each.

A row is written as a person would write it where that is read back as the very same record: quotes, one in a line,
else mark-up in the response. Only otherwise its spans are a list with offsets, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from text2grad.errors import UserError
from text2grad.feedback import Feedback, Label, Message, Transcript, to_json
from text2grad.formats.marks import LABELS, Mark, without_empty
from text2grad.formats.preference import as_messages
from text2grad.formats.remarks.cells import score_of, turns_of
from text2grad.formats.remarks.columns import COLUMNS as COLUMNS
from text2grad.formats.remarks.markup import write_markup
from text2grad.formats.remarks.rows import AS_IT_IS, NO_SPANS, read_row
from text2grad.tasks.loaders import Row
from text2grad.wire.quotes import Quote, to_quotes

_SAME = ("id", "prompt", "response", "critique", "spans", "score")


def row_of(record: Feedback) -> Row:
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
        read, lost = read_row(row, score_of(row["score"]), "csv")
    except ValueError:
        return False
    if lost or read is None or any(getattr(read, name) != getattr(record, name) for name in _SAME):
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
