"""Prodigy's JSON Lines: a text, labelled spans (code points), and what the annotator answered."""

from __future__ import annotations

from collections.abc import Iterator

from text2grad.critics.shapes.marks import PROMPT_KEYS, Mark, first_text, human_record, placed
from text2grad.feedback import Critique, Example, Failure, Feedback, Message, Source
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row

KEYS = frozenset({"text", "spans", "answer"})
LABELS = {1: "GOOD", -1: "POOR"}


def records(row: Row, fallback_id: str) -> Iterator[Feedback]:
    """The record of a line. One the annotator rejected or ignored is kept as a failure: it says nothing.

    Raises:
        ValueError: the line has no text.
    """
    response = first_text(row, ("text",), needed=True)
    meta = row.get("meta") if isinstance(row.get("meta"), dict) else {}
    told = {**row, **(meta or {})}
    id = first_text(told, ("id",)) or fallback_id
    who = first_text(row, ("_annotator_id", "_session_id"))
    prompt = first_text(told, PROMPT_KEYS)
    if row["answer"] != "accept":
        turns = (Message(role="user", content=prompt),)
        failure = Failure(kind="unsupported", message=f"the annotator said {row['answer']}")
        example = Example(id=id, prompt=turns, meta={"dataset": "prodigy"})
        yield Feedback.of(example, response, failure, Source(kind="human"))
        return
    marks = [
        Mark(
            int(s["start"]),
            int(s["end"]),
            str(s.get("label", "")),
            str(s.get("text") or ""),
            str(s.get("reason") or ""),
        )
        for s in row["spans"]
    ]
    spans, counts = placed(marks, response)
    score = row.get("score")
    critique = Critique(
        text=first_text(told, ("critique", "user_input", "comment")),
        spans=spans,
        score=float(score) if isinstance(score, int | float) and -1 <= score <= 1 else None,
        quotes=counts,
    )
    yield human_record(id, prompt, response, critique, {"dataset": "prodigy"}, who)


def row_of(record: Feedback) -> Row:
    """A record as Prodigy has it; `records` reads it back."""
    spans = [
        {"start": s.start, "end": s.end, "label": LABELS[s.label], "text": s.text, "reason": s.reason}
        for s in record.spans
    ]
    row: Row = {"text": record.response, "spans": spans, "answer": "accept" if record.error is None else "ignore"}
    row |= {"critique": record.critique, "meta": {"id": record.id, "prompt": conversation_text(record.prompt)}}
    who = record.meta.get("annotator")
    return (
        row
        | ({"score": record.score} if record.score is not None else {})
        | ({"_annotator_id": who} if who else {})
    )
