"""Names of what one side may do to objects of the other: special methods and readable attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

UNARY = (
    *("__len__", "__iter__", "__next__", "__reversed__", "__bool__", "__hash__", "__str__", "__repr__"),
    *("__bytes__", "__abs__", "__neg__", "__pos__", "__invert__", "__int__", "__float__", "__complex__"),
    *("__index__", "__trunc__", "__floor__", "__ceil__", "__enter__", "__aiter__", "__fspath__"),
)
_NUMERIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift")
_BITS = ("and", "xor", "or")
ARITHMETIC = frozenset(f"__{prefix}{name}__" for name in (*_NUMERIC, *_BITS) for prefix in ("", "r", "i"))
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    f"__{name}__": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
ORDER = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
AWAITED = frozenset({"__anext__", "__aenter__", "__aexit__"})
OTHER = (
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__call__", "__exit__", "__missing__"),
    *("__round__", "__format__", "__length_hint__", "__await__"),
)
OPERATIONS = frozenset({*UNARY, *ARITHMETIC, *COMPARISONS, *OTHER, *AWAITED})
"""The special methods that are passed on."""

SOFT, HARD = 1, 2
"""How an object was computed with a plain value: by an operation that no test compares with (attributes that plain
values do not have may be read), or by one that measures a difference."""
FREE = frozenset(
    f"__{prefix}{name}__"
    for name in ("add", "mul", "matmul", "pow", "lshift", "rshift")
    for prefix in ("", "r", "i")
)
"""Operators whose operand is an input: nothing is measured against what is wanted by a sum or a product."""
RATIOS = frozenset(("__truediv__", "__rtruediv__", "__itruediv__"))
CONTENTS = frozenset(("__iter__", "__len__", "__contains__", "__bool__", "__reversed__"))
SIGNS = frozenset({"__abs__", "__neg__", "__pos__", "__invert__"})
GIVES_ITSELF = frozenset({"__enter__", "__iter__", *(name for name in ARITHMETIC if name.startswith("__i"))})
_READABLE = (
    "__doc__ __annotations__ __dict__ __slots__ __wrapped__ __defaults__ __kwdefaults__ __members__ __match_args__ "
    "__abstractmethods__ __init__ __signature__ __module__ __dataclass_fields__ __version__ __all__ __total__"
)
READABLE = frozenset(_READABLE.split())
"""Attributes with two underscores that may be read. Nothing else of that kind crosses but OPERATIONS."""

RESUMING = frozenset(("send", "throw", "next", "__next__", "asend", "athrow", "__anext__"))
_ABOUT_A_VALUE = (
    "startswith endswith issubset issuperset isdisjoint difference symmetric_difference isclose allclose "
    "array_equal total_compare intersection"
)
ASKS_ABOUT = frozenset(_ABOUT_A_VALUE.split())
"""Methods of plain values that are asked about a value, and that classes of tasks do not have."""


def special(kind: type, name: str) -> Any:
    """What the language finds for a special method: in the class and its bases, never in the class's own class."""
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)
