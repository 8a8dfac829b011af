"""Proxies for objects of the other side: each remote class and its instances have a local one.

A proxy class has exactly the special methods of the remote class, so that `callable`, `isinstance`
and missing operators behave as they do there. Operations are forwarded to the side where the object
lives.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

from codeverdict.inside import perform, values


class Link(NamedTuple):
    """The location of a remote object: the other end of a `Peer`, and its number there."""

    peer: Any
    number: int


_LINKS: dict[int, Link] = {}  # by identity: an object with a link is kept by its peer forever
_CONSTRUCTED: set[int] = set()
_MEASURED: set[int] = set()
_COMPUTED: set[int] = set()
_PLAIN_VALUES: dict[
    int, Any
] = {}  # whether an object was first compared as a value, and as which if it cannot change
_LOOKED_FOR = (
    "__array__ __array_interface__ __array_struct__ __array_ufunc__ __test__ __bases__ _mock_name "
    "_pytestfixturefunction __pytest_wrapped__"
)
_NOT_ASKED = frozenset(_LOOKED_FOR.split())
"""Attributes that pytest and numpy look up on every object."""


def link_of(value: Any) -> Link | None:
    """Return the location of a remote object; None for a local value."""
    return _LINKS.get(id(value))


def of_class(value: Any) -> Any:
    """Mark a class of the solution, an instance the tests made of it, or a part of that.

    Such an object may be combined with plain values, which are its ingredients and not expected
    results.
    """
    if id(value) in _LINKS:
        _CONSTRUCTED.add(id(value))
    return value


class Remote(type):
    """The metaclass of proxy classes."""

    def __new__(meta, name: str, bases: tuple[type, ...], space: dict[str, Any], peer: Any = None) -> Any:
        """Create a proxy class; without `peer`, a test derives from one, which is refused."""
        if peer is None:
            link = next(link for base in bases if (link := link_of(base)) is not None)
            link.peer.refuse("a class derived from one of the other side", True)
        return super().__new__(meta, name, bases, space)

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        instance = _ask(cls, "__call__", *args, **kwargs)
        return of_class(instance) if id(cls) in _CONSTRUCTED else instance

    def __getattr__(cls, name: str) -> Any:
        if name in _NOT_ASKED or id(cls) not in _LINKS:
            raise AttributeError(name)
        value = _ask(cls, "get", name)
        return of_class(value) if id(cls) in _CONSTRUCTED else value

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
        value = _ask(cls, "__getitem__", key)
        return of_class(value) if id(cls) in _CONSTRUCTED else value


class Object:
    """The base class of proxy instances."""

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
    """Return True for an attribute of the plain value that an object derives from."""
    return isinstance(value, perform.BASES) and hasattr(_plain_type(type(value)), name)


def _plain_type(kind: type) -> Any:
    return next((base for base in kind.__mro__ if base in perform.BASES), object)


class _RemoteAttribute:
    """A forwarded attribute that Python defines on every class."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, one: Any, kind: Any) -> Any:
        return _ask(kind if one is None else one, "get", self._name)


_OF_ERRORS = ("with_traceback", "add_note", "_cdv_line")


def _ask(target: Any, do: str, /, *args: Any, **kwargs: Any) -> Any:
    return _LINKS[id(target)].peer.request(do, target, args, kwargs)


def _forward(do: str) -> Callable[..., Any]:
    return lambda self, *args: _ask(self, do, *args)


