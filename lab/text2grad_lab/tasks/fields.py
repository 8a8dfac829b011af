"""A program critic that compares a JSON object with the expected one, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from text2grad.critics.spec import CriticSpec, Need
from text2grad.feedback import Critique, Example, Failure, Judgement, Label, Place, Source, Span, conversation_text
from text2grad_lab.tasks.objects import Fields, Mark, Member, read_members

FORMS = {"date": (r"\d{4}-\d\d-\d\d", "YYYY-MM-DD"), "time": (r"\d\d:\d\d", "HH:MM")}
TITLES: dict[Mark, str] = {
    "right": "Right",
    "wrong": "Wrong",
    "repeated": "Said twice",
    "unrequested": "Not asked for",
}
"""Headings in the text of a critique."""


class FieldsCritic:
    """Compares an answer with the JSON object in `example.reference`.

    Good spans are the values of right fields. Poor spans are the values of wrong fields, repeated
    or unexpected keys with their values, and places that are not JSON. Omissions are missing keys.
    A repeated field is never right. The score is 2 s - 1, where s is the share of right fields
    among expected and extra ones; s is 0 if the answer is not JSON.

    Reasons name the kind of mistake (not in the text; another value of the text; a number instead
    of text; a wrong date format), but not the right value, so that a revision needs the document.
    """

    def __init__(self) -> None:
        self.source = Source(kind="program", model="fields", prompt_version="1")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Compare every response with its reference; a `Failure` if that is not an object."""
        return [self._one(*pair) for pair in zip(examples, responses, strict=True)]

    def _one(self, example: Example, response: str) -> Judgement:
        if not is_object(example):
            return Failure(kind="unsupported", message=f"{example.id}: the reference is no JSON object with fields")
        fields = Fields.of(example.reference, response)
        if not response.strip():
            return Critique(text="The answer is empty.", score=-1.0, omissions=tuple(fields.missing))
        spans = tuple(_spans(fields, response, conversation_text(example.prompt)))
        return Critique(
            text=_text(fields), spans=spans, score=2 * fields.share - 1, omissions=tuple(fields.missing)
        )


def is_object(example: Example) -> bool:
    """True if the reference is a JSON object with at least one field."""
    members, faults = read_members(example.reference)
    return bool(members) and not faults


def _spans(fields: Fields, response: str, document: str) -> Iterator[Span]:
    for member, mark in zip(fields.members, fields.marks, strict=True):
        if mark == "right":
            yield _span(response, member.place, 1, f"the {member.key}")
        elif mark == "wrong":
            yield _span(response, member.place, -1, _reason(member, fields.expected[member.key], document))
        elif mark != "contested":
            reason = "this key was given before" if mark == "repeated" else "nobody asked for this key"
            yield _span(response, member.extent, -1, reason)
    for fault in fields.faults:
        if fault.place[1] > fault.place[0]:
            yield _span(response, fault.place, -1, f"not JSON: {fault.reason}")


def _span(response: str, place: Place, label: Label, reason: str) -> Span:
    start, end = place
    return Span(start=start, end=end, label=label, text=response[start:end], reason=reason)


def _reason(member: Member, expected: Any, document: str) -> str:
    """Return the kind of mistake of a wrong value."""
    value, key = member.value, member.key
    if type(value) is not type(expected):
        return f"the {key} is {_kind(expected)}, not {_kind(value)}"
    if not isinstance(value, str):
        return f"this is not the {key}"
    for name, (pattern, form) in FORMS.items():
        if re.fullmatch(pattern, expected):
            return f"this is not the {key}" if re.fullmatch(pattern, value) else f"a {name} is written {form}"
    if value.strip().casefold() == expected.strip().casefold():
        return f"the {key}, but not as it is written"
    is_copied = value.strip() and value in document
    return f"it is in the text, but is not the {key}" if is_copied else "this is not in the text"


def _kind(value: Any) -> str:
    names = {str: "text", Decimal: "a number", bool: "true or false", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _text(fields: Fields) -> str:
    """Return the text of the critique."""
    pairs = list(zip(fields.members, fields.marks, strict=True))
    named = {title: [m.key for m, mark in pairs if mark == kind] for kind, title in TITLES.items()}
    named["Missing"] = fields.missing
    parts = [f"{title}: {', '.join(dict.fromkeys(keys))}." for title, keys in named.items() if keys]
    faults = [f"Not JSON at character {fault.place[0]}: {fault.reason}." for fault in fields.faults]
    return " ".join([*parts, *faults])


FIELDS = CriticSpec(
    "fields",
    make=lambda settings, ready: FieldsCritic(),
    needs=Need("a JSON object as reference answer", is_object),
    measures_with=lambda ready: FieldsCritic(),
    about="compares a JSON object with the reference answer's, field by field",
)
