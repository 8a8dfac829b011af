"""The operations that one side can request on an object of the other."""

from __future__ import annotations

import collections
import collections.abc
import functools
import math
import operator
import os
import types
from collections.abc import Callable
from typing import Any

from codeverdict.inside import values

_STEP_SECONDS = 0.002
_NUMERIC = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow"),
    *("lshift", "rshift", "and_", "or_", "xor"),
)

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    f"__{name}__": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_BINARY: dict[str, Callable[..., Any]] = {name.strip("_"): getattr(operator, name) for name in _NUMERIC}
_BINARY = {**_BINARY, "pow": pow, "divmod": divmod}
ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": do for name, do in _BINARY.items()},
    **{f"__r{name}__": lambda one, other, do=do: do(other, one) for name, do in _BINARY.items()},
    **{f"__i{name.strip('_')}__": getattr(operator, f"i{name.strip('_')}") for name in _NUMERIC},
}
MEASURES = frozenset(
    f"__{prefix}{name}__"
    for name in ("sub", "truediv", "floordiv", "mod", "divmod", "xor")
    for prefix in ("", "r", "i")
)
"""Operators that measure one value against another; sums and products reveal nothing."""
_OF_SCALARS = "__abs__ __bool__ __len__ __int__ __float__ __index__ __round__ __str__ __neg__ __iter__"
SCALARS = frozenset(_OF_SCALARS.split())
"""Special methods that turn an object into a plain value."""
AWAITED = frozenset({"__anext__", "__aenter__", "__aexit__"})


def _special(name: str) -> Callable[..., Any]:
    def call(target: Any, *args: Any) -> Any:
        method = _method(type(target), name)
        bind = getattr(type(method), "__get__", None)  # a mock in place of a method has none
        return (bind(method, target) if bind else method)(*args)

    return call


OPERATIONS: dict[str, Callable[..., Any]] = {
    **COMPARISONS,
    **ARITHMETIC,
    **{
        f"__{function.__name__}__": function
        for function in (len, iter, next, reversed, bool, hash, str, repr, bytes, abs)
    },
    **{f"__{function.__name__}__": function for function in (int, float, complex, round, format, aiter)},
    **{f"__{name}__": getattr(operator, name) for name in ("neg", "pos", "invert", "index", "getitem", "setitem")},
    **{f"__{name}__": getattr(math, name) for name in ("trunc", "floor", "ceil")},
    **{name: _special(name) for name in ("__enter__", "__exit__", "__length_hint__")},
    "__delitem__": operator.delitem,
    "__contains__": operator.contains,
    "__fspath__": os.fspath,
    "__call__": lambda target, *args: target(*args),
    "__copy__": lambda target: __import__("copy").copy(target),
    "__deepcopy__": lambda target, memo: __import__("copy").deepcopy(target),
    **{name: _special(name) for name in AWAITED},
}


def _get(target: Any, name: str) -> Any:
    value = getattr(target, name)
    if name == "__dict__":
        return {
            key: value for key, value in value.items() if key not in ("__builtins__", "__dict__", "__weakref__")
        }
    return dict(value) if name in ("__members__", "__annotations__") else value


def _plain(target: Any) -> tuple[bool, Any]:
    """Return how an object compares with plain values, without revealing the other value.

    (True, value): it compares as this plain value. (False, None): it differs from every plain
    value. (False, names of types): it has its own `__eq__` and differs from values of these types.
    If its `__eq__` raises for every type, the exception is raised.
    """
    kind = type(target)
    base: Any = next(parent for parent in kind.__mro__ if "__eq__" in vars(parent))
    equal = vars(base)["__eq__"]
    if base in (collections.UserList, collections.UserString):
        return True, target.data
    if base in (collections.abc.Mapping, types.MappingProxyType):
        return True, dict(target.items())
    if base is collections.abc.Set:
        return True, set(target)
    if base.__module__ in _HOMES and (exact := values.as_exact_type(target, base)) is not None:
        return True, exact
    generated = getattr(getattr(equal, "__code__", None), "co_filename", "") == "<string>"
    if base is object or (generated and hasattr(kind, "__dataclass_fields__")):
        return False, None
    kinds: tuple[Any, ...] = (*values.PLAIN, bool, type(None))
    answers = [_answer(equal, target, kind()) for kind in kinds]
    if all(isinstance(answer, Exception) for answer in answers):
        raise answers[0]
    return False, [
        empty_kind.__name__ for empty_kind, answer in zip(kinds, answers, strict=True) if answer is NotImplemented
    ]


