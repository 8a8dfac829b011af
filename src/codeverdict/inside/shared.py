"""Mutable containers that both sides hold: one number each, and changes sent along with every message.

Each side keeps its own copy and a shallow snapshot of it. Before a message leaves, containers that changed since
the last one are sent again, so `solution.sort_in_place(xs)` changes the test's `xs`. A container that only this
table still holds is dropped on both sides: what a solution gives away and does not keep is a plain copy.
"""

from __future__ import annotations

import array
import collections
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from codeverdict.inside import values

_DICTS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
KINDS: dict[str, Any] = {
    **{"L": list, "D": dict, "S": set, "Q": collections.deque, "O": collections.OrderedDict},
    **{"K": collections.Counter, "E": collections.defaultdict, "Y": bytearray, "G": array.array},
}
_TAGS = {kind: tag for tag, kind in KINDS.items()}


def tag_of(value: Any) -> str:
    """The tag of a container that is shared, "" for any other value."""
    tag = _TAGS.get(type(value), "")
    if not tag and values.numpy() is not None and type(value) is values.numpy().ndarray:
        return "A" if values.array_parts(value) is not None else ""
    return tag


def contents(value: Any, pack: Callable[[Any], Any]) -> list[Any]:
    """What is in a container, packed: elements, or keys and values in turn."""
    if type(value) in _DICTS:
        return [pack(part) for item in value.items() for part in item]
    if type(value) is bytearray:
        return [bytes(value).decode("latin-1")]
    return values.array_parts(value) or [pack(item) for item in value]


def extra(value: Any, pack: Callable[[Any], Any]) -> Any:
    """What a container was made with: a deque's length, a defaultdict's factory, the type of an array."""
    if isinstance(value, collections.deque):
        return value.maxlen
    if isinstance(value, array.array):
        return value.typecode
    return pack(value.default_factory) if isinstance(value, collections.defaultdict) else None


def empty(tag: str, made_with: Any, packed: list[Any]) -> Any:
    """A container to be filled; a numpy array comes filled. KeyError if there is no such container."""
    if tag == "A":
        return values.array_from(*packed)
    kind = KINDS[tag]
    if tag == "Q":
        return kind(maxlen=made_with)
    return kind(made_with) if tag in "EG" else kind()


def fill(value: Any, packed: list[Any], unpack: Callable[[Any], Any]) -> None:
    """Give a container these contents, in place."""
    if values.array_parts(value) is not None:
        value[...] = values.array_from(*packed)
    elif type(value) is bytearray:
        value[:] = packed[0].encode("latin-1")
    elif type(value) is array.array:
        value[:] = array.array(value.typecode, [unpack(item) for item in packed])
    else:
        items = [unpack(item) for item in packed]
        value.clear()
        if type(value) in _DICTS:
            for key, item in zip(items[::2], items[1::2], strict=True):
                value[key] = item
        else:
            value.update(items) if type(value) is set else value.extend(items)


class Shared:
    """A container and what it held when both sides last agreed."""

    __slots__ = ("snapshot", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.snapshot: Any = None

    def agree(self) -> None:
        """Both sides hold the same now."""
        self.snapshot = self._now()

    def changed(self) -> bool:
        """Whether anything was put in, taken out or replaced since then."""
        if self.snapshot is None:  # it is being filled, and what goes in asks the other side
            return False
        now = self._now()
        if type(now) is not tuple:
            return bool(now != self.snapshot)
        if type(self.value) is set:
            return set(map(id, now)) != set(map(id, self.snapshot))
        return len(now) != len(self.snapshot) or not all(map(operator.is_, now, self.snapshot))

    def _now(self) -> Any:
        if type(self.value) in _DICTS:
            return tuple(part for item in self.value.items() for part in item)
        if type(self.value) in (bytearray, array.array):
            return bytes(self.value)
        return values.array_parts(self.value) or tuple(self.value)


class Table:
    """The containers that both sides hold, by number: one side gives even numbers, the other odd ones."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._entries: dict[int, Shared] = {}
        self._numbers: dict[int, int] = {}
        self._alone = _holders(Shared([]))

    def number_of(self, value: Any) -> int | None:
        """The number of a container that is shared already."""
        return self._numbers.get(id(value))

    def add(self, value: Any, number: int | None = None) -> int:
        """Share a container, under the other side's number or the next of ours.

        Raises:
            ValueError: the number is taken, or is not one the other side may give.
        """
        if number is None:
            number, self._next = self._next, self._next + 2
        elif number in self._entries or number % 2 == self._next % 2:
            raise ValueError(f"container {number} is not new")
        self._entries[number] = Shared(value)
        self._numbers[id(value)] = number
        return number

    def __getitem__(self, number: int) -> Shared:
        return self._entries[number]

    def drop(self, number: int) -> None:
        """Share a container no longer; both sides may find at once that it is not needed."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            del self._numbers[id(entry.value)]

    def drop_unused(self) -> list[int]:
        """Drop every container that nobody but this table holds; their numbers."""
        dropped = []
        for number in list(self._entries):
            entry = self._entries[number]
            if entry.snapshot is not None and _holders(entry) <= self._alone:
                self.drop(number)
                dropped.append(number)
        return dropped

    def changed(self) -> Iterator[tuple[int, Any]]:
        """Containers whose contents the other side does not have yet, and is sent now."""
        for number, entry in list(self._entries.items()):
            if entry.changed():
                yield number, entry.value
                entry.agree()


def _holders(entry: Shared) -> int:
    return sys.getrefcount(entry.value)
