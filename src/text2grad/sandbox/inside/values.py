"""Values of exact types as JSON and back: what may cross between the solution and its tests by value.

A packed value is a JSON scalar or a list `[tag, ...]`. Only exact types are packed (an `int` subclass is not an
int), so that nothing with behaviour of its own crosses; what has no entry here crosses as a handle (wire.py).
Mutable containers are not here either: they are shared (shared.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Pack = Callable[[Any], Any]

SCALARS = frozenset({str, bool, float, type(None)})
SMALL_INT = 1 << 62

_UNSAFE_BUILTINS = {"eval", "exec", "compile", "open", "input", "__import__", "breakpoint", "exit", "quit", "help"}
_UNSAFE_MODULES = {"antigravity", "this", "idlelib", "turtledemo", "test", "lib2to3"}
STDLIB = frozenset(sys.stdlib_module_names) - _UNSAFE_MODULES
KNOWN = STDLIB | {"numpy"}

_MODULES = {
    "complex": "builtins",
    "range": "builtins",
    "slice": "builtins",
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

_ARGUMENTS: dict[str, Callable[[Any], list[Any]]] = {
    "complex": lambda v: [v.real, v.imag],
    "range": lambda v: [v.start, v.stop, v.step],
    "slice": lambda v: [v.start, v.stop, v.step],
    "Decimal": lambda v: [str(v)],
    "Fraction": lambda v: [v.numerator, v.denominator],
    "UUID": lambda v: [str(v)],
    "PurePosixPath": lambda v: [str(v)],
    "PosixPath": lambda v: [str(v)],
    "date": lambda v: [v.year, v.month, v.day],
    "time": lambda v: [v.hour, v.minute, v.second, v.microsecond, v.tzinfo],
    "datetime": lambda v: [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo],
    "timedelta": lambda v: [v.days, v.seconds, v.microseconds],
    "timezone": lambda v: [v.utcoffset(None)],
    "array": lambda v: [v.typecode, v.tolist()],
}


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
    return getattr(__import__(_MODULES[name]), name)(*args)


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
    if module.partition(".")[0] not in KNOWN:
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
