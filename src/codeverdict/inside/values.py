"""Convert values of exact types to JSON and back, to pass them between a solution and its tests.

A packed value is a JSON scalar or a list `[tag, ...]`. Only exact types are packed (an `int`
subclass is not an int), so that nothing with custom behaviour crosses. Objects are in peer.py.

Both sides hold a mutable container under one number, each with a copy and a shallow snapshot of it.
Before a message is sent, containers that changed since the last one are sent again, so
`solution.sort_in_place(xs)` changes the test's `xs`. A container that only the table still holds is
dropped on both sides: what a solution returns and does not keep is a plain copy.
"""

from __future__ import annotations

import array
import builtins
import collections
import functools
import operator
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from codeverdict.inside.kernel import system

SCALARS = frozenset({str, bool, float, type(None)})
SMALL_INT = 1 << 62
TEXT_LIMIT = 300
SURROGATE = re.compile("[\ud800-\udfff]")

_UNSAFE_MODULES = {"antigravity", "this", "idlelib", "turtledemo", "test", "lib2to3"}
STDLIB = frozenset(sys.stdlib_module_names) - _UNSAFE_MODULES
_NO_ERRORS = {"unittest", "doctest", "bdb", "pdb"}
"""Modules whose exceptions a solution may not raise."""

_MODULES = {
    **dict.fromkeys(("complex", "range", "slice", "memoryview"), "builtins"),
    **dict.fromkeys(("date", "time", "datetime", "timedelta", "timezone"), "datetime"),
    **dict.fromkeys(("PurePosixPath", "PosixPath"), "pathlib"),
    **dict.fromkeys(("IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network"), "ipaddress"),
    "Pattern": "re",
    "SimpleNamespace": "types",
    "ZoneInfo": "zoneinfo",
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
}
"""Types that cross by value -> their modules, imported when needed to keep the server small."""

_WITH_FOLD = ("time", "datetime")
_CONSTRUCTORS = {"Pattern": "compile"}
"""Types that are created by a function of another name."""

_ARGUMENTS: dict[str, Callable[[Any], list[Any]]] = {
    "complex": lambda v: [v.real, v.imag],
    "range": lambda v: [v.start, v.stop, v.step],
    "slice": lambda v: [v.start, v.stop, v.step],
    "memoryview": lambda v: [v.tobytes()],
    "Pattern": lambda v: [v.pattern, v.flags],
    "SimpleNamespace": lambda v: [dict(vars(v))],
    "ZoneInfo": lambda v: [v.key],
    "Decimal": lambda v: [sys.modules["decimal"].Decimal.__str__(v)],
    "Fraction": lambda v: [v.numerator, v.denominator],
    **dict.fromkeys(("UUID", "PurePosixPath", "PosixPath"), lambda v: [str(v)]),
    **dict.fromkeys(("IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network"), lambda v: [str(v)]),
    "date": lambda v: [v.year, v.month, v.day],
    "time": lambda v: [v.hour, v.minute, v.second, v.microsecond, v.tzinfo, v.fold],
    "datetime": lambda v: [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo, v.fold],
    "timedelta": lambda v: [v.days, v.seconds, v.microseconds],
    "timezone": lambda v: _zone(v),
}

_COLLECTIONS = {("collections", name) for name in ("deque", "OrderedDict", "Counter", "defaultdict")}

IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset)
PLAIN = (*IMMUTABLE, bytearray, list, dict, set)
_DICTS: tuple[Any, ...] = (dict, collections.OrderedDict, collections.Counter)
_ITERABLES: tuple[Any, ...] = (frozenset, list, set, bytearray, collections.deque)


VIEWS: dict[type, tuple[str, Callable[[list[Any]], Any]]] = {
    type({}.keys()): ("keys", lambda items: dict.fromkeys(items).keys()),
    type({}.values()): ("values", lambda items: dict(enumerate(items)).values()),
    type({}.items()): ("items", lambda items: dict(items).items()),
}
"""Types of dictionary views -> their names, and functions that create one from items."""


