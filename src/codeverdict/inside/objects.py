"""Objects of the other side: every class of it becomes a class here, and its objects become
instances of that.

Such a class has the special methods of the one it stands for, and no others, so that `callable`,
`isinstance` and a missing operator are what they are there. What is done to an object is asked of
the side where it lives.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

from codeverdict.inside import perform, values


class Link(NamedTuple):
    """Where an object lives: at the other end of a `Peer`, and its number there."""

    peer: Any
    number: int


_LINKS: dict[int, Link] = {}  # by identity: what has a link is kept by its peer for good
_MADE: set[int] = set()
_MEASURED: set[int] = set()
_COMPUTED: set[int] = set()
_FIXED: dict[int, Any] = {}  # whether an object was first compared as a value, and as which if it cannot change
_LOOKED_FOR = (
    "__array__ __array_interface__ __array_struct__ __array_ufunc__ __test__ __bases__ _mock_name "
    "_pytestfixturefunction __pytest_wrapped__"
)
_NOT_ASKED = frozenset(_LOOKED_FOR.split())
"""What pytest and numpy look for in everything there is."""


def link_of(value: Any) -> Link | None:
    """Where a value lives, if it is of the other side."""
    return _LINKS.get(id(value))


def of_class(value: Any) -> Any:
    """Note that the tests treat this as a class of the solution, an object they made of one, or a
    part of it.

    Such an object may be computed with plain values: they are what it is made of, not what it is
    compared with.
    """
    if id(value) in _LINKS:
        _MADE.add(id(value))
    return value


class Remote(type):
    """The class of classes that live on the other side."""

    def __new__(meta, name: str, bases: tuple[type, ...], space: dict[str, Any], peer: Any = None) -> Any:
        """A class; without `peer`, somebody derives one from a class of the other side."""
        if peer is None:
            link = next(link for base in bases if (link := link_of(base)) is not None)
            link.peer.refuse("a class derived from one of the other side", True)
        return super().__new__(meta, name, bases, space)

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = _ask(cls, "__call__", *args, **kwargs)
        return of_class(made) if id(cls) in _MADE else made

    def __getattr__(cls, name: str) -> Any:
        if name in _NOT_ASKED or id(cls) not in _LINKS:
            raise AttributeError(name)
        found = _ask(cls, "get", name)
        return of_class(found) if id(cls) in _MADE else found

    @property  # type: ignore[misc]
    def __dict__(cls) -> Any:  # type: ignore[override]
        try:
            return _ask(cls, "get", "__dict__")
        except AttributeError:
            return {}

    def __instancecheck__(cls, value: Any) -> bool:
        asks = id(cls) in _LINKS and (id(value) in _LINKS or type(value).__module__ == "tests")
        return type.__instancecheck__(cls, value) or (asks and bool(_ask(cls, "holds", value)))

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: Any) -> Any:
        found = _ask(cls, "__getitem__", key)
        return of_class(found) if id(cls) in _MADE else found


class Object:
    """What every object of the other side has here."""

    def __getattribute__(self, name: str) -> Any:
        if name[:2] == "__" or (isinstance(self, BaseException) and name in _OF_ERRORS) or _is_plain(self, name):
            return object.__getattribute__(self, name)
        if name in _NOT_ASKED:
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_ASKED or (name[:2] != "__" or name[-2:] != "__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in perform.OPERATIONS:
            raise AttributeError(name)
        return _ask(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(self, BaseException) and name[:2] in ("__", "_c"):
            object.__setattr__(self, name, value)
        else:
            _ask(self, "set", name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        link = _LINKS[id(self)]
        return link.peer.refuse(f"a pickle of a {type(self).__name__}", True)

    def __deepcopy__(self, memo: Any) -> Any:
        return _ask(self, "__deepcopy__", {})


def _is_plain(value: Any, name: str) -> bool:
    """True for an attribute of the plain value that an object is."""
    return isinstance(value, perform.BASES) and hasattr(_plain_type(type(value)), name)


def _plain_type(kind: type) -> Any:
    return next((each for each in kind.__mro__ if each in perform.BASES), object)


class _Asked:
    """An attribute that Python gives every class, asked of the other side."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, one: Any, kind: Any) -> Any:
        return _ask(kind if one is None else one, "get", self._name)


_OF_ERRORS = ("with_traceback", "add_note", "_cdv_line")


def _ask(target: Any, do: str, /, *args: Any, **kwargs: Any) -> Any:
    return _LINKS[id(target)].peer.request(do, target, args, kwargs)


def _asking(do: str) -> Callable[..., Any]:
    return lambda self, *args: _ask(self, do, *args)


