"""What the solution may do to objects of the tests."""

from __future__ import annotations

import types
from typing import Any

from codeverdict.inside import kinds, operations, resumed

_RESUMED = ("__anext__", "asend", "athrow", "aclose", "__aenter__", "__aexit__", "__await__")
_ABOUT_A_FUNCTION = ("__signature__", "__name__", "__qualname__", "__doc__", "__annotations__", "__module__")
_JUDGES = {*operations.COMPARISONS, "__hash__", "__bool__", "__contains__", "__len__"}
_ABOUT_AN_OBJECT = ("__dict__", "__dataclass_fields__", "__annotations__", "__slots__", "__match_args__")
_OF_A_DECORATOR = operations.OPERATIONS | operations.READABLE | {"__name__", "__qualname__", "__init__", "__new__"}


def guard(op: str, target: Any, name: str, lent: bool) -> bool:
    """What the solution may do to an object of the tests: call what it was given; touch public names of instances
    of the tests' own classes, and of a mock those that it makes up; go on with an iterator; write to a stream. A
    class that the tests have it work on (a decorator) may get methods of the language.

    Nothing leads to frames, globals or the verdict, and nothing makes an object of a class not of the tests' own.
    """
    own = kinds.of_the_tests(target)
    if op == "start":
        waits = type(target) in (resumed.COROUTINE, resumed.ASYNC_GENERATOR)
        return (name in ("", *_RESUMED) and (own or waits)) or (own and not name.startswith("_"))
    if op == "dir" or (op == "get" and name in _ABOUT_AN_OBJECT):
        return own
    if op in ("step", "cancel", "result"):
        return type(target).__name__ == "Task"
    if op == "call":
        return own or not isinstance(target, types.ModuleType | type)
    if op in ("get", "set", "del"):
        if lent and op != "del" and name in _OF_A_DECORATOR:
            return op == "get" or (isinstance(target, type) and not (name in _JUDGES and _has(target, name)))
        if isinstance(target, type) and op != "get" and _is_case(target):
            return False
        there = operations.special(target if isinstance(target, type) else type(target), name)
        current = getattr(target, "__dict__", {}).get(name)
        if op == "set" and (kinds.is_mock(target) or kinds.is_mock(current)):
            return False
        if kinds.is_mock(target):
            return there is None and not name.startswith("_")
        if type(target) is types.FunctionType and op == "get" and name in _ABOUT_A_FUNCTION:
            return True
        if type(target) is resumed.GENERATOR:
            return op == "get" and name in ("send", "throw", "close")
        if kinds.is_stream(target) or type(target).__module__ in ("threading", "_thread"):
            return op == "get" and there is not None and not name.startswith("_")
        replaces = op != "get" and (callable(there) or isinstance(there, staticmethod | classmethod))
        return own and not name.startswith("_") and not replaces
    if op == "op":
        shared = type(target).__module__ in ("threading", "_thread")
        free = own or shared or kinds.is_mock(target) or kinds.is_stream(target) or name in ("__next__", "__iter__")
        return name in operations.OPERATIONS and free
    return False


def _has(kind: type, name: str) -> bool:
    """Whether a class has a special method other than that of `object`."""
    return operations.special(kind, name) is not vars(object).get(name)


def _is_case(target: Any) -> bool:
    return any(base.__module__ == "unittest.case" for base in target.__mro__)
