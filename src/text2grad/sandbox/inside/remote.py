"""Stand-ins for objects of the other side: its classes, instances, functions, exceptions.

A stand-in asks the other side for everything it does. Where the tests hold one (`peer.wary`), it never equals a
plain value, is not ordered against one, and no number that it had a part in computing from a plain value comes
back as a plain value: so a solution cannot be shown an expected value and say "equal" to it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Generator
from typing import Any, Protocol

UNARY = (
    *(
        "__len__",
        "__iter__",
        "__next__",
        "__reversed__",
        "__bool__",
        "__hash__",
        "__str__",
        "__repr__",
        "__bytes__",
    ),
    *("__abs__", "__neg__", "__pos__", "__invert__", "__int__", "__float__", "__complex__", "__index__"),
    *("__trunc__", "__floor__", "__ceil__", "__enter__"),
)
_NUMERIC = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift")
_BITS = ("and", "xor", "or")
ARITHMETIC = frozenset(f"__{prefix}{name}__" for name in (*_NUMERIC, *_BITS) for prefix in ("", "r", "i"))
EQUALITY = frozenset({"__eq__", "__ne__"})
ORDER = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
OTHER = (
    *("__getitem__", "__setitem__", "__delitem__", "__contains__", "__call__", "__exit__"),
    *("__round__", "__format__", "__length_hint__"),
)
OPERATIONS = frozenset({*UNARY, *ARITHMETIC, *EQUALITY, *ORDER, *OTHER})
"""The special methods that are passed on. Nothing else with two underscores ever crosses."""

_TO_NUMBERS = frozenset(
    {
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__bool__",
        "__round__",
        "__trunc__",
        "__floor__",
        "__ceil__",
    }
)
_SIGNS = frozenset({"__abs__", "__neg__", "__pos__", "__invert__"})
_LINK = "_t2g_link"
_CLASS_LINK = "_t2g_class_link"
_READABLE = frozenset({"__doc__", "__name__", "__qualname__"})


class Asker(Protocol):
    """The end of the wire a stand-in asks through."""

    wary: bool

    def request(
        self, op: str, target: Any, name: str = "", args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any: ...


class Link:
    """Which object of the other side a stand-in stands for; `told`: it was computed with a plain value."""

    __slots__ = ("number", "peer", "told")

    def __init__(self, peer: Asker, number: int) -> None:
        self.peer = peer
        self.number = number
        self.told = False


def link_of(value: Any) -> Link | None:
    """The link of a stand-in, None for any other value."""
    found: Link | None = None
    if isinstance(value, RemoteMeta):
        found = type.__getattribute__(value, "__dict__").get(_CLASS_LINK)
    elif isinstance(type(value), RemoteMeta) or type(value) is RemoteFunction:
        found = object.__getattribute__(value, "__dict__").get(_LINK)
    return found


def _linked(value: Any) -> Link:
    link = link_of(value)
    if link is None:
        raise AttributeError("this stand-in stands for nothing")
    return link


def _ask_attribute(value: Any, name: str) -> Any:
    if name.startswith("_t2g") or (name.startswith("__") and name not in _READABLE):
        raise AttributeError(name)
    return _linked(value).peer.request("get", value, name)


class RemoteMeta(type):
    """The type of stand-ins for classes."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _linked(cls).peer.request("call", cls, "", args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        return _ask_attribute(cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("__"):
            type.__setattr__(cls, name, value)
        else:
            _linked(cls).peer.request("set", cls, name, (value,))

    def __bool__(cls) -> bool:
        return True

    def __iter__(cls) -> Any:
        return _linked(cls).peer.request("op", cls, "__iter__")

    def __len__(cls) -> int:
        return int(_linked(cls).peer.request("op", cls, "__len__"))

    def __contains__(cls, item: Any) -> bool:
        return bool(_linked(cls).peer.request("op", cls, "__contains__", (item,)))

    def __getitem__(cls, item: Any) -> Any:
        return _linked(cls).peer.request("op", cls, "__getitem__", (item,))


