"""Decide which objects of the tests a solution may hold, and what it may do with them.

Calling such an object runs code of the test file or a listed method of a listed type, so it is safe
with any arguments. Classes of Python are not lent: the solution uses those in its process.
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
"""Types whose objects are lent -> the allowed methods and attributes."""
_BOUND_METHODS = {
    "builtins.generator": "send close",
    "queue.Queue": "put get put_nowait get_nowait",
    "threading.Event": "set is_set",
    "unittest.case.TestCase": "fail assertEqual assertTrue assertFalse assertIn assertIsInstance",
}
"""Types -> methods that may be called if the tests pass the bound method itself."""
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
"""Modules whose classes only hold values; classes of the tests may derive from them."""


def is_lent(value: Any) -> bool:
    """Return True if the solution may hold this object of the tests."""
    kind = type(value)
    if isinstance(value, type) or not (_is_test_class(kind) or kind is object or _listed_names(kind, _LISTED)):
        return may_call(value) or _is_iterator(kind) or _is_mock(value, callable=False)
    return True


def may_call(value: Any) -> bool:
    """Return True if a call with any arguments only runs the test file or a listed method."""
    kind: Any = type(value)
    if objects.link_of(value) is not None or _is_mock(value, callable=True):
        return True
    if isinstance(value, type):
        return _is_safe_class(value)
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
        if issubclass(owner, values.PLAIN) or values.reduce_value(value.__self__) is not None:
            return not name.startswith("_") or name in perform.OPERATIONS
        return name in (*_listed_names(owner, _LISTED), *_listed_names(owner, _BOUND_METHODS))
    return _is_test_class(kind) and callable(value) and may_call(kind.__call__)


def guard(do: str, target: Any, args: Any) -> bool:
    """Return True if the solution may perform `do` (perform.py) on an object of the tests."""
    if do == "__call__":
        return may_call(target)
    name = args[0] if args and do in ("get", "set", "start") else ""
    if type(name) is not str:  # a value of another type could change between checks
        return False
    if do == "get" and name in _NAMES:
        return callable(target)
    kind = type(target)
    if isinstance(target, type):
        return do in _OF_CLASSES or (
            do == "get" and not name.startswith("_") and _is_defined_in_tests(name, target)
        )
    if callable(getattr(kind, "assertEqual", None)):  # a test case
        return (
            do == "get" and _is_defined_in_tests(name, kind) and not name.startswith(("_", "test", "set", "tear"))
        )
    free, listed = _is_test_class(kind) or _is_mock(target, callable=False), _listed_names(kind, _LISTED)
    what = do if do != "start" else name or "__await__"
    if what in _OF_TASKS:
        return what in listed or (what == "__await__" and hasattr(kind, what) and free)
    if what in perform.OPERATIONS:
        return free or what in listed or (_is_iterator(kind) and what in _OF_ITERATORS)
    if do == "get" and name in listed:
        return True
    public = not name.startswith("_") or (_is_test_class(kind) and name in _OF_TUPLES)
    if do == "set":
        return public and name not in _OF_TUPLES and _is_data(target, name, args[1])
    return free and do in ("get", "dir") and public and name not in _OF_MOCKS


def _is_test_class(kind: type) -> bool:
    """Return True for a class of the test file."""
    return kind.__module__ == "tests"


def _is_defined_in_tests(name: str, kind: type) -> bool:
    """Return True for a name defined in this class or a base of it, in the test file."""
    return any(name in vars(base) for base in kind.__mro__ if _is_test_class(base))


def _is_safe_class(kind: type) -> bool:
    """Return True for a class of the test file whose instances only its own code creates."""
    meta: Any = type(kind)
    above = (base for base in (*kind.__mro__, *type.mro(meta)[:-2]) if not _is_test_class(base))
    return _is_test_class(kind) and all(base.__module__ in _BASES and base is not type for base in above)


def _listed_names(kind: type, table: dict[str, str]) -> list[str]:
    """Return the names that a table lists for a type and its bases."""
    return " ".join(table.get(f"{base.__module__}.{base.__qualname__}", "") for base in kind.__mro__).split()


def _is_iterator(kind: type) -> bool:
    """Return True for an iterator type of the standard library."""
    return hasattr(kind, "__next__") and kind.__module__.partition(".")[0] in values.STDLIB


def _is_mock(value: Any, callable: bool) -> bool:
    """Return True for a (callable) mock that does not forward calls to Python's own code."""
    mock = sys.modules.get("unittest.mock")
    if mock is None or not isinstance(value, mock.CallableMixin if callable else mock.NonCallableMock):
        return False
    wrapped, effect = (vars(value).get(name) for name in ("_mock_wraps", "_mock_side_effect"))
    of_mock = type(effect) is types.FunctionType and effect.__globals__ is vars(mock)
    return _is_harmless(wrapped) and (_is_harmless(effect) or of_mock)


def _is_harmless(value: Any) -> bool:
    """Return True for what a mock may forward calls to or return."""
    if (
        value is None
        or _is_test_class(type(value))
        or isinstance(value, BaseException)
        or _is_iterator(type(value))
    ):
        return True
    if isinstance(value, type) and (issubclass(value, BaseException) or value in values.PLAIN):
        return True
    return may_call(value) or values.is_pure(value)


def _is_data(target: Any, name: str, value: Any) -> bool:
    """Return True if an attribute of an instance of a test class may be set to a value.

    Methods, and objects of the tests that a proxy of the solution would replace, may not be set.
    """
    now = getattr(target, name, None)
    stands_in = objects.link_of(value) is not None and is_lent(now)
    return _is_test_class(type(target)) and not callable(now) and not stands_in
