"""Mutable containers that both sides hold: one number each, and changes sent along with every message.

Each side keeps its own copy and a shallow snapshot of it. Before a message leaves, containers that changed since
the last one are sent again, so `solution.sort_in_place(xs)` changes the test's `xs`, and `stack.items.append(1)`
in a test changes the solution's list. A container that only this table still holds is dropped on both sides.
"""

from __future__ import annotations

import collections
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from codeverdict.inside import values

CONTAINERS: dict[type, str] = {
    list: "L",
    dict: "D",
    set: "S",
    collections.deque: "Q",
    collections.OrderedDict: "O",
    collections.Counter: "K",
    collections.defaultdict: "E",
    bytearray: "Y",
}
KINDS = {tag: kind for kind, tag in CONTAINERS.items()}
MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)


def tag_of(value: Any) -> str:
    """The tag of a container that is shared, "" for any other value."""
    tag = CONTAINERS.get(type(value), "")
    if not tag and values.numpy() is not None and type(value) is values.numpy().ndarray:
        return "A" if values.array_parts(value) is not None else ""
    return tag


def base_of(value: Any) -> Any:
    """The container type that a value is an instance of, exactly or by a class derived from it."""
    kind = type(value)
    return kind if kind in CONTAINERS else next((base for base in kind.__mro__ if base in CONTAINERS), kind)


def contents(value: Any, pack: Callable[[Any], Any]) -> list[Any]:
    """What is in a container, packed: elements, or keys and values in turn."""
    base = base_of(value)
    if base in MAPPINGS:
        return [pack(part) for item in base.items(value) for part in item]
    if base is bytearray:
        return [bytes(value).decode("latin-1")]
    if (parts := values.array_parts(value)) is not None:
        return parts
    return [pack(item) for item in base.__iter__(value)]


def extra(value: Any, pack: Callable[[Any], Any]) -> Any:
    """What a container was made with: a deque's length, whether a defaultdict has a factory."""
    if isinstance(value, collections.deque):
        return value.maxlen
    return pack(value.default_factory) if isinstance(value, collections.defaultdict) else None


def empty(tag: str, made_with: Any, packed: list[Any]) -> Any:
    """A container to be filled; an array comes filled.

    Raises:
        ValueError: no such container.
    """
    if tag == "A":
        return values.array_from(*packed)
    if tag not in KINDS:
        raise ValueError(f"no container {tag!r}")
    kind: Any = KINDS[tag]
    if tag == "Q":
        return kind(maxlen=made_with)
    return kind(made_with) if tag == "E" else kind()


def prepare(value: Any, tag: str, made_with: Any) -> None:
    """Give an instance of a class derived from a container what it was made with (`extra`)."""
    if tag == "E":
        vars(collections.defaultdict)["default_factory"].__set__(value, made_with)
    elif tag == "Q":
        collections.deque.__init__(value, (), made_with)


def fill(value: Any, packed: list[Any], unpack: Callable[[Any], Any]) -> None:
    """Give a container these contents, in place."""
    base = base_of(value)
    if values.array_parts(value) is not None:
        value[...] = values.array_from(*packed)
        return
    if base is bytearray:
        value[:] = packed[0].encode("latin-1")
        return
    items = [unpack(item) for item in packed]
    base.clear(value)
    if base in MAPPINGS:
        for key, item in zip(items[::2], items[1::2], strict=True):
            base.__setitem__(value, key, item)
    elif base is set:
        base.update(value, items)
    else:
        base.extend(value, items)


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
        if isinstance(now, tuple):
            same = len(now) == len(self.snapshot) and all(map(operator.is_, now, self.snapshot))
            return not same and not (
                isinstance(self.value, set) and set(map(id, now)) == set(map(id, self.snapshot))
            )
        return bool(now != self.snapshot)

    def _now(self) -> Any:
        base = base_of(self.value)
        if base in MAPPINGS:
            return tuple(part for item in base.items(self.value) for part in item)
        if base is bytearray:
            return bytes(self.value)
        return values.array_parts(self.value) or tuple(base.__iter__(self.value))


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

    def changed(self) -> Iterator[tuple[int, Shared]]:
        """Containers whose contents the other side does not have yet."""
        for number, entry in list(self._entries.items()):
            if entry.changed():
                yield number, entry


def _holders(entry: Shared) -> int:
    return sys.getrefcount(entry.value)
