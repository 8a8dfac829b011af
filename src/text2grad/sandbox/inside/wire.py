"""The two ends of the wire between a solution and its tests: requests, replies, and what may cross.

Strictly in turn: a side sends a request and serves the other side's requests until the reply comes (the tests
call the solution, which may call back). What a message carries is packed by values.py (by value), shared.py
(mutable containers) or as a handle, for which remote.py makes the stand-in.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

from text2grad.sandbox.inside import frames, remote, shared, values

TEXT_LIMIT = 2000
SOLUTION_FILE = "<solution>"
LINE = "_t2g_line"
"""Attribute of an exception that came over the wire: the last solution line it passed through, or 0."""

_FUNCTIONS: tuple[type, ...] = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, functools.partial),
    type(functools.lru_cache(len)),
)
_BY_VALUE = (tuple, frozenset, bytes)


class Unsupported(BaseException):
    """The tests use what cannot cross to the solution: no verdict."""


class Gone(BaseException):
    """The other side ended, or broke the rules of the wire."""


class Peer:
    """One end of the wire.

    `guard(op, target, name)` says whether the other side may do this to an object of ours; the tests' end refuses
    nearly everything. `first` is 0 on one side and 1 on the other (numbers of shared containers).
    """

    def __init__(
        self, reader: int, writer: int, first: int, wary: bool, guard: Callable[[str, Any, str], bool]
    ) -> None:
        self.wary = wary
        self.controls: dict[str, Callable[[Any], Any]] = {}
        self.broken = ""
        self._reader, self._writer, self._guard = reader, writer, guard
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._stand_ins: dict[int, Any] = {}
        self._named_tuples: dict[tuple[str, ...], type] = {}
        self._shared = shared.Table(first)

    # Messages

    def request(
        self, op: str, target: Any, name: str = "", args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Have the other side do `op` to an object of its own; what it gives or raises.

        Raises:
            Gone: the wire is broken.
        """
        if self.broken:
            raise Gone(self.broken)
        packed = {
            "do": op,
            "n": name,
            "v": [self._packed_target(target), self._list(args), self._pairs(kwargs or {})],
        }
        self.send(packed)
        del args, kwargs
        while True:
            message = self.receive()
            if "do" not in message:
                break
            self.serve(message)
        if "e" in message:
            raise self.read_error(message["e"])
        return message["v"]

    def _packed_target(self, target: Any) -> Any:
        link = remote.link_of(target)
        return target if link is None else link.number

    def serve(self, message: dict[str, Any]) -> None:
        """Do what the other side asks, and reply."""
        try:
            reply = {"v": self.pack(self._perform(message))}
        except (Gone, Unsupported):
            raise
        except BaseException as error:
            reply = {"e": self.pack_error(error)}
            error.__traceback__ = None  # its frames would keep arguments alive
        message.clear()
        try:
            self.send(reply)
        except frames.TooLong as error:
            self.send({"e": self.pack_error(ValueError(str(error)))})

    def _perform(self, message: dict[str, Any]) -> Any:
        op, name = message["do"], message["n"]
        target, args, kwargs = message["v"]
        if op in self.controls:
            return self.controls[op](args)
        target = self._objects[target]
        if not self._guard(op, target, name):
            raise AttributeError(f"{op} {name} is not allowed from here")
        return perform(op, target, name, args, kwargs)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message whose values are packed, with the changes to shared containers."""
        message["s"] = self._changes()
        message["d"] = self._shared.drop_unused()
        try:
            frames.send(self._writer, message)
        except frames.Broken as error:
            self._break(str(error))

    def receive(self) -> dict[str, Any]:
        """The next message, its values unpacked and its changes to shared containers made."""
        try:
            message = frames.receive(self._reader)
        except frames.Broken as error:
            self._break(str(error))
        taken: dict[str, Any] = self._guarded(lambda: self._taken_in(message))
        return taken

    def read_error(self, packed: Any) -> BaseException:
        """The exception in a message."""
        error: BaseException = self._guarded(lambda: self._unpack_error(packed))
        return error

    def _taken_in(self, message: Any) -> dict[str, Any]:
        if "do" in message:
            target, args, kwargs = message["v"]
            pairs = {self.unpack(key): self.unpack(value) for key, value in kwargs}
            message["v"] = [target, tuple(self.unpack(arg) for arg in args), pairs]
        elif "v" in message:
            message["v"] = self.unpack(message["v"])
        elif "e" not in message:
            raise ValueError("neither request nor reply")
        for number, packed in message.pop("s"):
            entry = self._shared[number]
            shared.fill(entry.value, packed, self.unpack)
            entry.agree()
        for number in message.pop("d"):  # last: what is new may be dropped at once
            self._shared.drop(number)
        result: dict[str, Any] = message
        return result

    def _changes(self) -> list[Any]:
        found: list[Any] = []
        for number, entry in self._shared.changed():
            found.append([number, shared.contents(entry.value, self.pack)])
            entry.agree()
        return found

    def _guarded(self, read: Callable[[], Any]) -> Any:
        """What is read from the other side's message; a message that makes no sense ends the wire."""
        try:
            return read()
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            OverflowError,
            ArithmeticError,
        ) as error:
            self._break(f"a message that makes no sense ({type(error).__name__})")
        except (RecursionError, MemoryError) as error:
            self._break(f"a message that is too large ({type(error).__name__})")

    def _break(self, reason: str) -> Any:
        self.broken = self.broken or reason
        raise Gone(self.broken)

    # Packing

    def pack(self, value: Any) -> Any:
        """A value as JSON.

        Raises:
            Unsupported: it can cross neither by value nor as a handle (only where `wary`).
        """
        kind = type(value)
        if kind in values.SCALARS:
            return value
        if kind is int:
            return value if -values.SMALL_INT < value < values.SMALL_INT else ["i", hex(value)]
        if kind is tuple:
            return ["T", *map(self.pack, value)]
        if tag := shared.tag_of(value):
            return self._pack_container(value, tag)
        if kind is frozenset:
            return ["F", *map(self.pack, value)]
        if kind is bytes:
            return ["b", value.decode("latin-1")]
        if (parts := values.reduced(value)) is not None:
            return ["v", parts[0], *map(self.pack, parts[1])]
        if kind in values.VIEWS:
            return ["w", values.VIEWS[kind], *map(self.pack, value)]
        return self._pack_rest(value)

    def pack_module(self, module: types.ModuleType) -> Any:
        """A module of ours as a function that has its attributes: its class does not have to cross."""
        return ["f", self._export(module), module.__name__]

    def _pack_container(self, value: Any, tag: str) -> Any:
        number = self._shared.number_of(value)
        if number is not None:
            return ["R", number]
        number = self._shared.add(value)
        packed = [tag, number, shared.extra(value, self.pack), shared.contents(value, self.pack)]
        self._shared[number].agree()
        return packed

    def _pack_rest(self, value: Any) -> Any:
        if (parts := values.array_parts(value)) is not None:
            return ["a", *parts]
        if (link := remote.link_of(value)) is not None:
            return ["M", link.number]
        if value is Ellipsis or value is NotImplemented:
            return ["n", "builtins", "Ellipsis" if value is Ellipsis else "NotImplemented"]
        if (fields := _plain_named_tuple(type(value))) is not None:
            return ["P", type(value).__name__, list(fields), *map(self.pack, value)]
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in values.KNOWN:
            return ["m", value.__name__]
        public = values.public_name(value) if callable(value) else None
        if public is not None and (self.wary or values.handed_out(*public, value)):
            return ["n", *public]
        return self._pack_handle(value)

    def _pack_handle(self, value: Any) -> Any:
        if isinstance(value, types.TracebackType):
            return None  # leads to frames
        if isinstance(value, type):
            return self._pack_class(value)
        if isinstance(value, _FUNCTIONS):
            return ["f", self._export(value), str(getattr(value, "__name__", "function"))]
        if isinstance(value, BaseException):
            return ["x", self.pack_error(value)]
        if self.wary and not _crosses_as_handle(value):
            return self._pickled(value)
        tag = "g" if type(value) is remote.GENERATOR else "k" if type(value) is remote.COROUTINE else "o"
        return [tag, self._export(value), self._pack_class(type(value))]

    def _pickled(self, value: Any) -> Any:
        """Tests may send objects of the standard library as pickles: the solution has nothing to lose."""
        import pickle

        if type(value).__module__.partition(".")[0] not in values.STDLIB:
            raise Unsupported(f"a {type(value).__module__}.{type(value).__name__} cannot cross to the solution")
        try:
            return ["p", pickle.dumps(value, protocol=4).decode("latin-1")]
        except (TypeError, ValueError, AttributeError, pickle.PicklingError, RecursionError) as error:
            raise Unsupported(f"a {type(value).__name__} cannot cross to the solution") from error

    def _pack_class(self, kind: type) -> Any:
        if isinstance(kind, remote.RemoteMeta):
            return self._pack_rest(kind)
        if id(kind) in self._numbers:
            return ["c", self._numbers[id(kind)]]
        number = self._export(kind)
        bases = [self.pack(base) for base in kind.__bases__ if self._base_is_kept(base)]
        return ["c", number, kind.__name__, bases, _operations(kind)]

    def _base_is_kept(self, base: type) -> bool:
        return issubclass(base, BaseException) or values.public_name(base) is None

    def _export(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return number

    def pack_error(self, error: BaseException) -> Any:
        """An exception: class, arguments, text, the solution's last line it passed through, and its handle."""
        if (link := remote.link_of(error)) is not None:
            return ["M", link.number]
        args = [self._packed_argument(arg) for arg in error.args]
        return [self.pack(type(error)), args, _text(error), solution_line(error) or 0, self._export(error)]

    def _packed_argument(self, value: Any) -> Any:
        try:
            return self.pack(value)
        except Unsupported:
            return repr(value)[:TEXT_LIMIT]

    def _list(self, items: tuple[Any, ...]) -> list[Any]:
        return [self.pack(item) for item in items]

    def _pairs(self, items: dict[str, Any]) -> list[Any]:
        return [[self.pack(key), self.pack(value)] for key, value in items.items()]

    # Unpacking

    def unpack(self, packed: Any) -> Any:
        """The value behind JSON of the other side.

        Raises:
            ValueError, TypeError, LookupError: the other side sent nonsense.
        """
        if type(packed) in values.SCALARS or type(packed) is int:
            return packed
        tag, *parts = packed
        return _UNPACK[tag](self, parts)

    def _unpack_container(self, tag: str, parts: list[Any]) -> Any:
        number, made_with, packed = parts
        factory = self.unpack(made_with) if tag == "E" else made_with
        value = shared.empty(tag, factory, packed)
        self._shared.add(value, int(number))
        if tag != "A":
            shared.fill(value, packed, self.unpack)
        self._shared[number].agree()
        return value

    def _unpack_value(self, parts: list[Any]) -> Any:
        return values.made(parts[0], *map(self.unpack, parts[1:]))

    def _unpack_array_scalar(self, parts: list[Any]) -> Any:
        made = values.array_from(*parts)
        return made[()] if made.shape == () else made

    def _unpack_named_tuple(self, parts: list[Any]) -> Any:
        name, fields, *items = parts
        key = (str(name), *map(str, fields))
        if key not in self._named_tuples:
            self._named_tuples[key] = _named_tuple(key[0], key[1:])
        return self._named_tuples[key](*map(self.unpack, items))

    def _unpack_class(self, parts: list[Any]) -> Any:
        number = int(parts[0])
        if number not in self._stand_ins:
            _, name, bases, operations = parts
            kept = tuple(base for base in map(self.unpack, bases) if isinstance(base, type))
            self._stand_ins[number] = remote.make_class(self, number, str(name), kept, list(operations))
        return self._stand_ins[number]

    def _unpack_function(self, parts: list[Any]) -> Any:
        number = int(parts[0])
        if number not in self._stand_ins:
            self._stand_ins[number] = remote.function(self, number, str(parts[1]))
        return self._stand_ins[number]

    def _unpack_instance(self, parts: list[Any]) -> Any:
        number, kind = int(parts[0]), self.unpack(parts[1])
        if number not in self._stand_ins:
            self._stand_ins[number] = remote.instance(self, number, kind)
        return self._stand_ins[number]

    def _unpack_generator(self, parts: list[Any]) -> Any:
        return remote.generator(self._unpack_instance(parts))

    def _unpack_coroutine(self, parts: list[Any]) -> Any:
        return remote.coroutine(self, self._unpack_instance(parts))

    def _unpack_mine(self, parts: list[Any]) -> Any:
        return self._objects[int(parts[0])]

    def _unpack_pickle(self, parts: list[Any]) -> Any:
        if self.wary:
            raise ValueError("a pickle from the solution is not read")
        import pickle

        return pickle.loads(parts[0].encode("latin-1"))

    def _unpack_error(self, packed: Any) -> BaseException:
        if packed[0] == "M":
            mine: BaseException = self._objects[int(packed[1])]
            if not isinstance(mine, BaseException):
                raise ValueError("not an exception")
            return mine
        kind, args, text, line, number = packed
        cls: Any = self.unpack(kind)
        unpacked = tuple(map(self.unpack, args))
        if not (isinstance(cls, type) and issubclass(cls, BaseException)) or issubclass(cls, Gone | Unsupported):
            raise ValueError("not an exception")
        if isinstance(cls, remote.RemoteMeta):
            if int(number) not in self._stand_ins:
                self._stand_ins[int(number)] = remote.error(self, int(number), cls, unpacked, str(text))
            made: BaseException = self._stand_ins[int(number)]
        else:
            made = _rebuilt(cls, unpacked)
        made.__dict__[LINE] = int(line)
        return made


_UNPACK: dict[str, Callable[[Peer, list[Any]], Any]] = {
    "i": lambda peer, parts: int(parts[0], 16),
    "T": lambda peer, parts: tuple(map(peer.unpack, parts)),
    "F": lambda peer, parts: frozenset(map(peer.unpack, parts)),
    "b": lambda peer, parts: parts[0].encode("latin-1"),
    "v": Peer._unpack_value,
    "w": lambda peer, parts: values.view_of(parts[0], [peer.unpack(part) for part in parts[1:]]),
    "R": lambda peer, parts: peer._shared[int(parts[0])].value,
    "M": Peer._unpack_mine,
    "n": lambda peer, parts: values.by_name(str(parts[0]), str(parts[1]), peer.wary),
    "m": lambda peer, parts: values.named_module(str(parts[0])),
    "a": Peer._unpack_array_scalar,
    "P": Peer._unpack_named_tuple,
    "c": Peer._unpack_class,
    "f": Peer._unpack_function,
    "o": Peer._unpack_instance,
    "g": Peer._unpack_generator,
    "k": Peer._unpack_coroutine,
    "p": Peer._unpack_pickle,
    "x": lambda peer, parts: peer._unpack_error(parts[0]),
    **{
        tag: (lambda peer, parts, tag=tag: peer._unpack_container(tag, parts))  # type: ignore[misc]
        for tag in [*shared.KINDS, "A"]
    },
}


def perform(op: str, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what the other side asked to an object of ours."""
    if op == "call":
        return target(*args, **kwargs)
    if op == "get":
        return getattr(target, name)
    if op == "set":
        return setattr(target, name, args[0])
    if op == "del":
        return delattr(target, name)
    if op == "await":
        import asyncio

        return asyncio.run(target)
    if op != "op" or name not in remote.OPERATIONS:
        raise AttributeError(f"no operation {op} {name}")
    if name == "__iter__":
        return iter(target)
    if name == "__contains__":
        return args[0] in target
    if isinstance(target, type) and name == "__getitem__":
        return target[args[0]]  # type: ignore[index]
    method = remote.special(type(target), name)
    if method is None:
        raise AttributeError(f"{type(target).__name__} has no {name}")
    return method.__get__(target, type(target))(*args)


def solution_line(error: BaseException) -> int | None:
    """The last line of the solution that an exception passed through, from 1."""
    if LINE in getattr(error, "__dict__", {}):
        return int(error.__dict__[LINE]) or None
    if isinstance(error, SyntaxError) and error.filename == SOLUTION_FILE:
        return error.lineno
    found, passed = None, error.__traceback__
    while passed is not None:
        if passed.tb_frame.f_code.co_filename == SOLUTION_FILE:
            found = passed.tb_lineno
        passed = passed.tb_next
    return found


def _text(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_LIMIT]
    except Exception:
        return ""


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception of a class of the standard library, whatever its constructor wants."""
    try:
        return kind(*args)
    except Exception:
        made = kind.__new__(kind)
        made.args = args
        return made


_OF_OBJECT = object.__dict__


def _operations(kind: type) -> list[str]:
    """The special methods of a class that `object` does not have, and those it does otherwise."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found.update({name: base.__dict__[name] for name in remote.OPERATIONS.intersection(base.__dict__)})
    kept = {name: method for name, method in found.items() if method is not _OF_OBJECT.get(name)}
    return sorted(name for name, method in kept.items() if method is not None)


def _plain_named_tuple(kind: type) -> tuple[str, ...] | None:
    """The fields of a class that `namedtuple` made and nobody added to."""
    fields = getattr(kind, "_fields", None)
    if kind.__bases__ != (tuple,) or not isinstance(fields, tuple):
        return None
    own = {*fields, *_NAMED_TUPLE_OWN}
    return (
        fields if set(kind.__dict__) <= own and remote.special(kind, "__eq__") is tuple.__dict__["__eq__"] else None
    )


def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


_NAMED_TUPLE_OWN = {*_named_tuple("Empty", ()).__dict__, "__annotations__", "__orig_bases__"}

TESTS_MODULE = "tests"


def of_the_tests(value: Any) -> bool:
    """Whether a value is an instance of a class that the tests define."""
    return type(value).__module__ == TESTS_MODULE


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of the language: a generator, a map, a file is none."""
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")


def _crosses_as_handle(value: Any) -> bool:
    return of_the_tests(value) or is_iterator(value)
