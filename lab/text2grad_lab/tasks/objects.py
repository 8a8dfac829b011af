"""Read an answer as a JSON object with the places of its values, and compare it with another."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any, Literal, NamedTuple

from text2grad.feedback import Place

SPACES = " \t\n\r"
_SPACE = re.compile(rf"[{SPACES}]*")
_PLAIN = re.compile(r"(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|true|false|null")
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_LITERALS = {"true": True, "false": False, "null": None}
UNTERMINATED = "the object does not end"
Mark = Literal["right", "wrong", "contested", "repeated", "unrequested"]
"""The mark of a member: a right or wrong value, a right value whose key occurs again, a repeated
key, or an unrequested key."""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _number(digits: str) -> Decimal:
    try:
        return Decimal(digits)
    except InvalidOperation:
        raise ValueError("its exponent has no end") from None


_JSON = json.JSONDecoder(parse_float=_number, parse_int=Decimal, parse_constant=_refuse)


class Member(NamedTuple):
    """A key and its value, with numbers as decimals.

    `extent` is the place of both in the text, `place` that of the value (without quotes).
    """

    key: str
    value: Any
    extent: Place
    place: Place


class Fault(NamedTuple):
    """A place where the text is not JSON (possibly its end), with the reason."""

    place: Place
    reason: str


class _ParseError(Exception):
    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at, self.reason = at, reason


def read_members(text: str) -> tuple[list[Member], list[Fault]]:
    """Parse the object in a text up to its first error; return its members and the faults."""
    start = text.find("{")
    if start < 0:
        return [], [Fault(_stripped(text, 0), "no JSON object")]
    faults = (
        [Fault(_stripped(text, 0, start), "nothing belongs before the object")]
        if text[:start].strip(SPACES)
        else []
    )
    members: list[Member] = []
    try:
        end = _read_members(text, start, members)
    except _ParseError as broken:
        piece = _PIECE.match(text, broken.at)
        return members, [*faults, Fault((broken.at, piece.end() if piece else broken.at), broken.reason)]
    if text[end:].strip(SPACES):
        faults.append(Fault(_stripped(text, end), "nothing belongs after the object"))
    return members, faults


def _stripped(text: str, start: int, end: int | None = None) -> Place:
    """Return the place between two positions without surrounding whitespace."""
    inside = text[start:end]
    first = start + len(inside) - len(inside.lstrip(SPACES))
    return first, max(first, start + len(inside.rstrip(SPACES)))


def _read_members(text: str, at: int, members: list[Member]) -> int:
    """Parse the object that begins at `at` into `members`; return its end.

    Raises:
        _ParseError: it is not JSON.
    """
    at = _skip_space(text, at + 1)
    if text.startswith("}", at):
        return at + 1
    while True:
        start = at
        if not text.startswith('"', at):
            raise _ParseError(at, "a key in double quotes belongs here" if at < len(text) else UNTERMINATED)
        key, at = _text(text, at)
        at = _skip_space(text, at)
        if not text.startswith(":", at):
            raise _ParseError(at, "a colon belongs here")
        value, place, at = _value(text, _skip_space(text, at + 1))
        members.append(Member(key, value, (start, at), place))
        at = _skip_space(text, at)
        if text.startswith("}", at):
            return at + 1
        if not text.startswith(",", at):
            raise _ParseError(at, "a comma or } belongs here" if at < len(text) else UNTERMINATED)
        at = _skip_space(text, at + 1)


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _value(text: str, at: int) -> tuple[Any, Place, int]:
    """Return the value at `at`, the place of its span, and its end."""
    value: Any
    if text.startswith('"', at):
        value, end = _text(text, at)
        return value, (at + 1, end - 1) if end - at > 2 else (at, end), end
    if text.startswith(("{", "["), at):
        try:
            value, end = _JSON.raw_decode(text, at)
        except (ValueError, RecursionError):
            raise _ParseError(at, "one value belongs here") from None
        return value, (at, end), end
    if not (match := _PLAIN.match(text, at)):
        raise _ParseError(at, "a value belongs here")
    try:
        value = _number(match[0]) if match["number"] else _LITERALS[match[0]]
    except ValueError as error:
        raise _ParseError(at, f"a number belongs here: {error}") from None
    return value, match.span(), match.end()


def _text(text: str, at: int) -> tuple[str, int]:
    try:
        decoded: tuple[str, int] = _JSON.raw_decode(text, at)
        return decoded
    except json.JSONDecodeError:
        raise _ParseError(at, "this text in quotes does not end, or has a sign that JSON does not take") from None


@dataclass(frozen=True)
class Fields:
    """The members of an answer, compared with the expected object."""

    expected: dict[str, Any]
    members: list[Member]
    faults: list[Fault]

    @classmethod
    def of(cls, reference: str, response: str) -> Fields:
        """Compare a response with the object in `reference`."""
        expected = {member.key: member.value for member in read_members(reference)[0]}
        return cls(expected, *read_members(response))

    @cached_property
    def marks(self) -> list[Mark]:
        """The marks of `members`."""
        return list(self._marks())

    def _marks(self) -> Iterator[Mark]:
        times = Counter(member.key for member in self.members)
        before: set[str] = set()
        for member in self.members:
            if member.key not in self.expected:
                yield "unrequested"
            elif member.key in before:
                yield "repeated"
            elif not equal(member.value, self.expected[member.key]):
                yield "wrong"
            else:
                yield "contested" if times[member.key] > 1 else "right"
            before.add(member.key)

    @property
    def missing(self) -> list[str]:
        """The keys that are missing in the answer."""
        keys = {member.key for member in self.members}
        return [key for key in self.expected if key not in keys]

    @property
    def share(self) -> float:
        """The share of right fields among requested and extra ones; 0 if the answer is not JSON."""
        extra = sum(mark in ("repeated", "unrequested") for mark in self.marks)
        return 0.0 if self.faults else self.marks.count("right") / max(1, len(self.expected) + extra)

    def scores(self) -> dict[str, float]:
        """The measures of the task `extraction`."""
        valid = not self.faults and len(self.members) == len(self.expected) and not self.missing
        return {"fields": self.share, "exact": float(self.share == 1.0), "valid": float(valid)}


def equal(value: Any, other: Any) -> bool:
    """True if two JSON values are equal; text never equals a number, and true is not 1."""
    return type(value) is type(other) and bool(value == other)
