"""Stand-ins for objects of the other side: its classes, instances, functions, exceptions.

A stand-in asks the other side for what it does. Where the tests hold one (`peer.wary`), what comes back must not
have been made up by a program that was shown what is wanted:

- Compared with a plain value, the other side first says which value its object stands for (`_compared`); the
  comparison is made here, and it never learns with what.
- A number, text or truth that it computed from an object and a plain value of the tests (`f(x) - 9`) is refused,
  and so is what it says afterwards of the result: that stand-in is `told`. Instances that the tests make themselves
  from a class (`Vector(1, 2) * 3`) are exempt: there the operand is an input.
- A stand-in whose class derives from a plain type (an IntEnum, a subclass of list) is an instance of that type here
  too, with the value that came over, and is compared by it.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

from codeverdict.inside import commit, operations, resumed, values
from codeverdict.inside.asked import Asker, ByNature

TESTS_MODULE = "tests"


class Link:
    """Which object of the other side a stand-in stands for.

    `base` is the plain type its class derives from, if any. `said`: the value it stands for in comparisons, and how
    many requests there had been. `told`: it was computed with a plain value (0, SOFT, HARD). `declared`: a class
    that the tests know as one, and by no other name (`aliased`); `made`: an instance that the tests made from one.
    `capital`: taken by a name that begins with a capital letter; `constructed`: given by a call of such a class.
    `resumes`: a method that goes on with an iteration, and may end it.
    """

    __slots__ = (
        *("aliased", "base", "capital", "constructed", "declared", "made", "number", "peer", "resumes", "said"),
        *("stand_in", "told"),
    )

    def __init__(self, peer: Asker, number: int, stand_in: Any, base: type | None = None) -> None:
        self.peer, self.number, self.stand_in, self.base = peer, number, stand_in, base
        self.told = 0
        self.declared = self.aliased = self.made = self.resumes = self.capital = self.constructed = False
        self.said: tuple[int, Any] | None = None


_links: dict[int, Link] = {}


def _link(peer: Asker, number: int, stand_in: Any, base: type | None = None) -> Any:
    _links[id(stand_in)] = Link(peer, number, stand_in, base)
    return stand_in


def link_of(value: Any) -> Link | None:
    """The link of a stand-in, None for any other value."""
    return _links.get(id(value))


def forget() -> None:
    """There are no stand-ins any more."""
    _links.clear()


def seen_again(value: Any) -> None:
    """Note that the other side handed out an object that was there: it is not one that the tests just made."""
    link = link_of(value)
    if link is not None:
        link.made = link.constructed = False


def declare(value: Any, name: str, as_class: bool) -> Any:
    """Note that the tests took this value by a name, and whether they use that name as one of a class."""
    link = link_of(value)
    if link is not None:
        link.capital = name[:1].isupper() and "_" not in name
        link.aliased = link.aliased or not as_class
        link.declared = not link.aliased
    return value


def _linked(value: Any) -> Link:
    link = link_of(value)
    if link is None:
        raise AttributeError("this stand-in stands for nothing")
    return link


class Told(TypeError):
    """The solution was shown a value of the tests; what it says now proves nothing."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} of an object that was computed with a plain value cannot be trusted")


def _ask_attribute(value: Any, name: str) -> Any:
    if name.startswith("_cdv") or (name[:2] == "__" and name not in operations.READABLE):
        raise AttributeError(name)
    link = _linked(value)
    if link.peer.wary and name.startswith("assert_"):
        raise AttributeError(f"{name}: a solution makes no assertions")
    if link.told and (name in operations.READABLE or name in _value_names()):
        raise Told(name)
    found = link.peer.request("get", value, name)
    if name == "__signature__":
        return _signature_of(found)
    got = link_of(found)
    if link.told == operations.HARD:
        if got is None:
            raise Told(name)
        got.told = operations.HARD
    if got is not None:
        got.resumes = name in operations.RESUMING
    if got is not None and link.peer.wary:
        got.made = False  # an object that the other side hands out; the tests have not made it
        if name in operations.ASKS_ABOUT and isinstance(value, Remote) and not link.made:
            got.told = operations.HARD
        if isinstance(found, RemoteMeta) and not isinstance(value, RemoteFunction):
            declare(found, name, isinstance(value, RemoteMeta) and link.declared and name[:1].isupper())
    return found


