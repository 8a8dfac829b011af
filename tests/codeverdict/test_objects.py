"""What is noted of objects of the other side is noted of these alone."""

from __future__ import annotations

from typing import Any

import pytest

from codeverdict.inside import objects


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
    """They are dropped, and what is made at their place later would be excused from its comparisons."""
    monkeypatch.setattr(objects, "_COMPUTED", set())
    there = Answers([1], None, None)
    kind = objects.make_class(there, "Number", (), ["__add__", "__eq__"])
    number, other = (objects.made_of(kind, there, at) for at in (1, 2))
    there.given = iter([[1], other, None, False, None, False])
    assert number + 1 == [1] and number + 1 is other
    assert {id(other)} == objects._COMPUTED
    assert [number == 3, other == 3] == [False, False]
    assert [by_nature for _, by_nature in there.refused] == [False, True]