def _operation(name: str) -> Callable[..., Any]:
    """The special method of that name, asked of the other side."""

    def operate(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _operate(self, name, args, kwargs)

    operate.__name__ = name
    return operate


def _operate(self: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    peer = _LINKS[id(self)].peer
    if name == "__call__":
        found = peer.request(name, self, args, kwargs)
        return of_class(found) if id(self) in _MADE else found
    if name in perform.AWAITED:
        return awaited(self, name, args)
    if peer.wary and name in perform.COMPARISONS and id(args[0]) not in _LINKS:
        return _compared(self, name, args[0])
    if peer.wary and name in perform.ARITHMETIC and args and id(args[0]) not in _LINKS:
        return _computed(self, name, args)
    if id(self) in _MEASURED and name in perform.SCALARS:
        return peer.refuse(f"{name} of what an object and a plain value came to", True)
    if name == "__exit__":
        left = peer.request(name, self, (*args[:2], None))
        return _noted(peer, args[1], left)
    found = peer.request(name, self, args)
    return of_class(found) if name in perform.ARITHMETIC and id(self) in _MADE else found


def _computed(self: Any, name: str, args: tuple[Any, ...]) -> Any:
    """What an object and a plain value come to. Where that measures one against the other, only an
    object made by the tests takes part, and it comes to no plain value: the operand is what it is
    made of."""
    peer, made = _LINKS[id(self)].peer, id(self) in _MADE
    measures = name in perform.MEASURES and not isinstance(args[0], str | bytes)
    begins = name == "__radd__" and type(args[0]) in (int, float) and args[0] != 0
    if (measures or begins) and not made:
        return peer.refuse(f"{name} of an object and a plain value", False)
    found = peer.request(name, self, args)
    if measures and id(found) not in _LINKS:
        return peer.refuse(f"{name} of an object and a plain value, to a plain value", True)
    if id(found) in _LINKS:  # a plain value is not kept, and its place is another's soon
        (_MEASURED if measures else _COMPUTED).add(id(found))
    return of_class(found) if made else found


def _compared(self: Any, name: str, other: Any) -> Any:
    """A comparison with a value that is not of the other side: decided here, by what the object
    says it is."""
    peer = _LINKS[id(self)].peer
    if type(other).__name__ == "_ANY" and type(other).__module__ == "unittest.mock":
        return NotImplemented
    if peer.lenient and (name not in ("__eq__", "__ne__") or id(self) in _MADE):
        return bool(peer.request(name, self, (other,)))
    is_plain, plain = peer.request("plain", self) or (None, None)
    answer = (is_plain, plain if is_plain and type(plain).__hash__ is not None else None)
    if _FIXED.setdefault(id(self), answer) != answer:
        return peer.refuse(f"an object of {type(self).__name__} that is now this and now that", True)
    if is_plain is True and link_of(plain) is None:
        return perform.COMPARISONS[name](plain, other)
    if name in ("__eq__", "__ne__"):
        differs = name == "__ne__"
        unknown = is_plain is False and (plain is None or type(other).__name__ in plain)
        if unknown or (other is None and peer.request(name, self, (None,)) is differs):
            return differs
    by_nature = id(self) in _MADE or id(self) in _COMPUTED
    return peer.refuse(f"{name} of an object of {type(self).__name__} and a plain value", by_nature)


def _await(self: Any) -> Any:
    return awaited(self).__await__()


async def awaited(target: Any, name: str = "", args: tuple[Any, ...] = ()) -> Any:
    """Await an object, or what a special method of it gives, where it lives."""
    import asyncio

    peer = _LINKS[id(target)].peer
    error = args[1] if name == "__aexit__" else None
    task = peer.request("start", target, (name, *args[:2], None) if error is not None else (name, *args))
    try:
        while not peer.request("turn", task):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        peer.request("cancel", task)
        while not peer.request("turn", task):
            pass
        raise
    return _noted(peer, error, peer.request("item" if name == "__anext__" else "result", task))


def _noted(peer: Any, error: Any, left: Any) -> Any:
    """What the end of a `with` block gave: has that swallowed an exception?"""
    if error is not None and left:
        peer.swallowed(error)
    return left


def _bind(self: Any, one: Any, kind: Any = None) -> Any:
    return self if one is None else types.MethodType(self, one)


for _name in ("__repr__", "__iter__", "__reversed__", "__len__", "__contains__"):
    setattr(Remote, _name, _operation(_name))
for _name, _do in (("__delattr__", "del"), ("__dir__", "dir"), ("__copy__", "__copy__"), ("__setattr__", "set")):
    setattr(Remote, _name, _asking(_do))
    if _do != "set":  # those of an exception are its own
        setattr(Object, _name, _asking(_do))

_METHODS = {**{name: _operation(name) for name in perform.OPERATIONS}, "__await__": _await, "__get__": _bind}


def make_class(peer: Any, name: str, bases: tuple[type, ...], methods: list[str]) -> Any:
    """A class that stands for one of the other side.

    Raises:
        KeyError, TypeError: there is no such base or method.
    """
    above = bases if any(issubclass(each, Object) for each in bases) else (Object, *bases)
    space: dict[str, Any] = {each: _METHODS[each] for each in methods}
    for base in (_plain_type(each) for each in above):
        if base is not object and any(hasattr(base, each) for each in {*methods} - perform.ALTERED):
            raise TypeError("a plain value that is another to some")
    asked = {each: _Asked(each) for each in ("__doc__", "__dict__")}
    return Remote(name, above, {**space, **asked, "__module__": "solution"}, peer=peer)


def made_of(kind: Any, peer: Any, number: int, *plain: Any) -> Any:
    """An object of a class of the other side, and of the plain value that it derives from.

    Raises:
        TypeError: not of the type that the class derives from.
    """
    base = _plain_type(kind)
    if any(type(value) is not base for value in plain):
        raise TypeError("another value than that of its class")
    return lives_at(base.__new__(kind, *plain), peer, number)


def lives_at(value: Any, peer: Any, number: int) -> Any:
    """Note where a value lives; the peer keeps it from now on."""
    _LINKS[id(value)] = Link(peer, number)
    return value


def asking(plain: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    """A function that looks into its argument, done where the argument lives."""

    def ask(value: Any, *args: Any, **kwargs: Any) -> Any:
        link = link_of(value)
        return plain(value, *args, **kwargs) if link is None else _ask(value, f"{module}.{name}", *args, **kwargs)

    return ask


def is_a(plain: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """`isinstance` and `issubclass` that ask the other side about classes that are not plain
    ones."""

    def ask(value: Any, kind: Any) -> bool:
        if type(kind) is tuple:
            return any(ask(value, each) for each in kind)
        if link_of(value) is None or link_of(kind) is not None or values.public_name(kind) is None:
            return plain(value, kind)
        return bool(_ask(value, "isinstance", kind))

    return ask