def reduce_value(value: Any) -> tuple[str, list[Any]] | None:
    """Return the type name and the arguments that rebuild a value; None for unlisted types."""
    kind = type(value)
    module = _MODULES.get(kind.__name__)
    if module is None or vars(sys.modules.get(module, sys)).get(kind.__name__) is not kind:
        return None
    return kind.__name__, _ARGUMENTS[kind.__name__](value)


def rebuild(name: str, *args: Any) -> Any:
    """Rebuild a value from the result of `reduce_value`.

    Raises:
        KeyError, TypeError, ValueError: the type or its arguments are invalid.
    """
    if name == "SimpleNamespace":
        return types.SimpleNamespace(**args[0])
    make = getattr(__import__(_MODULES[name]), _CONSTRUCTORS.get(name, name))
    return make(*args[:-1], fold=args[-1]) if name in _WITH_FOLD else make(*args)


def _zone(value: Any) -> list[Any]:
    offset, name = value.utcoffset(None), value.tzname(None)
    return [offset] if type(value)(offset).tzname(None) == name else [offset, name]


def as_exact_type(value: Any, kind: Any) -> Any:
    """Convert an instance of a subclass of a plain type to exactly that type; None for others."""
    if kind in _DICTS:
        return dict(dict.items(value))
    if kind in _ITERABLES:
        return kind(kind.__iter__(value))
    if kind in IMMUTABLE:
        return kind(*kind.__getnewargs__(value))
    return rebuild(kind.__name__, *_ARGUMENTS[kind.__name__](value)) if kind.__name__ in _ARGUMENTS else None


_KINDS = "biufcSUMm"


def numpy() -> Any:
    """Return the numpy module if this process has loaded it, else None."""
    return sys.modules.get("numpy")


def array_parts(value: Any) -> list[Any] | None:
    """Return `[dtype, shape, bytes as latin-1]` of a numpy array or number, else None."""
    np = numpy()
    if np is None or not (type(value) is np.ndarray or isinstance(value, np.generic)):
        return None
    if value.dtype.kind not in _KINDS or value.dtype.names is not None:
        return None
    return [value.dtype.str, list(value.shape), value.tobytes().decode("latin-1")]


def is_empty_array(value: Any) -> bool:
    """Return True for a numpy array without elements."""
    return numpy() is not None and type(value) is numpy().ndarray and value.size == 0


def array_from(dtype: str, shape: list[int], data: str) -> Any:
    """Rebuild a writable array from the result of `array_parts`.

    Raises:
        ValueError: the parts are inconsistent, or numpy is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise ValueError("an array without numpy") from error
    kind = np.dtype(str(dtype))
    if kind.kind not in _KINDS or kind.names is not None:
        raise ValueError("an array of objects")
    return np.frombuffer(data.encode("latin-1"), dtype=kind).reshape([int(size) for size in shape]).copy()


_MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
KINDS: dict[str, Any] = {
    **{"L": list, "D": dict, "S": set, "Q": collections.deque, "O": collections.OrderedDict},
    **{"K": collections.Counter, "E": collections.defaultdict, "Y": bytearray, "G": array.array},
}
_TAGS = {kind: tag for tag, kind in KINDS.items()}


def tag_of(value: Any) -> str:
    """Return the tag of a container type that is shared; empty for other values."""
    tag = _TAGS.get(type(value), "")
    if not tag and numpy() is not None and type(value) is numpy().ndarray:
        return "A" if array_parts(value) is not None else ""
    return tag


def contents(value: Any, pack: Callable[[Any], Any]) -> list[Any]:
    """Return the packed elements of a container, or its keys and values alternately."""
    if type(value) in _MAPPINGS:
        return [pack(part) for item in value.items() for part in item]
    if type(value) is bytearray:
        return [bytes(value).decode("latin-1")]
    return array_parts(value) or [pack(item) for item in value]


def extra(value: Any, pack: Callable[[Any], Any]) -> Any:
    """Return a deque's maximum length, a defaultdict's factory or an array's type code."""
    if isinstance(value, collections.deque):
        return value.maxlen
    if isinstance(value, array.array):
        return value.typecode
    return pack(value.default_factory) if isinstance(value, collections.defaultdict) else None