def _operation(name: str) -> Callable[..., Any]:
    """Return a special method that is forwarded to the other side."""

    def operate(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _operate(self, name, args, kwargs)

    operate.__name__ = name
    return operate


def _operate(self: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    peer = _LINKS[id(self)].peer
    if name == "__call__":
        result = peer.request(name, self, args, kwargs)
        return of_class(result) if id(self) in _CONSTRUCTED else result
    if name in perform.AWAITED:
        return awaited(self, name, args)
    if peer.wary and name in perform.COMPARISONS and id(args[0]) not in _LINKS:
        return _compare(self, name, args[0])
    if peer.wary and name in perform.ARITHMETIC and args and id(args[0]) not in _LINKS:
        return _compute(self, name, args)
    if id(self) in _MEASURED and name in perform.SCALARS:
        return peer.refuse(f"{name} of the result of an object and a plain value", True)
    if name == "__exit__":
        swallows = peer.request(name, self, (*args[:2], None))
        return _report_swallowed(peer, args[1], swallows)
    result = peer.request(name, self, args)
    return of_class(result) if name in perform.ARITHMETIC and id(self) in _CONSTRUCTED else result


def _compute(self: Any, name: str, args: tuple[Any, ...]) -> Any:
    """Apply an arithmetic operator to an object and a plain value.

    Operators that measure one value against the other are allowed only for objects made by the
    tests, and only if the result is not a plain value: the operand must be an ingredient.
    """
    peer, is_made = _LINKS[id(self)].peer, id(self) in _CONSTRUCTED
    measures = name in perform.MEASURES and not isinstance(args[0], str | bytes)
    begins = name == "__radd__" and type(args[0]) in (int, float) and args[0] != 0
    if (measures or begins) and not is_made:
        return peer.refuse(f"{name} of an object and a plain value", False)
    result = peer.request(name, self, args)
    if measures and id(result) not in _LINKS:
        return peer.refuse(f"{name} of an object and a plain value, to a plain value", True)
    if id(result) in _LINKS:  # the id of a plain value may soon be reused
        (_MEASURED if measures else _COMPUTED).add(id(result))
    return of_class(result) if is_made else result


def _compare(self: Any, name: str, other: Any) -> Any:
    """Compare an object with a local value, decided here by the plain value it reports."""
    peer = _LINKS[id(self)].peer
    if type(other).__name__ == "_ANY" and type(other).__module__ == "unittest.mock":
        return NotImplemented
    if peer.lenient and (name not in ("__eq__", "__ne__") or id(self) in _CONSTRUCTED):
        return bool(peer.request(name, self, (other,)))
    is_plain, plain = peer.request("plain", self) or (None, None)
    answer = (is_plain, plain if is_plain and type(plain).__hash__ is not None else None)
    if _PLAIN_VALUES.setdefault(id(self), answer) != answer:
        return peer.refuse(f"an object of {type(self).__name__} whose value has changed", True)
    if is_plain is True and link_of(plain) is None:
        return perform.COMPARISONS[name](plain, other)
    if name in ("__eq__", "__ne__"):
        differs = name == "__ne__"
        unknown = is_plain is False and (plain is None or type(other).__name__ in plain)
        if unknown or (other is None and peer.request(name, self, (None,)) is differs):
            return differs
    by_nature = id(self) in _CONSTRUCTED or id(self) in _COMPUTED
    return peer.refuse(f"{name} of an object of {type(self).__name__} and a plain value", by_nature)


def _await(self: Any) -> Any:
    return awaited(self).__await__()


async def awaited(target: Any, name: str = "", args: tuple[Any, ...] = ()) -> Any:
    """Await an object, or the result of its special method, where it lives."""
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
    return _report_swallowed(peer, error, peer.request("item" if name == "__anext__" else "result", task))


def _report_swallowed(peer: Any, error: Any, result: Any) -> Any:
    """Report an exception that the end of a `with` block swallowed, and return its result."""
    if error is not None and result:
        peer.swallowed(error)
    return result


def _bind(self: Any, one: Any, kind: Any = None) -> Any:
    return self if one is None else types.MethodType(self, one)


for _name in ("__repr__", "__iter__", "__reversed__", "__len__", "__contains__"):
    setattr(Remote, _name, _operation(_name))
for _name, _do in (("__delattr__", "del"), ("__dir__", "dir"), ("__copy__", "__copy__"), ("__setattr__", "set")):
    setattr(Remote, _name, _forward(_do))
    if _do != "set":  # exceptions keep some attributes locally
        setattr(Object, _name, _forward(_do))

_METHODS = {**{name: _operation(name) for name in perform.OPERATIONS}, "__await__": _await, "__get__": _bind}


def make_class(peer: Any, name: str, bases: tuple[type, ...], methods: list[str]) -> Any:
    """Create the proxy class of a remote class.

    Raises:
        KeyError, TypeError: a base or method is not allowed.
    """
    above = bases if any(issubclass(base, Object) for base in bases) else (Object, *bases)
    space: dict[str, Any] = {method: _METHODS[method] for method in methods}
    for base in (_plain_type(base_class) for base_class in above):
        if base is not object and any(hasattr(base, method) for method in {*methods} - perform.ALTERED):
            raise TypeError("a plain value that is another to some")
    attributes = {attribute: _RemoteAttribute(attribute) for attribute in ("__doc__", "__dict__")}
    return Remote(name, above, {**space, **attributes, "__module__": "solution"}, peer=peer)


def make_object(kind: Any, peer: Any, number: int, *plain: Any) -> Any:
    """Create a proxy instance, with the plain value that it derives from, if any.

    Raises:
        TypeError: the plain value is not of the type that the class derives from.
    """
    base = _plain_type(kind)
    if any(type(value) is not base for value in plain):
        raise TypeError("another value than that of its class")
    return lives_at(base.__new__(kind, *plain), peer, number)


def lives_at(value: Any, peer: Any, number: int) -> Any:
    """Record where a value lives; the peer keeps it alive from now on."""
    _LINKS[id(value)] = Link(peer, number)
    return value


def asking(plain: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    """Wrap a function that inspects its argument, so that it runs where the argument lives."""

    def ask(value: Any, *args: Any, **kwargs: Any) -> Any:
        link = link_of(value)
        return plain(value, *args, **kwargs) if link is None else _ask(value, f"{module}.{name}", *args, **kwargs)

    return ask


def is_a(plain: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Wrap `isinstance` or `issubclass` to ask the other side about public classes."""

    def ask(value: Any, kind: Any) -> bool:
        if type(kind) is tuple:
            return any(ask(value, member) for member in kind)
        if link_of(value) is None or link_of(kind) is not None or values.public_name(kind) is None:
            return plain(value, kind)
        return bool(_ask(value, "isinstance", kind))

    return ask