class Remote(metaclass=RemoteMeta):
    """A stand-in for an instance."""

    def __getattr__(self, name: str) -> Any:
        return _ask_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _linked(self).peer.request("set", self, name, (value,))

    def __delattr__(self, name: str) -> None:
        _linked(self).peer.request("del", self, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object of the other side>"


class RemoteError(Remote):
    """What a stand-in for an exception has besides: its text, without asking again."""

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return str(object.__getattribute__(self, "__dict__").get("_t2g_text", ""))


class RemoteFunction:
    """A stand-in for a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _linked(self).peer.request("call", self, "", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return _ask_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _linked(self).peer.request("set", self, name, (value,))


def function(peer: Asker, number: int, name: str) -> RemoteFunction:
    """The stand-in for a function of the other side."""
    made = RemoteFunction()
    object.__getattribute__(made, "__dict__").update({_LINK: Link(peer, number), "__name__": name})
    return made


def instance(peer: Asker, number: int, kind: type) -> Any:
    """The stand-in for an instance of a class that has a stand-in."""
    made: Any = object.__new__(kind)
    object.__getattribute__(made, "__dict__")[_LINK] = Link(peer, number)
    return made


def error(peer: Asker, number: int, kind: Any, args: tuple[Any, ...], text: str) -> BaseException:
    """The stand-in for an exception whose class has a stand-in."""
    made: BaseException = kind.__new__(kind)
    made.args = args
    object.__getattribute__(made, "__dict__").update({_LINK: Link(peer, number), "_t2g_text": text})
    return made


def make_class(peer: Asker, number: int, name: str, bases: tuple[type, ...], operations: list[str]) -> type:
    """The stand-in for a class. Of its bases, stand-ins and exceptions are kept."""
    errors = any(issubclass(base, BaseException) for base in bases)
    space: dict[str, Any] = {_CLASS_LINK: Link(peer, number), "__module__": "solution"}
    for operation in operations:
        if operation in OPERATIONS and not (errors and operation in ("__str__", "__repr__")):
            space[operation] = _passed_on(operation)
    if "__eq__" in space:
        space.setdefault("__hash__", None)
    kept = tuple(base for base in bases if isinstance(base, RemoteMeta) or issubclass(base, BaseException))
    root = RemoteError if errors else Remote
    if not any(issubclass(base, root) for base in kept):
        kept = (root, *kept)
    try:
        return RemoteMeta(name, kept, space)
    except TypeError:  # bases whose layouts do not go together
        return RemoteMeta(name, (RemoteError, Exception) if errors else (Remote,), space)


def _passed_on(operation: str) -> Callable[..., Any]:
    def ask(self: Any, *args: Any) -> Any:
        link = _linked(self)
        if not link.peer.wary:
            return link.peer.request("op", self, operation, args)
        return _ask_warily(link, self, operation, args)

    ask.__name__ = operation
    return ask


def _ask_warily(link: Link, self: Any, operation: str, args: tuple[Any, ...]) -> Any:
    plain = any(link_of(arg) is None for arg in args)
    if plain and operation in EQUALITY | ORDER:
        return NotImplemented
    if link.told and operation in _TO_NUMBERS:
        raise TypeError(f"{operation} of an object that was computed with a plain value")
    result = link.peer.request("op", self, operation, args)
    if result is NotImplemented or operation not in ARITHMETIC | _SIGNS:
        return result
    told = plain or link.told or any(other.told for other in map(link_of, args) if other is not None)
    if told:
        made = link_of(result)
        if made is None:
            raise TypeError(f"{operation} of an object and a plain value gave a plain value")
        made.told = True
    return result


def generator(stand_in: Any) -> Generator[Any, Any, Any]:
    """A real generator that passes everything on to one of the other side."""
    resume: Callable[[], Any] = stand_in.__next__
    while True:
        try:
            item = resume()
        except StopIteration as end:
            return end.value
        try:
            sent = yield item
        except GeneratorExit:
            stand_in.close()
            raise
        except BaseException as thrown:
            resume = functools.partial(stand_in.throw, thrown)
        else:
            resume = stand_in.__next__ if sent is None else functools.partial(stand_in.send, sent)


def special(kind: type, name: str) -> Any:
    """What the language finds for a special method: in the class and its bases, never in the class's own class."""
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)


async def coroutine(peer: Asker, stand_in: Any) -> Any:
    """A real coroutine that has one of the other side run to its end."""
    return peer.request("await", stand_in)


GENERATOR = types.GeneratorType
COROUTINE = types.CoroutineType
