"""Values of exact types as JSON and back: what may cross between the solution and its tests by value.

A packed value is a JSON scalar or a list `[tag, ...]`. Only exact types are packed (an `int` subclass is not an
int), so that nothing with behaviour of its own crosses; what has no entry here crosses as a handle (rpc.py).
Mutable containers are not here either: they are shared (shared.py).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

SCALARS = frozenset({str, bool, float, type(None)})
SMALL_INT = 1 << 62

_UNSAFE_MODULES = {"antigravity", "this", "idlelib", "turtledemo", "test", "lib2to3"}
STDLIB = frozenset(sys.stdlib_module_names) - _UNSAFE_MODULES
KNOWN = STDLIB | {"numpy"}

_MODULES = {
    "complex": "builtins",
    "range": "builtins",
    "slice": "builtins",
    "memoryview": "builtins",
    "Pattern": "re",
    "SimpleNamespace": "types",
    "ZoneInfo": "zoneinfo",
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
    "PurePosixPath": "pathlib",
    "PosixPath": "pathlib",
    "date": "datetime",
    "time": "datetime",
    "datetime": "datetime",
    "timedelta": "datetime",
    "timezone": "datetime",
    "array": "array",
}
"""Types that cross by value -> their modules, imported when one crosses: a small server is forked fast."""

_WITH_FOLD = ("time", "datetime")
_MADE_BY = {"Pattern": "compile"}
"""Types that a function of another name makes."""

_BUILT_IN = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    bytearray,
    tuple,
    list,
    dict,
    set,
    frozenset,
    range,
    slice,
    object,
)
_COLLECTIONS = ("deque", "OrderedDict", "Counter", "defaultdict")
_NAMED = frozenset(
    {
        *(("builtins", kind.__name__) for kind in _BUILT_IN),
        *((module, name) for name, module in _MODULES.items()),
        *(("collections", name) for name in _COLLECTIONS),
        ("types", "NoneType"),
        ("typing", "Any"),
    }
)
"""The types that the tests' side takes from the solution by name: values of these are what they look like."""

_NO_ERRORS = {"unittest", "doctest", "bdb", "pdb"}
"""Modules whose exceptions are not the solution's to raise."""

_BASES = {
    **{kind.__name__: "builtins" for kind in _BUILT_IN if kind not in (bool, range, slice, object)},
    **dict.fromkeys(_COLLECTIONS, "collections"),
    **dict.fromkeys(("date", "datetime", "time", "timedelta"), "datetime"),
    "Decimal": "decimal",
    "Fraction": "fractions",
}
"""Plain types that classes of the solution may derive from, and be compared as."""

_PLAIN: dict[str, Callable[[Any], Any]] = {
    "int": lambda v: int.__int__(v),
    "float": lambda v: float.__float__(v),
    "complex": lambda v: complex(v.real, v.imag),
    "str": lambda v: str.__str__(v),
    "bytes": lambda v: bytes.__getitem__(v, slice(None)),
    "tuple": lambda v: tuple(tuple.__iter__(v)),
    "frozenset": lambda v: frozenset(frozenset.__iter__(v)),
}

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
    "UUID": lambda v: [str(v)],
    "PurePosixPath": lambda v: [str(v)],
    "PosixPath": lambda v: [str(v)],
    "date": lambda v: [v.year, v.month, v.day],
    "time": lambda v: [v.hour, v.minute, v.second, v.microsecond, v.tzinfo, v.fold],
    "datetime": lambda v: [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo, v.fold],
    "timedelta": lambda v: [v.days, v.seconds, v.microseconds],
    "timezone": lambda v: _zone(v),
    "array": lambda v: [v.typecode, v.tolist()],
}


def is_plain(value: Any) -> bool:
    """Whether a value is of a type that crosses as what it is."""
    kind = type(value)
    plain = kind in _BUILT_IN or kind is type(None) or (kind.__module__, kind.__name__) in _NAMED
    return plain or array_parts(value) is not None


