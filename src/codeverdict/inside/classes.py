"""What a class is made of: for its stand-in, and for one that the tests derive from a stand-in."""

from __future__ import annotations

import collections
import types
from typing import Any

from codeverdict.inside import operations


def operations_of(kind: type, plain: type) -> list[str]:
    """The special methods of a class that `plain` (at least `object`) does not have, and those it has otherwise."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found.update({name: base.__dict__[name] for name in operations.OPERATIONS.intersection(base.__dict__)})
    kept = {name: method for name, method in found.items() if method is not operations.special(plain, name)}
    return sorted(name for name, method in kept.items() if method is not None)


def own_names(kind: type, plain: type) -> list[str]:
    """Public attributes of a class where `plain` has others of that name."""
    if plain is object:
        return []
    names = {name for base in kind.__mro__ if base not in plain.__mro__ for name in base.__dict__}
    return sorted(name for name in names if not name.startswith("_") and hasattr(plain, name))


def plain_named_tuple(kind: type) -> tuple[str, ...] | None:
    """The fields of a class that `namedtuple` made and nobody added to."""
    fields = getattr(kind, "_fields", None)
    if kind.__bases__ != (tuple,) or not isinstance(fields, tuple):
        return None
    own = {*fields, *_NAMED_TUPLE_OWN}
    return (
        fields
        if set(kind.__dict__) <= own and operations.special(kind, "__eq__") is tuple.__dict__["__eq__"]
        else None
    )


def named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


_NAMED_TUPLE_OWN = {*named_tuple("Empty", ()).__dict__, "__annotations__", "__orig_bases__"}

OF_A_CLASS = frozenset(
    ("__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__classcell__", "__static_attributes__")
) | {"__firstlineno__", "__annotations__", "__abstractmethods__", "_abc_impl", "__parameters__"}


def member(value: Any) -> tuple[str, Any]:
    """What stands in the body of a class, as (kind, what it is made of)."""
    if isinstance(value, staticmethod | classmethod):
        return type(value).__name__, value.__func__
    if isinstance(value, property):
        return "property", (value.fget, value.fset, value.fdel)
    return ("function" if isinstance(value, types.FunctionType) else "value"), value


def member_of(kind: str, value: Any) -> Any:
    if kind == "property":
        return property(*(part and _method(part) for part in value))
    if kind == "value":
        return value
    return {"staticmethod": staticmethod, "classmethod": classmethod}.get(kind, _itself)(_method(value))


def _itself(value: Any) -> Any:
    return value


def _method(stand_in: Any) -> Any:
    """A function for the body of a class that calls one of the other side."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return stand_in(*args, **kwargs)

    method.__name__ = str(stand_in.__name__)
    return method