@functools.cache
def _value_names() -> frozenset[str]:
    """Public attributes of plain values: `days`, `real`, `max` ..."""
    import datetime
    import decimal
    import fractions
    import sys

    kinds: list[Any] = [int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range, datetime.date]
    kinds += [datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction]
    np = sys.modules.get("numpy")
    kinds += [np, np.ndarray] if np is not None else []
    return frozenset(name for kind in kinds for name in dir(kind) if not name.startswith("_"))


def _call(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Have the other side call what a stand-in stands for."""
    link = _linked(value)
    try:
        result = link.peer.request("call", value, "", args, kwargs)
    except (StopIteration, StopAsyncIteration) as error:
        if link.resumes:
            raise
        raise RuntimeError(f"{type(error).__name__} out of a call") from error  # else it ends a loop of the tests
    got = link_of(result)
    if link.told and (got is None or got.base is not None):
        raise Told("the answer")
    if got is not None:
        got.told = max(got.told, link.told)
        got.constructed = link.capital and isinstance(value, RemoteMeta) and type(result) is value
        got.made = link.declared and got.constructed
    return result


class RemoteMeta(abc.ABCMeta):
    """The type of stand-ins for classes; and of classes that the tests derive from one."""

    def __new__(mcls, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any) -> Any:
        made = type.__new__(mcls, name, bases, space)
        parent = next(link for link in map(link_of, made.__mro__[1:]) if link is not None)
        parent.peer.derive(made, bases, options)
        _links[id(made)].declared = True
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **options: Any) -> None:
        type.__init__(cls, name, bases, space)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _call(cls, args, kwargs)

    def __getattribute__(cls, name: str) -> Any:
        if name in _OF_THE_CLASS and link_of(cls) is not None:
            return _ask_attribute(cls, name)
        return type.__getattribute__(cls, name)

    def __getattr__(cls, name: str) -> Any:
        return _fields_of(cls) if name == "__dataclass_fields__" else _ask_attribute(cls, name)

    def __dir__(cls) -> list[str]:
        return [*type.__dir__(cls), *_directory(cls)]

    def __instancecheck__(cls, value: Any) -> bool:
        return type.__instancecheck__(cls, value) or _is_one(value, cls, "isinstance")

    def __subclasscheck__(cls, value: Any) -> bool:
        return type.__subclasscheck__(cls, value) or _is_one(value, cls, "issubclass")

    def __setattr__(cls, name: str, value: Any) -> None:
        if (name.startswith("__") and name not in operations.OPERATIONS) or link_of(cls) is None:
            type.__setattr__(cls, name, value)
        else:
            _linked(cls).peer.request("set", cls, name, (value,))

    def __delattr__(cls, name: str) -> None:
        _linked(cls).peer.request("del", cls, name)

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


_OF_THE_CLASS = ("__doc__", "__annotations__", "__init__")  # else every class finds those of `type` and `object`


def _is_one(value: Any, cls: type, question: str) -> bool:
    """Whether an object or class of the other side, or of a class of ours, is one of `cls` to it (protocols,
    registered classes)."""
    known = link_of(value) is not None or type(value).__module__ == TESTS_MODULE
    return known and _linked(cls).peer.request(question, cls, "", (value,)) is True


def _directory(value: Any) -> list[str]:
    return [str(name) for name in _linked(value).peer.request("dir", value)]


def _readable(name: str) -> Any:
    return property(lambda value: _ask_attribute(value, name))


class Remote:
    """A stand-in for an instance."""

    __dict__ = _readable("__dict__")

    def __getattr__(self, name: str) -> Any:
        if name == "__mro_entries__":  # `class Child(Base[int])`
            origin = _linked(self).peer.request("get", self, "__origin__")
            return lambda bases: (origin,)
        return _fields_of(type(self)) if name == "__dataclass_fields__" else _ask_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _linked(self).peer.request("set", self, name, (value,))

    def __delattr__(self, name: str) -> None:
        _linked(self).peer.request("del", self, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object of the other side>"

    def __copy__(self) -> Any:
        return _linked(self).peer.request("copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return _linked(self).peer.request("deepcopy", self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return unpickled, (_linked(self).number,)

    def __dir__(self) -> list[str]:
        return _directory(self)


def unpickled(number: int) -> Any:
    """What the other side makes of the pickle of an object of its own."""
    stand_in = next(link.stand_in for link in _links.values() if link.number == number)
    return _linked(stand_in).peer.request("pickled", stand_in)


class RemoteError(Remote):
    """What a stand-in for an exception has besides: its text, without asking again."""

    __setattr__ = object.__setattr__  # type: ignore[assignment]
    __delattr__ = object.__delattr__
    __repr__ = BaseException.__repr__

    def __str__(self) -> str:
        return str(self._cdv_text)


class RemoteFunction:
    """A stand-in for a function."""

    __doc__ = _readable("__doc__")
    __module__ = "solution"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return _ask_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_cdv"):  # a mark of a test that the solution decorated
            self.__dict__[name] = value
        else:
            _linked(self).peer.request("set", self, name, (value,))

    def __delattr__(self, name: str) -> None:
        _linked(self).peer.request("del", self, name)

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __dir__(self) -> list[str]:
        return _directory(self)


class RemoteMethod(RemoteFunction):
    # A stand-in for a function written in Python.
    __doc__ = _readable("__doc__")

    def __get__(self, target: Any, owner: Any = None) -> Any:
        return self if target is None else functools.partial(self, target)


def _fields_of(cls: type) -> dict[str, Any]:
    """The fields of a dataclass of the other side, as `dataclasses` wants them."""
    import dataclasses

    found = {}
    for name, init in _linked(cls).peer.request("get", cls, "__dataclass_fields__"):
        field: Any = dataclasses.field(init=init is True)
        field.name, field.type, field._field_type = str(name), Any, dataclasses._FIELD  # type: ignore[attr-defined]
        found[field.name] = field
    return found


def _signature_of(rows: list[Any]) -> Any:
    """A signature, of which the other side tells name, kind, default and annotation of each parameter."""
    import inspect

    *parameters, result = rows
    empty = inspect.Parameter.empty
    made = [
        inspect.Parameter(
            str(name), inspect._ParameterKind(kind), default=a if has_a else empty, annotation=b if has_b else empty
        )
        for name, kind, has_a, a, has_b, b in parameters
    ]
    return inspect.Signature(made, return_annotation=result[1] if result[0] else empty)


def is_instance(value: Any, kinds: Any) -> bool:
    """`isinstance` that asks the other side about its objects where the class says nothing of values (an Enum, an
    abstract class)."""
    link = link_of(value)
    if isinstance(value, kinds) or link is None or link.told:
        return isinstance(value, kinds)
    asked = [kind for kind in (kinds if isinstance(kinds, tuple) else (kinds,)) if _says_nothing_of_values(kind)]
    return any(link.peer.request("is_a", value, "", (kind,)) for kind in asked)


def is_subclass(value: Any, kinds: Any) -> bool:
    """The same for `issubclass`."""
    link = link_of(value)
    if issubclass(value, kinds) or link is None:
        return issubclass(value, kinds)
    asked = [kind for kind in (kinds if isinstance(kinds, tuple) else (kinds,)) if _says_nothing_of_values(kind)]
    return any(link.peer.request("is_a", value, "", (kind,)) for kind in asked)


def _says_nothing_of_values(kind: Any) -> bool:
    module = getattr(kind, "__module__", "")
    return (
        isinstance(kind, type) and link_of(kind) is None and module in ("enum", "abc", "collections.abc", "typing")
    )


# Making them


def function(peer: Asker, number: int, name: str, binds: bool) -> RemoteFunction:
    """The stand-in for a function of the other side; one that `binds` is a method where it stands in a class."""
    made = RemoteMethod() if binds else RemoteFunction()
    made.__dict__.update({"__name__": name, "__qualname__": name})
    _link(peer, number, made)
    return made


def instance(peer: Asker, number: int, kind: Any, value: Any = None) -> Any:
    """The stand-in for an instance of a class that has a stand-in; with its plain value if the class has a base."""
    if not isinstance(kind, RemoteMeta):
        raise ValueError("an instance of no class of the other side")
    base = _linked(kind).base
    if base is None:
        return _link(peer, number, object.__new__(kind))  # type: ignore[arg-type]
    return _link(peer, number, values.instance_of(kind, base, value), base)


def error(peer: Asker, number: int, kind: Any, args: tuple[Any, ...], text: str) -> BaseException:
    """The stand-in for an exception whose class has a stand-in."""
    made: BaseException = kind.__new__(kind)
    made.args = args
    object.__setattr__(made, "_cdv_text", text)
    return _link(peer, number, made)  # type: ignore[no-any-return]


def adopt(peer: Asker, number: int, made: type) -> None:
    """A class that the tests derived from a stand-in has its counterpart on the other side."""
    base = values.base_of(made)
    _link(peer, number, made, values.base_named(base) if base else None)


def make_class(
    peer: Asker,
    number: int,
    name: str,
    bases: tuple[type, ...],
    own: list[str],
    base: type | None,
    names: list[str],
) -> type:
    """The stand-in for a class. Of its bases, stand-ins and exceptions are kept, and the plain type `base`; `names`
    are the public attributes that it has of its own where that type has others."""
    kept = tuple(each for each in bases if isinstance(each, RemoteMeta) or issubclass(each, BaseException))
    errors = any(issubclass(each, BaseException) for each in kept)
    space: dict[str, Any] = {"__module__": "solution"}
    for operation in operations.OPERATIONS.intersection(own):
        if not (errors and operation in ("__str__", "__repr__")):
            space[operation] = _passed_on(operation)
    if base is not None:
        space |= {each: _readable(each) for each in names if not each.startswith("_")}
        for plain in ("__repr__", "__str__"):
            space.setdefault(plain, getattr(base, plain))
        if base.__hash__ is not None:
            space["__hash__"] = base.__hash__
    if base is None and not errors:
        space.setdefault("__bool__", _truth)
    if "__eq__" in space:
        space.setdefault("__hash__", None)
    elif base is None:
        space.pop("__hash__", None)  # what is equal to itself alone, as here
    root: type = RemoteError if errors else Remote
    kept = kept if any(issubclass(each, root) for each in kept) else (root, *kept)
    if base is not None and not any(issubclass(each, base) for each in kept):
        kept = (*kept, base)
    try:
        made = type.__new__(RemoteMeta, name, kept, space)
    except TypeError:  # bases whose layouts do not go together
        made = type.__new__(RemoteMeta, name, (RemoteError, Exception) if errors else (Remote,), space)
    return _link(peer, number, made, base)  # type: ignore[no-any-return]


def _truth(self: Any) -> bool:
    """The truth of an object whose class does not say what it is."""
    link = _linked(self)
    if link.told == operations.HARD and link.peer.wary:
        raise Told("__bool__")
    return len(self) > 0 if operations.special(type(self), "__len__") is not None else True


def _passed_on(operation: str) -> Callable[..., Any]:
    if operation in operations.AWAITED:

        async def wait(self: Any, *args: Any) -> Any:
            result = await resumed.coroutine(_linked(self).peer, self, operation, args)
            if operation == "__aexit__" and result and args[1] is not None:
                _linked(self).peer.swallowed(args[2])
            return result

        return wait
    if operation == "__await__":
        return lambda self: resumed.coroutine(_linked(self).peer, self).__await__()

    if operation == "__call__":
        return lambda self, *args, **kwargs: _call(self, args, kwargs)

    def ask(self: Any, *args: Any) -> Any:
        link = _linked(self)
        if not link.peer.wary:
            return link.peer.request("op", self, operation, args)
        return _ask_warily(link, self, operation, args)

    ask.__name__ = operation
    return ask


def _ask_warily(link: Link, self: Any, operation: str, args: tuple[Any, ...]) -> Any:
    plain = any(_may_be_wanted(arg) for arg in args)
    if operation in operations.COMPARISONS and link_of(args[0]) is None:
        return _compared(link, self, operation, args[0])
    if (
        plain
        and link.base is not None
        and not link.made
        and operation in operations.ARITHMETIC
        and hasattr(link.base, operation)
    ):
        return getattr(link.base, operation)(self, *args)
    if not link.made and (operation in operations.CONTENTS or (plain and operation in operations.ARITHMETIC)):
        if link.base is not None and (own := getattr(link.base, operation, None)) is not None:
            return own(self, *args)
        if plain and operation == "__contains__" and not link.constructed:
            return any(item is args[0] or item == args[0] for item in self)  # what it has, not what it says
    if link.told and operation not in operations.ARITHMETIC | operations.SIGNS | operations.COMPARISONS.keys():
        raise Told(operation)
    made = link.made
    result = link.peer.request("op", self, operation, args)
    if result is self and operation in operations.GIVES_ITSELF:
        link.made = made
    if operation == "__exit__" and result and args[1] is not None:
        link.peer.swallowed(args[2])
    if operation in operations.ARITHMETIC | operations.SIGNS and result is not NotImplemented:
        _mark(link, args, operation, result)
    elif (got := link_of(result)) is not None and operation not in operations.GIVES_ITSELF:
        got.made = False
    return result


def _may_be_wanted(value: Any) -> bool:
    """Whether a value may be what a test wants: one of its own that is no function."""
    return link_of(value) is None and not callable(value)


def _weight(operation: str, args: tuple[Any, ...]) -> int:
    """How much a solution learns of what is wanted from the plain operand of an operator: 0, SOFT or HARD."""
    if operation in operations.FREE or (operation in operations.RATIOS and type(args[0]) is str):
        return 0
    return operations.SOFT if operation in operations.RATIOS else operations.HARD


def _mark(link: Link, args: tuple[Any, ...], operation: str, result: Any) -> None:
    """Note, of the result of arithmetic, whether the solution knew a value of the tests when it made it.

    Raises:
        Told: it did, and gives a plain value.
    """
    got, others = link_of(result), [link_of(arg) for arg in args if not callable(arg)]
    if link.made and all(other is None or other.made for other in others):
        if got is not None:
            got.made = True
        return
    if None in others or link.told or any(other is not None and other.told for other in others):
        if got is None or got.base is not None:
            raise Told(operation)
        got.told = max(link.told, _weight(operation, args))
    if got is not None:
        got.made = got.made and operation in operations.GIVES_ITSELF


def _compared(link: Link, self: Any, operation: str, other: Any) -> Any:
    """A stand-in against a plain value: by the value that the other side says it stands for, or not at all."""
    if not link.told and other is not None:
        said = _said(link, self, operation, other)
        if said is not None and said[0]:
            return operations.COMPARISONS[operation](said[1], other)
        if said is None and link.made and link.base is None:
            return _compared_there(link, self, operation, other)
    if link.base is None or link.told:
        return NotImplemented
    return getattr(link.base, operation)(self, other)


def _said(link: Link, self: Any, operation: str, other: Any) -> tuple[bool, Any] | None:
    """What the other side commits to (`commit`), for a value of this type. It stands until the tests ask for
    something else: an object is not smaller than everything at one moment and larger at the next."""
    kind = type(other).__name__ if type(other) in commit.PROBED else ""
    if link.said is not None and link.said[0] == link.peer.changes and kind in link.said[1]:
        return True, link.said[1][kind]
    answers = dict(link.peer.request("commit", self, operation))
    link.said = link.peer.changes, {name: said[1] for name, said in answers.items() if said is not None and said[0]}
    found: tuple[bool, Any] | None = answers.get(kind)
    return found


def _compared_there(link: Link, self: Any, operation: str, other: Any) -> Any:
    """An instance that the tests made, of a class that makes something of a comparison (a filter, a column), or
    wants more of the value than to compare it.

    Raises:
        ByNature: it says whether it is equal, having been told with what.
    """
    result = link.peer.request("op", self, operation, (other,))
    got = link_of(result)
    if got is not None and got.base is None:
        got.made = True
        return result
    others = [link.peer.request("op", self, operation, (decoy,)) for decoy in _decoys(operation, other)]
    if others and all(each == result for each in others):
        return NotImplemented  # it says the same of everything
    raise ByNature(f"tests that compare a {type(self).__name__} with a {type(other).__name__}")


def _decoys(operation: str, value: Any) -> list[Any]:
    """Values of the type of another, of which a comparison that means something says something else."""
    if type(value) in (int, float):
        return [value + 1, value - 1] if operation in ("__eq__", "__ne__") else [-(10**18), 10**18]
    if type(value) is str and operation in ("__eq__", "__ne__"):
        return [value + "x", "x" + value]
    if type(value) in (list, tuple) and operation in ("__eq__", "__ne__"):
        return [value + type(value)((None,))]
    return [not value] if type(value) is bool else []


class Parent:
    """`super()` in a class that the tests derived from a stand-in: what the class above has, for this object."""

    __slots__ = ("_cls", "_target")

    def __init__(self, cls: type, self_or_class: Any) -> None:
        self._cls, self._target = cls, self_or_class

    def __getattribute__(self, name: str) -> Any:
        cls, target = object.__getattribute__(self, "_cls"), object.__getattribute__(self, "_target")
        owner = target if isinstance(target, type) else type(target)
        for base in owner.__mro__[owner.__mro__.index(cls) + 1 :]:
            if (link := link_of(base)) is not None:
                return functools.partial(link.peer.request("get", base, name), target)
            if name in base.__dict__:
                break
        return getattr(super(cls, target), name)