def _answer(equal: Any, target: Any, empty: Any) -> Any:
    """Return the result of an `__eq__`, or the exception that it raises."""
    try:
        return equal(target, empty)
    except Exception as error:  # the program's `__eq__` may raise anything, which `_plain` handles
        return error


@functools.cache
def base_of(kind: Any) -> Any:
    """Return the plain type that a class derives from if it overrides only text and arithmetic.

    Instances of such classes (enumeration members, named tuples) are plain values on the other
    side too. None for other classes.
    """
    order = kind.__mro__
    base = next((parent for parent in order if parent in BASES), None)
    above = order[: order.index(base)] if base is not None else ()
    altered = {name for parent in above for name in vars(parent) if hasattr(base, name)}
    return base if altered <= ALTERED else None


def _method(kind: type, name: str) -> Any:
    return next((vars(parent)[name] for parent in kind.__mro__ if name in vars(parent)), None)


BASES = (int, float, complex, str, bytes, tuple)
_OF_CLASSES = "__new__ __init__ __doc__ __module__ __dict__ __dir__ __getnewargs__ __reduce_ex__"
ALTERED = frozenset([*_OF_CLASSES.split(), "__repr__", "__str__", "__format__", "__hash__", *ARITHMETIC])
_HOMES = {"builtins", "collections", "datetime", "decimal", "fractions"}


@functools.cache
def _shared_loop() -> Any:
    """Return the event loop for all awaited objects, which must end in the loop they started in."""
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _start(target: Any, name: str, *args: Any) -> Any:
    """Start a task that awaits an object or the result of its special method."""
    import asyncio

    async def awaited() -> Any:
        return await (OPERATIONS[name](target, *args) if name else target)

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = _shared_loop()
    return loop.create_task(awaited())


def _step(task: Any) -> bool:
    """Run a task for a moment, and return True if it has ended."""
    import asyncio

    loop = task.get_loop()
    if not task.done() and not loop.is_running():
        loop.run_until_complete(asyncio.wait({task}, timeout=_STEP_SECONDS))
    return bool(task.done())


_PERFORM: dict[str, Callable[..., Any]] = {
    **OPERATIONS,
    "__call__": lambda target, *args, **kwargs: target(*args, **kwargs),
    **{"get": _get, "set": setattr, "del": delattr, "dir": dir, "plain": _plain, "start": _start, "turn": _step},
    "isinstance": lambda target, kind: (issubclass if isinstance(target, type) else isinstance)(target, kind),
    "holds": lambda target, value: isinstance(value, target),
    "cancel": lambda task: bool(task.cancel()),
    **dict.fromkeys(("result", "item"), lambda task: task.result()),
}


def perform(do: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Perform an operation of the other side on a local object.

    `do` is a special method, a key of `_PERFORM`, or the full name of a function of the standard
    library that inspects the object.
    """
    module, _, function = do.rpartition(".")
    return (getattr(__import__(module), function) if module else _PERFORM[do])(target, *args, **kwargs)


def special_methods(kind: type) -> list[str]:
    """Return the special methods of a class that are forwarded.

    Methods of `object`, of plain types and of Python's exceptions are the same on both sides.
    """
    errors = (
        parent for parent in kind.__mro__ if parent.__module__ == "builtins" and issubclass(parent, BaseException)
    )
    above = base_of(kind) or next(errors, object)
    names = [name for name in OPERATIONS if _method(kind, name) is not _method(above, name)]
    names += ["__await__"] if hasattr(kind, "__await__") else []
    return [*names, "__get__"] if kind is types.FunctionType else names