def base_of(kind: type) -> str:
    """The name of the plain type that a class derives from, "" if there is none."""
    for each in kind.__mro__[1:]:
        module = _BASES.get(each.__name__)
        if module is not None and vars(sys.modules.get(module, sys)).get(each.__name__) is each:
            return str(each.__name__)
    return ""


def base_named(name: str) -> Any:
    """The plain type of that name.

    Raises:
        KeyError: there is none.
    """
    return getattr(__import__(_BASES[name]), name)


def plain(value: Any, base: str) -> Any:
    """The value of an instance of a class derived from an immutable plain type, as one of exactly that type."""
    return _PLAIN[base](value) if base in _PLAIN else made(base, *_ARGUMENTS[base](value))


def instance_of(kind: Any, base: Any, value: Any) -> Any:
    """An instance of a class derived from a plain type, with this plain value; a container comes empty."""
    name = base.__name__
    if base.__hash__ is None or name not in _ARGUMENTS or name in ("complex", "Decimal"):
        return base.__new__(kind) if base.__hash__ is None else base.__new__(kind, value)
    if name == "Fraction":
        made = object.__new__(kind)
        for slot, part in zip(("_numerator", "_denominator"), _ARGUMENTS[name](value), strict=True):
            object.__setattr__(made, slot, part)
        return made
    args = _ARGUMENTS[name](value)
    return base.__new__(kind, *args[:-1], fold=args[-1]) if name in _WITH_FOLD else base.__new__(kind, *args)


def reduced(value: Any) -> tuple[str, list[Any]] | None:
    """(name of its exact type, arguments that make an equal value); None for a type that does not cross so."""
    kind = type(value)
    module = _MODULES.get(kind.__name__)
    if module is None or vars(sys.modules.get(module, sys)).get(kind.__name__) is not kind:
        return None
    return kind.__name__, _ARGUMENTS[kind.__name__](value)


def made(name: str, *args: Any) -> Any:
    """The value that `reduced` took apart.

    Raises:
        KeyError, TypeError, ValueError: no such type, or not its arguments.
    """
    if name == "SimpleNamespace":
        return types.SimpleNamespace(**args[0])
    make = getattr(__import__(_MODULES[name]), _MADE_BY.get(name, name))
    return make(*args[:-1], fold=args[-1]) if name in _WITH_FOLD else make(*args)


def _zone(value: Any) -> list[Any]:
    offset, name = value.utcoffset(None), value.tzname(None)
    return [offset] if type(value)(offset).tzname(None) == name else [offset, name]


VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


def view_of(kind: str, items: list[Any]) -> Any:
    """A dictionary view with these items.

    Raises:
        ValueError: no such view.
    """
    if kind == "keys":
        return dict.fromkeys(items).keys()
    if kind == "values":
        return dict(enumerate(items)).values()
    if kind == "items":
        return dict(items).items()
    raise ValueError(f"no view {kind!r}")


_KINDS = "biufcSUMm"


def numpy() -> Any:
    """The numpy module if this process has loaded it."""
    return sys.modules.get("numpy")


def array_parts(value: Any) -> list[Any] | None:
    """`[dtype, shape, bytes as latin-1]` of an exact numpy array or scalar of plain numbers; else None."""
    np = numpy()
    if np is None or not (type(value) is np.ndarray or isinstance(value, np.generic)):
        return None
    if value.dtype.kind not in _KINDS or value.dtype.names is not None:
        return None
    return [value.dtype.str, list(value.shape), value.tobytes().decode("latin-1")]


