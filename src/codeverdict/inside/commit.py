"""What an object stands for when it is compared with a value that it is not shown."""

from __future__ import annotations

import collections.abc
from collections.abc import Callable
from typing import Any

from codeverdict.inside.operations import COMPARISONS, ORDER, special


class _Committed(BaseException):
    def __init__(self, symbol: str, value: Any) -> None:
        super().__init__(symbol)
        self.symbol, self.value = symbol, value


def _commits(symbol: str) -> Callable[[Any, Any], Any]:
    def commit(self: Any, value: Any) -> Any:
        raise _Committed(symbol, value)

    return commit


PROBED: tuple[type, ...] = (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset)
_BY_NAME: dict[str, type] = {"": object, **{kind.__name__: kind for kind in PROBED}}


class _Probe:
    """What an object is compared with in place of the value: takes what it is compared with, and ends that."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._kind

    def __str__(self) -> str:
        raise TypeError("not a value")

    __repr__ = __format__ = __bool__ = __str__  # type: ignore[assignment]


class _TextProbe(str):
    """A probe that is a text, and stays one under `str`."""

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self

    def __getattribute__(self, name: str) -> Any:
        if name[:2] != "__":
            raise TypeError("not a value")
        return str.__getattribute__(self, name)

    def __len__(self) -> int:
        raise TypeError("not a value")

    __iter__ = __getitem__ = __add__ = __radd__ = __mod__ = __contains__ = __len__  # type: ignore[assignment]


for _name in COMPARISONS:
    setattr(_Probe, _name, _commits(_name))
    setattr(_TextProbe, _name, _commits(_name))


_REFLECTED = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__"}


def commit(target: Any, operation: str) -> list[tuple[str, tuple[bool, Any] | None]]:
    """What an object stands for when it is compared with a value, for each type that may be of ("": any other).

    (True, the value that it stands for); (False, None) if it says that it differs from every value of the type;
    None if it says nothing of the kind. Nobody tells it which type it is.
    """
    return [(name, _committed(target, operation, kind)) for name, kind in _BY_NAME.items()]


def _committed(target: Any, operation: str, kind: type) -> tuple[bool, Any] | None:
    method = special(type(target), operation)
    if operation not in COMPARISONS or method is None:
        return None
    if method is special(collections.abc.Mapping, "__eq__"):
        return True, dict(target.items())
    if method is special(collections.abc.Set, operation):
        return True, set(target)
    try:
        result = method.__get__(target, type(target))(_TextProbe() if kind is str else _Probe(kind))
    except _Committed as said:
        derived = getattr(method, "__module__", "") == "functools"  # total_ordering asks another comparison
        same = said.symbol == _REFLECTED.get(operation, operation)
        return (True, said.value) if same or (derived and operation in ORDER) else None
    except Exception:  # it wants more of the value than a comparison
        return None
    return (False, None) if result is NotImplemented or result is (operation == "__ne__") else None
