"""Argilla's records, of version 2 and 1: text fields, and what each person answered to span and text questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from text2grad.feedback import Critique, Feedback
from text2grad.formats.marks import LABELS, PROMPT_KEYS, RESPONSE_KEYS, Mark, first_text, marked_record, score_of
from text2grad.tasks.base import conversation_text
from text2grad.tasks.loaders import Row

KEYS = frozenset({"fields", "responses"})


def records(row: Row, fallback_id: str) -> Iterator[Feedback]:
    """One record per person who submitted something; drafts and discarded answers are left aside.

    Raises:
        ValueError: the record has no text.
    """
    fields = row["fields"]
    response, prompt = first_text(fields, RESPONSE_KEYS, needed=True), first_text(fields, PROMPT_KEYS)
    id = str(row.get("external_id") or row.get("id") or fallback_id)
    people = _by_person(row["responses"])
    for who, values in people.items():
        lists = [value for value in values if isinstance(value, list)]
        marks = [Mark.of(mark) for each in lists for mark in each if isinstance(mark, dict) and "start" in mark]
        texts = [value for value in values if isinstance(value, str)]
        score = next((score for value in values if (score := score_of(value)) is not None), None)
        critique = Critique(text="\n".join(texts), score=score)
        meta = {"dataset": "argilla", "annotator": who}
        yield marked_record(id if len(people) == 1 else f"{id}-{who}", prompt, response, critique, marks, meta)


def _by_person(responses: Any) -> dict[str, list[Any]]:
    """Person -> the values they submitted, in the order of the questions."""
    if isinstance(responses, dict):  # version 2: question -> answers
        answers = [(answer, [answer.get("value")]) for each in responses.values() for answer in each]
    else:  # version 1: person -> question -> answer
        answers = [
            (answer, [each["value"] for each in (answer.get("values") or {}).values()]) for answer in responses
        ]
    found: dict[str, list[Any]] = {}
    for answer, values in answers:
        if answer.get("status", "submitted") == "submitted":
            found.setdefault(str(answer.get("user_id") or ""), []).extend(values)
    return found


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
