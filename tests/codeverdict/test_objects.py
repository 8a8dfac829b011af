"""Objects of the other side, and lines of a verdict: whom they are taken from."""

from __future__ import annotations

import io
import os
from typing import Any
from unittest.mock import Mock

import pytest

from codeverdict.inside import frames, lent, objects, values


class Answers:
    """The other side: what it gives, whatever is asked."""

    wary, lenient = True, False

    def __init__(self, *given: Any) -> None:
        self.given = iter(given)
        self.refused: list[tuple[str, bool]] = []

    def request(self, *asked: Any) -> Any:
        return next(self.given)

    def refuse(self, what: str, by_nature: bool) -> Any:
        self.refused.append((what, by_nature))
        return False


def test_plain_values_that_were_computed_are_not_taken_for_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are dropped, and what is made at their place later would be excused from its
    comparisons."""
    monkeypatch.setattr(objects, "_COMPUTED", set())
    there = Answers([1], None, None)
    kind = objects.make_class(there, "Number", (), ["__add__", "__eq__"])
    number, other = (objects.make_object(kind, there, at) for at in (1, 2))
    there.given = iter([[1], other, None, False, None, False])
    assert number + 1 == [1] and number + 1 is other
    assert {id(other)} == objects._COMPUTED
    assert [number == 3, other == 3] == [False, False]
    assert [by_nature for _, by_nature in there.refused] == [False, True]


def test_an_object_is_a_plain_value_of_its_class_which_only_overrides_text() -> None:
    there = Answers()
    kind = objects.make_class(there, "Number", (int,), ["__repr__", "__add__"])
    assert int(objects.make_object(kind, there, 1, 4)) == 4
    for value in ("4", True, [4]):
        with pytest.raises(TypeError):
            objects.make_object(kind, there, 3, value)
    for name in ("__index__", "__eq__", "__bool__"):
        with pytest.raises(TypeError):
            objects.make_class(there, "Number", (int,), [name])


def test_a_line_of_a_verdict_is_read_once_in_order_and_with_the_key() -> None:
    seal, end = frames.Seal(b"k" * frames.KEY_BYTES), {"end": {"outcome": "passed"}}
    first, second = seal.line({"collected": 1}), seal.line(end)
    reader = frames.Seal(b"k" * frames.KEY_BYTES)
    assert [reader.message(first), reader.message(second)] == [{"collected": 1}, end]
    for lines in ([second], [first, first], [frames.Seal(b"other").line(end)], [b'{"end": {}}\n'], [b"\n"]):
        reader = frames.Seal(b"k" * frames.KEY_BYTES)
        with pytest.raises(ValueError):
            list(map(reader.message, lines))


def test_a_mock_is_lent_unless_it_forwards_calls_to_impure_code() -> None:
    """A format given by the program reaches for any attribute, and what `open` opens may be the
    verdict."""
    harmless: list[Any] = [None, len, str.upper, ValueError, [1, 2]]
    assert all(lent.may_call(Mock(side_effect=effect)) for effect in harmless)
    for function in (open, str.format, exec, os.write, Mock(side_effect=open)):
        assert not lent.is_lent(Mock(side_effect=function)) and not values.is_pure(function)
    assert not lent.is_lent(Mock(wraps=os)) and not lent.is_lent(io.FileIO) and not lent.is_lent(Mock)
