"""Prodigy's JSON Lines: a text, labelled spans (code points), and what the annotator answered."""

from __future__ import annotations

from collections.abc import Iterator

from text2grad.feedback import Critique, Failure, Feedback
from text2grad.formats.marks import LABELS, PROMPT_KEYS, Mark, first_text, human_record, marked_record, score_of
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row

KEYS = frozenset({"text", "spans", "answer"})


def records(row: Row, fallback_id: str) -> Iterator[Feedback]:
    """The record of a line. One the annotator rejected or ignored is kept as a failure: it says nothing.

    Raises:
        ValueError: the line has no text, or an offset is not a whole number.
    """
    response = first_text(row, ("text",), needed=True)
    told = {**row, **meta} if isinstance(meta := row.get("meta"), dict) else row
    id, prompt = first_text(told, ("id",)) or fallback_id, first_text(told, PROMPT_KEYS)
    if row["answer"] != "accept":
        failure = Failure(kind="unsupported", message=f"the annotator said {row['answer']}")
        yield human_record(id, prompt, response, failure, {"dataset": "prodigy"})
        return
    text = first_text(told, ("critique", "user_input", "comment"))
    critique = Critique(text=text, score=score_of(row.get("score")))
    meta = {"dataset": "prodigy", "annotator": first_text(row, ("_annotator_id", "_session_id"))}
    yield marked_record(id, prompt, response, critique, map(Mark.of, row["spans"]), meta)


def row_of(record: Feedback) -> Row:
    """A record as Prodigy has it; `records` reads it back."""
    spans = [
        {"start": s.start, "end": s.end, "label": LABELS[s.label].upper(), "text": s.text, "reason": s.reason}
        for s in record.spans
    ]
    row: Row = {"text": record.response, "spans": spans, "answer": "accept" if record.error is None else "ignore"}
    row |= {"critique": record.critique, "meta": {"id": record.id, "prompt": conversation_text(record.prompt)}}
    extra = {"score": record.score, "_annotator_id": record.meta.get("annotator") or None}
    return row | {name: value for name, value in extra.items() if value is not None}
