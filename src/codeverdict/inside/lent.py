"""The objects of the tests that a solution may have, and what it may do to them.

A call of one runs code of the test file, or a listed method of a listed type: whatever the solution
has is safe to call, with any arguments. No class of Python's is among them: the solution has those
of its own process.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from codeverdict.inside import objects, perform, values

_LISTED = {
    "_io._IOBase": (
        "read read1 readline readlines readinto peek write writelines seek tell truncate flush close closed "
        "readable writable seekable isatty name mode encoding errors newlines getvalue buffer "
        "__iter__ __next__ __enter__ __exit__"
    ),
    "random.Random": (
        "random uniform randint randrange choice choices sample shuffle gauss normalvariate triangular "
        "betavariate expovariate getrandbits randbytes seed getstate setstate"
    ),
    "logging.Logger": "name level debug info warning error critical exception log isEnabledFor setLevel",
    "contextlib.AbstractContextManager": "__enter__ __exit__",
    "contextlib.AbstractAsyncContextManager": "__aenter__ __aexit__",
    "contextlib._BaseExitStack": "callback enter_context push close",
    "builtins.coroutine": "__await__",
    "builtins.async_generator": "__aiter__ __anext__",
    "_asyncio.Task": "__await__ turn cancel result item",
}
"""Types whose objects are lent -> what may be done to these."""
_GIVEN = {
    "builtins.generator": "send close",
    "queue.Queue": "put get put_nowait get_nowait",
    "threading.Event": "set is_set",
    "unittest.case.TestCase": "fail assertEqual assertTrue assertFalse assertIn assertIsInstance",
}
"""Types -> methods that may be called where the tests give these by themselves."""
_NAMES = ("__module__", "__qualname__", "__doc__", "__name__")
_OF_TUPLES = ("__dict__", "_asdict", "_fields", "_replace")
_OF_MOCKS = (
    *("attach_mock", "configure_mock", "mock_add_spec", "reset_mock", "side_effect", "mock_calls", "method_calls"),
    *("call_args", "call_args_list", "await_args", "await_args_list"),
)
_OF_ITERATORS = ("__next__", "__iter__", "__length_hint__")
_OF_CLASSES = ("holds", "dir", "__iter__", "__len__", "__contains__", "__getitem__")
_OF_TASKS = frozenset(_LISTED["_asyncio.Task"].split())
_BASES = ("builtins", "abc", "enum", "typing", "collections", "collections.abc", "contextlib", "numbers")
"""Modules whose classes do nothing but hold values: a class of the tests may derive from them and
be called."""


def is_lent(value: Any) -> bool:
    """True if the solution may have this object of the tests."""
    kind = type(value)
    if isinstance(value, type) or not (_is_own(kind) or kind is object or _words(kind, _LISTED)):
        return may_call(value) or _is_iterator(kind) or _is_mock(value, callable=False)
    return True


def may_call(value: Any) -> bool:
    """True if a call runs code of the test file or a listed method, whatever its arguments are."""
    kind: Any = type(value)
    if objects.link_of(value) is not None or _is_mock(value, callable=True):
        return True
    if isinstance(value, type):
        return _is_own_class(value)
    if kind is functools.partial:
        return may_call(value.func)
    if kind is types.FunctionType and value.__globals__.get("__name__") == "tests":
        return True
    if kind is types.FunctionType or kind.__name__ == "_lru_cache_wrapper":
        return hasattr(value, "__wrapped__") and may_call(value.__wrapped__)
    if kind is types.MethodType and (may_call(value.__func__) or value.__name__ in _OF_TUPLES):
        return True
    if isinstance(value, types.MethodType | types.BuiltinMethodType | types.MethodWrapperType):
        owner, name = type(value.__self__), value.__name__
        if issubclass(owner, values.PLAIN) or values.reduced(value.__self__) is not None:
            return not name.startswith("_") or name in perform.OPERATIONS
        return name in (*_words(owner, _LISTED), *_words(owner, _GIVEN))
    return _is_own(kind) and callable(value) and may_call(kind.__call__)


def guard(do: str, target: Any, args: Any) -> bool:
    """True if the solution may do this (perform.py) to an object of the tests that it has."""
    if do == "__call__":
        return may_call(target)
    name = args[0] if args and do in ("get", "set", "start") else ""
    if type(name) is not str:  # of another type it may be this to one who asks and that to the next
        return False
    if do == "get" and name in _NAMES:
        return callable(target)
    kind = type(target)
    if isinstance(target, type):
        return do in _OF_CLASSES or (do == "get" and not name.startswith("_") and _is_named(name, target))
    if callable(getattr(kind, "assertEqual", None)):  # a test case
        return do == "get" and _is_named(name, kind) and not name.startswith(("_", "test", "set", "tear"))
    free, listed = _is_own(kind) or _is_mock(target, callable=False), _words(kind, _LISTED)
    what = do if do != "start" else name or "__await__"
    if what in _OF_TASKS:
        return what in listed or (what == "__await__" and hasattr(kind, what) and free)
    if what in perform.OPERATIONS:
        return free or what in listed or (_is_iterator(kind) and what in _OF_ITERATORS)
    if do == "get" and name in listed:
        return True
    public = not name.startswith("_") or (_is_own(kind) and name in _OF_TUPLES)
    if do == "set":
        return public and name not in _OF_TUPLES and _is_data(target, name, args[1])
    return free and do in ("get", "dir") and public and name not in _OF_MOCKS


def _is_own(kind: type) -> bool:
    """True for a class of the test file."""
    return kind.__module__ == "tests"


def _is_named(name: str, kind: type) -> bool:
    """True for a name that stands in a class of the test file, this one or one above it."""
    return any(name in vars(base) for base in kind.__mro__ if _is_own(base))


def _is_own_class(kind: type) -> bool:
    """True for a class of the test file whose objects are made by nothing but its code."""
    meta: Any = type(kind)
    above = (base for base in (*kind.__mro__, *type.mro(meta)[:-2]) if not _is_own(base))
    return _is_own(kind) and all(base.__module__ in _BASES and base is not type for base in above)


def _words(kind: type, table: dict[str, str]) -> list[str]:
    """The words that a table has for a type and those above it."""
    return " ".join(table.get(f"{base.__module__}.{base.__qualname__}", "") for base in kind.__mro__).split()


def _is_iterator(kind: type) -> bool:
    """True for a type of iterators of the standard library."""
    return hasattr(kind, "__next__") and kind.__module__.partition(".")[0] in values.STDLIB


def _is_mock(value: Any, callable: bool) -> bool:
    """True for a mock that hands calls on to nothing of Python's; with `callable`, one that can be
    called."""
    mock = sys.modules.get("unittest.mock")
    if mock is None or not isinstance(value, mock.CallableMixin if callable else mock.NonCallableMock):
        return False
    wrapped, effect = (vars(value).get(name) for name in ("_mock_wraps", "_mock_side_effect"))
    of_mock = type(effect) is types.FunctionType and effect.__globals__ is vars(mock)
    return _is_harmless(wrapped) and (_is_harmless(effect) or of_mock)


def _is_harmless(value: Any) -> bool:
    """True for what a mock may hand calls on to, or answer with."""
    if value is None or _is_own(type(value)) or isinstance(value, BaseException) or _is_iterator(type(value)):
        return True
    if isinstance(value, type) and (issubclass(value, BaseException) or value in values.PLAIN):
        return True
    return may_call(value) or values.is_pure(value)


def _is_data(target: Any, name: str, value: Any) -> bool:
    """True if an attribute may be set to a value: it is of an instance of the tests' own class, no
    method, and no object of theirs that one of the solution would stand for."""
    now = getattr(target, name, None)
    stands_in = objects.link_of(value) is not None and is_lent(now)
    return _is_own(type(target)) and not callable(now) and not stands_in
