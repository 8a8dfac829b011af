"""Values of exact types as JSON and back: what may cross between the solution and its tests by value.

A packed value is a JSON scalar or a list `[tag, ...]`. Only exact types are packed (an `int` subclass is not an
int), so that nothing with behaviour of its own crosses; what has no entry here crosses as a handle (wire.py).
Mutable containers are not here either: they are shared (shared.py).
"""

from __future__ import annotations

import array
import datetime
import decimal
import fractions
import pathlib
import sys
import uuid
from collections.abc import Callable
from typing import Any

Pack = Callable[[Any], Any]

SCALARS = frozenset({str, bool, float, type(None)})
SMALL_INT = 1 << 62

_UNSAFE_BUILTINS = {"eval", "exec", "compile", "open", "input", "__import__", "breakpoint", "exit", "quit", "help"}
_UNSAFE_MODULES = {"antigravity", "this", "idlelib", "turtledemo", "test", "lib2to3"}
STDLIB = frozenset(sys.stdlib_module_names) - _UNSAFE_MODULES

FACTORIES: dict[str, Callable[..., Any]] = {
    "complex": complex,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "UUID": uuid.UUID,
    "PurePosixPath": pathlib.PurePosixPath,
    "PosixPath": pathlib.PosixPath,
    "date": datetime.date,
    "time": datetime.time,
    "datetime": datetime.datetime,
    "timedelta": datetime.timedelta,
    "timezone": datetime.timezone,
    "range": range,
    "slice": slice,
    "array": array.array,
}

REDUCERS: dict[type, Callable[[Any], tuple[str, list[Any]]]] = {
    complex: lambda v: ("complex", [v.real, v.imag]),
    decimal.Decimal: lambda v: ("Decimal", [str(v)]),
    fractions.Fraction: lambda v: ("Fraction", [v.numerator, v.denominator]),
    uuid.UUID: lambda v: ("UUID", [str(v)]),
    pathlib.PurePosixPath: lambda v: ("PurePosixPath", [str(v)]),
    pathlib.PosixPath: lambda v: ("PosixPath", [str(v)]),
    datetime.date: lambda v: ("date", [v.year, v.month, v.day]),
    datetime.time: lambda v: ("time", [v.hour, v.minute, v.second, v.microsecond, v.tzinfo]),
    datetime.datetime: lambda v: (
        "datetime",
        [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo],
    ),
    datetime.timedelta: lambda v: ("timedelta", [v.days, v.seconds, v.microseconds]),
    datetime.timezone: lambda v: ("timezone", [v.utcoffset(None)]),
    range: lambda v: ("range", [v.start, v.stop, v.step]),
    slice: lambda v: ("slice", [v.start, v.stop, v.step]),
    array.array: lambda v: ("array", [v.typecode, v.tolist()]),
}
"""Exact type -> (name in FACTORIES, arguments that make an equal value)."""

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


def numpy() -> Any:
    """The numpy module if this process has loaded it."""
    return sys.modules.get("numpy")


def array_parts(value: Any) -> list[Any] | None:
    """`[dtype, shape, bytes as latin-1]` of an exact numpy array or scalar of plain numbers; else None."""
    np = numpy()
    if np is None or not (type(value) is np.ndarray or isinstance(value, np.generic)):
        return None
    if value.dtype.kind not in "biufcSUMm" or value.dtype.names is not None:
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
    if kind.hasobject or kind.names is not None:
        raise ValueError("an array of objects")
    return np.frombuffer(data.encode("latin-1"), dtype=kind).reshape([int(size) for size in shape]).copy()


def public_name(value: Any) -> tuple[str, str] | None:
    """(module, name) of a function or class of the standard library or numpy, if it can be found by them."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(name, str) or not isinstance(module, str):
        return None
    if module.partition(".")[0] not in STDLIB | {"numpy"}:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value else None


def handed_out(module: str, name: str, value: Any) -> bool:
    """Whether the tests' side takes a function or class of the standard library from the solution by its name."""
    if module == "builtins" and name in _UNSAFE_BUILTINS:
        return False
    return isinstance(value, type) or module in _PURE or value is NotImplemented or value is Ellipsis


def by_name(module: str, name: str, wary: bool) -> Any:
    """A function or class of the standard library; where `wary`, only a harmless one.

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


_PURE = {"builtins", "math", "cmath", "operator", "_operator", "statistics", "string", "functools", "_functools"}
