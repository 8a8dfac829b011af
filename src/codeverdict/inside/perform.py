"""What one side may have the other do to an object: the special methods that are passed on, and
how."""

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
"""Operators by which a value is measured against another; of a sum or a product nothing can be read
off."""
_OF_SCALARS = "__abs__ __bool__ __len__ __int__ __float__ __index__ __round__ __str__ __neg__ __iter__"
SCALARS = frozenset(_OF_SCALARS.split())
"""What makes a plain value of an object."""
AWAITED = frozenset({"__anext__", "__aenter__", "__aexit__"})


def _special(name: str) -> Callable[..., Any]:
    def call(target: Any, *args: Any) -> Any:
        method = _method(type(target), name)
        bind = getattr(type(method), "__get__", None)  # a mock in the place of a method has none
        return (bind(method, target) if bind else method)(*args)

    return call


OPERATIONS: dict[str, Callable[..., Any]] = {
    **COMPARISONS,
    **ARITHMETIC,
    **{f"__{each.__name__}__": each for each in (len, iter, next, reversed, bool, hash, str, repr, bytes, abs)},
    **{f"__{each.__name__}__": each for each in (int, float, complex, round, format, aiter)},
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
    found = getattr(target, name)
    if name == "__dict__":
        return {
            key: value for key, value in found.items() if key not in ("__builtins__", "__dict__", "__weakref__")
        }
    return dict(found) if name in ("__members__", "__annotations__") else found


def _plain(target: Any) -> tuple[bool, Any]:
    """(True, the plain value an object is compared as); (False, None) if it differs from every
    plain value; and (False, names of types) of which it knows no value, if it has a comparison of
    its own: nobody tells it which of them it is compared with. One that raises with a value of any
    type raises."""
    kind = type(target)
    base: Any = next(each for each in kind.__mro__ if "__eq__" in vars(each))
    equal = vars(base)["__eq__"]
    if base in (collections.UserList, collections.UserString):
        return True, target.data
    if base in (collections.abc.Mapping, types.MappingProxyType):
        return True, dict(target.items())
    if base is collections.abc.Set:
        return True, set(target)
    if base.__module__ in _HOMES and (made := values.exactly(target, base)) is not None:
        return True, made
    generated = getattr(getattr(equal, "__code__", None), "co_filename", "") == "<string>"
    if base is object or (generated and hasattr(kind, "__dataclass_fields__")):
        return False, None
    kinds: tuple[Any, ...] = (*values.PLAIN, bool, type(None))
    answers = [_answer(equal, target, each()) for each in kinds]
    if all(isinstance(each, Exception) for each in answers):
        raise answers[0]
    return False, [each.__name__ for each, answer in zip(kinds, answers, strict=True) if answer is NotImplemented]


def _answer(equal: Any, target: Any, empty: Any) -> Any:
    """The answer of an `__eq__` to a value, or the exception that it raises."""
    try:
        return equal(target, empty)
    except Exception as error:  # the program's `__eq__` may raise anything: `_plain` decides
        return error


@functools.cache
def base_of(kind: Any) -> Any:
    """The type of plain values that a class derives from, if it alters nothing but text and
    arithmetic: its objects (members of an enumeration, named tuples) are such values on the other
    side too. Else None."""
    order = kind.__mro__
    base = next((each for each in order if each in BASES), None)
    above = order[: order.index(base)] if base is not None else ()
    altered = {name for each in above for name in vars(each) if hasattr(base, name)}
    return base if altered <= ALTERED else None


def _method(kind: type, name: str) -> Any:
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)


BASES = (int, float, complex, str, bytes, tuple)
_OF_CLASSES = "__new__ __init__ __doc__ __module__ __dict__ __dir__ __getnewargs__ __reduce_ex__"
ALTERED = frozenset([*_OF_CLASSES.split(), "__repr__", "__str__", "__format__", "__hash__", *ARITHMETIC])
_HOMES = {"builtins", "collections", "datetime", "decimal", "fractions"}


@functools.cache
def _own_loop() -> Any:
    """One loop for all that is awaited: what an asynchronous object began in a loop, it can only
    end there."""
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _start(target: Any, name: str, *args: Any) -> Any:
    """A task that awaits an object, or what a special method of it gives."""
    import asyncio

    async def awaited() -> Any:
        return await (OPERATIONS[name](target, *args) if name else target)

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = _own_loop()
    return loop.create_task(awaited())


def _turn(task: Any) -> bool:
    """Let a task go on for a moment; whether it has ended."""
    import asyncio

    loop = task.get_loop()
    if not task.done() and not loop.is_running():
        loop.run_until_complete(asyncio.wait({task}, timeout=_STEP_SECONDS))
    return bool(task.done())


_PERFORM: dict[str, Callable[..., Any]] = {
    **OPERATIONS,
    "__call__": lambda target, *args, **kwargs: target(*args, **kwargs),
    **{"get": _get, "set": setattr, "del": delattr, "dir": dir, "plain": _plain, "start": _start, "turn": _turn},
    "isinstance": lambda target, kind: (issubclass if isinstance(target, type) else isinstance)(target, kind),
    "holds": lambda target, value: isinstance(value, target),
    "cancel": lambda task: bool(task.cancel()),
    **dict.fromkeys(("result", "item"), lambda task: task.result()),
}


def perform(do: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what the other side asked to an object of ours: a special method, one of the words above,
    or a function of the standard library, by its full name, that looks into the object where it
    lives."""
    module, _, function = do.rpartition(".")
    return (getattr(__import__(module), function) if module else _PERFORM[do])(target, *args, **kwargs)


def special_methods(kind: type) -> list[str]:
    """The special methods of a class that are passed on: not those of `object`, of a plain value or
    an exception of Python's, which do the same on the other side."""
    errors = (each for each in kind.__mro__ if each.__module__ == "builtins" and issubclass(each, BaseException))
    above = base_of(kind) or next(errors, object)
    found = [name for name in OPERATIONS if _method(kind, name) is not _method(above, name)]
    found += ["__await__"] if hasattr(kind, "__await__") else []
    return [*found, "__get__"] if kind is types.FunctionType else found
