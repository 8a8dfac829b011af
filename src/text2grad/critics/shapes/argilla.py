"""Argilla's records, of version 2 and 1: text fields, and what each person answered to span and text questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from text2grad.critics.shapes.marks import PROMPT_KEYS, RESPONSE_KEYS, Mark, first_text, human_record, placed
from text2grad.feedback import Critique, Feedback
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row

KEYS = frozenset({"fields", "responses"})
LABELS = {1: "good", -1: "poor"}


def records(row: Row, fallback_id: str) -> Iterator[Feedback]:
    """One record per person who submitted something; drafts and discarded answers are left aside.

    Raises:
        ValueError: the record has no text.
    """
    fields = row["fields"]
    response, prompt = first_text(fields, RESPONSE_KEYS, needed=True), first_text(fields, PROMPT_KEYS)
    id = str(row.get("external_id") or row.get("id") or fallback_id)
    answers = list(_by_person(row["responses"]).items())
    for who, values in answers:
        marks = [mark for value in values for mark in _marks(value)]
        texts = [value for value in values if isinstance(value, str)]
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        spans, counts = placed(marks, response)
        score = next((float(number) for number in numbers if -1 <= number <= 1), None)
        critique = Critique(text="\n".join(texts), spans=spans, score=score, quotes=counts)
        meta = {"dataset": "argilla"}
        yield human_record(id if len(answers) == 1 else f"{id}-{who}", prompt, response, critique, meta, who)


def _by_person(responses: Any) -> dict[str, list[Any]]:
    """Person -> the values they submitted, in the order of the questions."""
    found: dict[str, list[Any]] = {}
    if isinstance(responses, dict):  # version 2: question -> answers
        for answers in responses.values():
            for answer in answers:
                if answer.get("status", "submitted") == "submitted":
                    found.setdefault(str(answer.get("user_id") or ""), []).append(answer["value"])
        return found
    for answer in responses:  # version 1: person -> question -> answer
        if answer.get("status", "submitted") == "submitted":
            values = found.setdefault(str(answer.get("user_id") or ""), [])
            values += [question["value"] for question in answer["values"].values()]
    return found


def _marks(value: Any) -> Iterator[Mark]:
    for mark in value if isinstance(value, list) else ():
        if isinstance(mark, Mapping) and isinstance(mark.get("start"), int) and isinstance(mark.get("end"), int):
            reason = str(mark.get("reason") or "")
            yield Mark(mark["start"], mark["end"], str(mark.get("label", "")), str(mark.get("text") or ""), reason)


def row_of(record: Feedback) -> Row:
    """A record as Argilla 2 has it; `records` reads it back."""
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
    return {"id": record.id, "fields": fields, "responses": responses}