def array_from(dtype: str, shape: list[int], data: str) -> Any:
    """The array that `array_parts` took apart: a copy that may be written to.

    Raises:
        ValueError: the parts do not fit together, or numpy is not installed.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise ValueError("an array without numpy") from error
    kind = np.dtype(str(dtype))
    if kind.kind not in _KINDS or kind.names is not None:
        raise ValueError("an array of objects")
    return np.frombuffer(data.encode("latin-1"), dtype=kind).reshape([int(size) for size in shape]).copy()


_TYPING = frozenset(
    ("List", "Dict", "Set", "FrozenSet", "Tuple", "Type", "Union", "Optional", "Callable", "Iterable", "Iterator")
) | {"Generator", "Sequence", "Mapping", "MutableMapping", "Deque", "DefaultDict", "Literal", "Final", "ClassVar"}
"""Names of `typing` that may stand in annotations that cross."""


def type_parts(value: Any) -> tuple[str, Any, tuple[Any, ...]] | None:
    """(name in `typing` or "", origin, arguments) of a type hint such as `list[int]` or `Optional[str]`."""
    if isinstance(value, types.GenericAlias):
        return "", value.__origin__, value.__args__
    if isinstance(value, types.UnionType):
        return "Union", None, value.__args__
    if isinstance(value, type) or type(value).__module__ != "typing":
        return None
    name, args = getattr(value, "_name", None), getattr(value, "__args__", ())
    if args and getattr(value, "__origin__", None) is sys.modules["typing"].Union:
        name = "Union"
    return (str(name), None, args) if name in _TYPING else None


def type_from(name: Any, origin: Any, *args: Any) -> Any:
    """The type hint that `type_parts` took apart.

    Raises:
        ValueError, TypeError: there is none of that kind.
    """
    if name != "Literal" and any(type(each) is str for each in args):
        raise ValueError("a type hint that is a text")
    if name == "" and isinstance(origin, type):
        return types.GenericAlias(origin, args)
    if name not in _TYPING:
        raise ValueError(f"no type hint {name!r}")
    import typing

    generic: Any = getattr(typing, name)
    if not args:
        return generic
    return generic[list(args[:-1]), args[-1]] if name == "Callable" else generic[args]


def public_name(value: Any) -> tuple[str, str] | None:
    """(module, name) of a function or class of the standard library or numpy, if it can be found by them."""
    if value is type(None):
        return "types", "NoneType"
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(name, str) or not isinstance(module, str):
        return None
    if module.partition(".")[0] not in KNOWN:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


_OPERATORS = (
    "add sub mul truediv floordiv mod pow neg pos abs and_ or_ xor not_ lt le gt ge eq ne concat contains getitem "
    "invert lshift rshift matmul"
)
_FUNCTIONS = frozenset(
    {
        *(("_operator", name) for name in _OPERATORS.split()),
        *(("builtins", name) for name in ("abs", "all", "any", "len", "max", "min", "round", "sorted", "sum")),
    }
)
"""Functions of their arguments alone that are taken by name: tests ask whether they are the ones of Python."""


def handed_out(module: str, name: str, value: Any) -> bool:
    """Whether the tests' side takes a type of the standard library or numpy from the solution by its name.

    Types of plain values, exceptions and a few functions; no types whose objects have a behaviour of their own.
    """
    if (module, name) in _NAMED or (module, name) in _FUNCTIONS or value is NotImplemented or value is Ellipsis:
        return True
    if not isinstance(value, type):
        return False
    np = numpy()
    if np is not None and module.partition(".")[0] == "numpy":
        return value is np.ndarray or issubclass(value, (np.generic, Exception))
    return issubclass(value, BaseException) and module.partition(".")[0] in STDLIB - _NO_ERRORS


def by_name(module: str, name: str, wary: bool) -> Any:
    """A function or class of the standard library; where `wary`, only one that is handed out.

    Raises:
        ValueError: there is none of that name, or it is none to hand out.
    """
    found = getattr(named_module(module), name, None)
    if found is None or (wary and not handed_out(module, name, found)):
        raise ValueError(f"{module}.{name} is not handed out")
    return found


def named_module(name: str) -> Any:
    """A module of the standard library (or numpy, where it is loaded).

    Raises:
        ValueError: it is none of them.
    """
    if name.partition(".")[0] not in STDLIB and not (name.partition(".")[0] == "numpy" and name in sys.modules):
        raise ValueError(f"{name} is not of the standard library")
    try:
        __import__(name)
    except ImportError as error:
        raise ValueError(f"no module {name}") from error
    return sys.modules[name]


TEXT_LIMIT = 300


def describe(error: BaseException) -> str:
    """One line about an exception."""
    try:
        return f"{type(error).__name__}: {error}"[:TEXT_LIMIT]
    except Exception:
        return type(error).__name__
