"""A program that compares a JSON object with the one that was wanted, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from text2grad.critics.spec import CriticSpec, Need
from text2grad.feedback import Critique, Example, Failure, Judgement, Label, Place, Source, Span, conversation_text
from text2grad_lab.tasks.objects import Fields, Mark, Member, read_members

FORMS = {"date": (r"\d{4}-\d\d-\d\d", "YYYY-MM-DD"), "time": (r"\d\d:\d\d", "HH:MM")}
TITLES: dict[Mark, str] = {"right": "Right", "wrong": "Wrong", "again": "Said twice", "unasked": "Not asked for"}


class FieldsCritic:
    """Judges an answer by the JSON object in `example.reference`.

    Good: the value of each right field. Poor: the value of each wrong one, each key that is given
    again or was not asked for, with its value, and the place where the answer is not JSON.
    Omissions: the keys that are missing. A field that is given twice is not right, whichever of its
    values is. The score is 2 s - 1, s the share of the fields that are right out of all that were
    asked for or given; 0 where the answer is not JSON.

    A reason says what kind of mistake it is (not in the text; another value of the text; a number,
    no text; how a date is written) and never the right value: who is shown it must still read the
    text.
    """

    def __init__(self) -> None:
        self.source = Source(kind="program", model="fields", prompt_version="1")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Compare every response with its reference; an example without an object gives a
        `Failure`."""
        return [self._one(*each) for each in zip(examples, responses, strict=True)]

    def _one(self, example: Example, response: str) -> Judgement:
        if not is_object(example):
            return Failure(kind="unsupported", message=f"{example.id}: the reference is no JSON object with fields")
        found = Fields.of(example.reference, response)
        if not response.strip():
            return Critique(text="The answer is empty.", score=-1.0, omissions=tuple(found.missing))
        spans = tuple(_spans(found, response, conversation_text(example.prompt)))
        return Critique(text=_text(found), spans=spans, score=2 * found.share - 1, omissions=tuple(found.missing))


def is_object(example: Example) -> bool:
    """Whether the reference is a JSON object with at least one field."""
    members, faults = read_members(example.reference)
    return bool(members) and not faults


def _spans(found: Fields, response: str, document: str) -> Iterator[Span]:
    for member, mark in zip(found.members, found.marks, strict=True):
        if mark == "right":
            yield _span(response, member.place, 1, f"the {member.key}")
        elif mark == "wrong":
            yield _span(response, member.place, -1, _reason(member, found.wanted[member.key], document))
        elif mark != "twice":
            reason = "this key was given before" if mark == "again" else "nobody asked for this key"
            yield _span(response, member.whole, -1, reason)
    for fault in found.faults:
        if fault.place[1] > fault.place[0]:
            yield _span(response, fault.place, -1, f"not JSON: {fault.reason}")


def _span(response: str, place: Place, label: Label, reason: str) -> Span:
    start, end = place
    return Span(start=start, end=end, label=label, text=response[start:end], reason=reason)


def _reason(member: Member, wanted: Any, document: str) -> str:
    """What kind of mistake a wrong value is."""
    value, key = member.value, member.key
    if type(value) is not type(wanted):
        return f"the {key} is {_kind(wanted)}, not {_kind(value)}"
    if not isinstance(value, str):
        return f"this is not the {key}"
    for name, (pattern, shown) in FORMS.items():
        if re.fullmatch(pattern, wanted):
            return f"this is not the {key}" if re.fullmatch(pattern, value) else f"a {name} is written {shown}"
    if value.strip().casefold() == wanted.strip().casefold():
        return f"the {key}, but not as it is written"
    there = value.strip() and value in document
    return f"it is in the text, but is not the {key}" if there else "this is not in the text"


def _kind(value: Any) -> str:
    names = {str: "text", Decimal: "a number", bool: "true or false", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _text(found: Fields) -> str:
    """The critique in words."""
    marked = list(zip(found.members, found.marks, strict=True))
    named = {title: [m.key for m, mark in marked if mark == each] for each, title in TITLES.items()}
    named["Missing"] = found.missing
    parts = [f"{title}: {', '.join(dict.fromkeys(keys))}." for title, keys in named.items() if keys]
    faults = [f"Not JSON at character {fault.place[0]}: {fault.reason}." for fault in found.faults]
    return " ".join([*parts, *faults])


FIELDS = CriticSpec(
    "fields",
    make=lambda settings, ready: FieldsCritic(),
    needs=Need("a JSON object as reference answer", is_object),
    measures_with=lambda ready: FieldsCritic(),
    about="compares a JSON object with the reference answer's, field by field",
)