def empty(tag: str, made_with: Any, packed: list[Any]) -> Any:
    """Create an empty container, or a filled numpy array.

    Raises:
        KeyError: there is no such container.
    """
    if tag == "A":
        return array_from(*packed)
    kind = KINDS[tag]
    if tag == "Q":
        return kind(maxlen=made_with)
    return kind(made_with) if tag in "EG" else kind()


def fill(value: Any, packed: list[Any], unpack: Callable[[Any], Any]) -> None:
    """Replace the contents of a container in place."""
    if array_parts(value) is not None:
        value[...] = array_from(*packed)
    elif type(value) is bytearray:
        value[:] = packed[0].encode("latin-1")
    elif type(value) is array.array:
        value[:] = array.array(value.typecode, [unpack(item) for item in packed])
    else:
        items = [unpack(item) for item in packed]
        value.clear()
        if type(value) in _MAPPINGS:
            for key, item in zip(items[::2], items[1::2], strict=True):
                value[key] = item
        else:
            value.update(items) if type(value) is set else value.extend(items)


class Shared:
    """A container and a snapshot of its contents when both sides last agreed."""

    __slots__ = ("snapshot", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.snapshot: Any = None

    def agree(self) -> None:
        """Record that both sides now hold the same contents."""
        self.snapshot = self._now()

    def changed(self) -> bool:
        """Return True if the contents have changed since then."""
        if self.snapshot is None:  # it is still being filled, which may call the other side
            return False
        now = self.value if type(self.value) is list else self._now()
        return not system.same_items(now, self.snapshot) if type(now) is list else bool(now != self.snapshot)

    def _now(self) -> Any:
        kind = type(self.value)
        if kind in _MAPPINGS:
            return [*self.value.keys(), *self.value.values()]
        if kind in (bytearray, array.array):
            return bytes(self.value)
        if numpy() is not None and kind is numpy().ndarray:
            return self.value.dtype.str, self.value.shape, self.value.tobytes()
        return list(self.value)


class Table:
    """The shared containers by number; one side assigns even numbers, the other odd ones."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._entries: dict[int, Shared] = {}
        self._numbers: dict[int, int] = {}
        self._alone = _holders(Shared([]))

    def number_of(self, value: Any) -> int | None:
        """Return the number of a container, or None if it is not shared yet."""
        return self._numbers.get(id(value))

    def add(self, value: Any, number: int | None = None) -> int:
        """Share a container under the other side's number, or under a new one.

        Raises:
            ValueError: the number is in use, or the other side may not assign it.
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
        """Stop sharing a container; both sides may do so at the same time."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            del self._numbers[id(entry.value)]

    def drop_unused(self) -> list[int]:
        """Drop every container that only this table still holds, and return their numbers."""
        dropped = []
        for number in list(self._entries):
            entry = self._entries[number]
            if entry.snapshot is not None and _holders(entry) <= self._alone:
                self.drop(number)
                dropped.append(number)
        return dropped

    def changed(self) -> Iterator[tuple[int, Any]]:
        """Yield the changed containers, which the caller sends to the other side."""
        for number, entry in list(self._entries.items()):
            if entry.changed():
                yield number, entry.value
                entry.agree()


def _holders(entry: Shared) -> int:
    return sys.getrefcount(entry.value)


def public_name(value: Any) -> tuple[str, str] | None:
    """Return (module, name) of a type, function or enum member of Python or numpy, or None."""
    kind = type(value)
    if isinstance(value, type):
        module, names = value.__module__, [value.__qualname__]
        if module == "builtins" and value.__name__ not in vars(builtins):
            module, names = "types", [name for name, member in vars(types).items() if member is value]
    elif hasattr(kind, "__members__") and kind.__module__ not in ("solution", "tests"):
        module, names = kind.__module__, [f"{kind.__qualname__}.{value._name_}"]
    elif kind in _FUNCTION_TYPES or kind.__module__ == "numpy":
        owner = getattr(value, "__objclass__", getattr(value, "__self__", None))
        owner = owner if isinstance(owner, type) else type(owner)
        module = getattr(value, "__module__", None) or (kind if kind.__module__ == "numpy" else owner).__module__
        names = [getattr(value, "__qualname__", ""), getattr(value, "__name__", "")]
    else:
        return None
    if not isinstance(module, str) or module.partition(".")[0] not in (*STDLIB, "numpy"):
        return None
    return next(((module, str(name)) for name in names if _is_same_object(_named(module, str(name)), value)), None)


_FUNCTION_TYPES = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType),
    *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)


def _is_same_object(one: Any, other: Any) -> bool:
    """Return True for the same object, or for the same method bound twice to one object."""
    return one is other or (
        type(one) is type(other)
        and isinstance(one, types.MethodType | types.BuiltinMethodType)
        and one.__self__ is other.__self__
        and one.__name__ == other.__name__
    )


def recipe(value: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Return (callable, arguments, keywords) that rebuild a value, or None.

    Supports partials, objects of the module `operator`, and the types of dictionary views.
    """
    if type(value) is functools.partial:
        return functools.partial, (value.func, *value.args), value.keywords
    if isinstance(value, type) and value in VIEWS:
        return type, (VIEWS[value][1]([]),), {}
    return (*value.__reduce__(), {}) if type(value).__module__ == "operator" else None


_FUNCTIONS = frozenset(
    {
        *(("_operator", name) for name in vars(operator)),
        *(("builtins", name) for name in ("abs", "all", "any", "len", "max", "min", "round", "sorted", "sum")),
    }
)
"""Pure functions that cross by name, so that tests can check that they are Python's."""


def is_pure(value: Any) -> bool:
    """Return True for a function of Python that only computes with its arguments."""
    public, name = public_name(value) or ("", ""), getattr(value, "__name__", "_")
    if getattr(value, "__objclass__", None) in PLAIN:
        return not name.startswith(("_", "format"))  # a format string can read any attribute
    return public in _FUNCTIONS or public[0] == "math"


def _named(module: str, name: str) -> Any:
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def by_name(module: str, name: str, wary: bool) -> Any:
    """Return the object with a public name; if `wary`, only what `is_exportable` allows.

    Raises:
        ValueError: there is no such name, or it is not allowed.
    """
    if module.partition(".")[0] not in STDLIB and not (
        module.partition(".")[0] == "numpy" and module in sys.modules
    ):
        raise ValueError(f"{module} is not of the standard library")
    __import__(module)
    value = _named(module, name)
    if value is None or public_name(value) is None or (wary and not is_exportable(module, value)):
        raise ValueError(f"{module}.{name} is not handed out")
    return value


def is_exportable(module: str, value: Any) -> bool:
    """Return True if the tests accept this by name: plain types, exceptions and enumerations."""
    if not isinstance(value, type):
        return hasattr(type(value), "__members__") or public_name(value) in _FUNCTIONS
    if issubclass(value, BaseException):
        return module.partition(".")[0] not in _NO_ERRORS
    if value in (*PLAIN, bool, object, type(None)) or hasattr(value, "__members__"):
        return True
    if module == "numpy":
        return value is numpy().ndarray or issubclass(value, numpy().generic)
    return _MODULES.get(value.__name__) == module != "types" or (module, value.__name__) in _COLLECTIONS


def describe(error: BaseException) -> str:
    """Return an exception as one line."""
    try:
        return f"{type(error).__name__}: {error}"[:TEXT_LIMIT]
    except Exception:  # the program may have defined its `__str__`
        return type(error).__name__
