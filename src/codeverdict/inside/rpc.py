"""Remote calls between a solution and its tests: requests, replies, and what may cross.

Strictly in turn: a side sends a request and serves the other side's requests until the reply comes (the tests
call the solution, which may call back). What a message carries is packed by values.py (by value), shared.py
(mutable containers) or as a handle, for which remote.py makes the stand-in.
"""

from __future__ import annotations

import _thread
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from codeverdict.inside import asked, classes, frames, kinds, perform, raised, remote, resumed, shared, values

_FUNCTIONS: tuple[type, ...] = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, functools.partial),
    type(functools.lru_cache(len)),
)
_CATCH_ASSERTIONS = (AssertionError, Exception, BaseException)
DEEP = 10_000  # frames of ours: values may be nested deeper than Python's limit lets a program recurse
_CAUSES = 8
_NOTHING = type(None)
_MAY_END = (("op", "__next__"), ("op", "__anext__"), ("call", ""), ("result", ""))
_REPLIES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("__len__", "__hash__", "__index__", "__int__", "__length_hint__"), (int, bool)),
    **dict.fromkeys(("__bool__", "__contains__"), (bool,)),
    **dict.fromkeys(("__str__", "__repr__", "__format__", "__fspath__"), (str,)),
    **dict.fromkeys(("__setitem__", "__delitem__"), (_NOTHING,)),
    **{"__float__": (float,), "__complex__": (complex,), "__bytes__": (bytes,), "__doc__": (str, _NOTHING)},
    **{"__annotations__": (dict,), "__dict__": (dict,), "__dataclass_fields__": (list,), "__signature__": (list,)},
}
_REPLIES_TO: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("isinstance", "issubclass", "is_a", "step", "cancel"), (bool,)),
    **dict.fromkeys(("set", "del", "seed", "begin", "environ", "chdir", "patch", "log"), (_NOTHING,)),
    **{"dir": (list,), "names": (list,), "lines": (list,), "start": (int,), "derive": (int,)},
    "commit": (list,),
}
"""What a request comes to, by the operation or attribute or by what is done, where it can be nothing else."""


def _fits(op: str, name: str, value: Any) -> bool:
    """Whether a reply is of a type that its request can have, exactly."""
    wanted = _REPLIES.get(name) if op in ("op", "get") else _REPLIES_TO.get(op)
    if wanted is None or type(value) not in wanted:
        return wanted is None
    return op != "commit" or all(_is_commitment(each) for each in value)


def _is_commitment(row: Any) -> bool:
    if type(row) is not tuple or len(row) != 2 or type(row[0]) is not str:
        return False
    said = row[1]
    return said is None or (type(said) is tuple and len(said) == 2 and values.is_plain(said[1]))


Unsupported = asked.Unsupported


class Gone(BaseException):
    """The other side ended, or broke the rules of the connection."""


class Peer:
    """One end of the connection.

    `guard(op, target, name, lent)` says whether the other side may do this to an object of ours (`lent`: a class
    that it was given as such, or an instance of one); the tests' end refuses nearly everything. `first` is 0 on one
    side and 1 on the other (numbers of shared containers).
    """

    def __init__(
        self, reader: int, writer: int, first: int, wary: bool, guard: Callable[[str, Any, str, bool], bool]
    ) -> None:
        self.wary = wary
        self.controls: dict[str, Callable[[Any], Any]] = {}
        self.asked = self.changes = 0
        self.to_raise: BaseException | None = None
        self._mirroring = False
        self.before: Callable[[], None] = lambda: None
        """Called before the other side is asked for anything."""
        self.swallowed: Callable[[Any], None] = lambda traceback: None
        """Called when the other side swallows an exception in a `with` block of ours."""
        self.came = 0
        """Replies so far that were more than a function or a class: what the other side has had a say in."""
        self.ran: dict[types.CodeType, list[Any]] = {}
        """Functions of ours that the other side called and that returned, with what they returned."""
        self.dropped: dict[int, BaseException] = {}
        """Failed assertions of ours that were sent to the other side and not raised again by it."""
        self.said: Callable[[], list[Any]] = list
        self.heard: Callable[[list[Any]], None] = lambda said: None
        self._turn: Any = _thread.RLock()
        self._main = _thread.get_ident()
        self.broken = ""
        self._reader, self._writer, self._guard = frames.Reader(reader), writer, guard
        self._objects: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._stand_ins: dict[int, Any] = {}
        self._lent: set[int] = set()  # classes of ours that the other side was given to work on
        self._given_by_name: set[tuple[str, str]] = set()
        self._named_tuples: dict[tuple[str, ...], type] = {}
        self._shared = shared.Table(first)

    # Messages

    def request(
        self, op: str, target: Any, name: str = "", args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Have the other side do `op` to an object of its own; what it gives or raises.

        One thread at a time; another one may ask while this one does something for the other side.

        Raises:
            Gone: the connection is broken.
        """
        if self.broken:
            raise Gone(self.broken)
        with self._turn:
            if not self._mirroring:
                self._mirroring = True
                self.before()
                self._mirroring = False
            message = self._asked(op, target, name, args, kwargs or {})
        self.asked += op != "commit"
        self.changes += op in ("call", "set", "del", "op", "start", "patch")
        if self.to_raise is not None:
            raised, self.to_raise = self.to_raise, None
            raise raised
        if "e" in message:
            self.came += 1
            error = self.read_error(message["e"])
            self.dropped.pop(id(error), None)
            if self.wary and isinstance(error, StopIteration) and (op, name) not in _MAY_END:
                raise RuntimeError(f"StopIteration out of {name or op}") from error
            if isinstance(error, SystemExit) and _thread.get_ident() != self._main:
                raise RuntimeError("the solution ended a thread of the tests") from error
            raise error
        value = message["v"]
        self.came += target is not None and not isinstance(value, remote.RemoteFunction | remote.RemoteMeta)
        if self.wary and not _fits(op, name, value):
            raise TypeError(f"{name or op} gave a {type(value).__name__}")
        return value

    def _asked(
        self, op: str, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        with _Deep():
            values = [self._packed_target(target), self._list(args), self._pairs(kwargs)]
        self.send({"do": op, "n": name, "v": values})
        del args, kwargs, values
        while "do" in (message := self.receive()):
            self.serve(message)
        return message

    def _packed_target(self, target: Any) -> Any:
        link = remote.link_of(target)
        return target if link is None else link.number

    def serve_forever(self) -> None:
        """Do what the other side asks until it is gone."""
        with self._turn:
            while True:
                self.serve(self.receive())

    def serve(self, message: dict[str, Any]) -> None:
        """Do what the other side asks, and reply. The turn, which is ours, is free for that long."""
        held = self._turn._release_save()
        try:
            result = self._perform(message)
            with _Deep():
                reply = {"v": self.pack(result)}
        except Gone:
            raise
        except Unsupported as error:
            reply = {"e": self.pack_error(TypeError(str(error)))}
        except BaseException as error:
            with _Deep():
                reply = {"e": self.pack_error(error)}
            error.__traceback__ = None  # its frames would keep arguments alive
        finally:
            self._turn._acquire_restore(held)
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
        target = self._mine(target)
        lent = id(target) in self._lent or id(type(target)) in self._lent
        if not self._guard(op, target, name, lent):
            raise AttributeError(f"{op} {name} is not allowed from here")
        if op == "set" and self.wary and _replaces_a_part(target, name, args[0]):
            raise AttributeError(f"{name} is an object of the tests")
        result = perform.perform(op, target, name, args, kwargs)
        if op == "call" and type(target) is types.FunctionType:
            self.ran.setdefault(target.__code__, []).extend((*args, *kwargs.values()))
        return self._export(result) if op == "start" else result

    def send(self, message: dict[str, Any]) -> None:
        """Send a message whose values are packed, with the changes to shared containers."""
        try:
            with _Deep():
                message["s"] = self._changes()
                message["d"] = self._shared.drop_unused()
                if said := self.said():
                    message["w"] = said
                frames.send(self._writer, message)
        except frames.Broken as error:
            self._break(str(error))

    def receive(self) -> dict[str, Any]:
        """The next message, its values unpacked and its changes to shared containers made."""
        try:
            with _Deep():
                message = self._reader.receive()
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
        said = message.pop("w", [])
        self.heard([each if type(each[0]) in (bool, int) else self._unpack_error(each) for each in said])
        result: dict[str, Any] = message
        return result

    def _changes(self) -> list[Any]:
        found: list[Any] = []
        for number, entry in self._shared.changed():
            found.append([number, shared.contents(entry.value, self.pack)])
            entry.agree()
        return found

    def _guarded(self, read: Callable[[], Any]) -> Any:
        """What is read from the other side's message; a message that makes no sense ends the connection."""
        try:
            with _Deep():
                return read()
        except (RecursionError, MemoryError) as error:
            self._break(f"a message that is too large ({type(error).__name__})")
        except (Exception, SystemExit) as error:  # whatever: the message is the other side's
            self._break(f"a message that makes no sense ({type(error).__name__})")

    def _break(self, reason: str) -> Any:
        self.broken = self.broken or reason
        raise Gone(self.broken)

    def derive(self, made: type, bases: tuple[type, ...], options: dict[str, Any]) -> None:
        """A class that we derived from one of the other side: have it made there too, with our methods."""
        ours = [base for base in made.__mro__ if remote.link_of(base) is None and kinds.of_the_tests(base)]
        members = {name: value for each in reversed(ours) for name, value in each.__dict__.items()}
        parents = tuple(base for base in bases if base not in ours)
        packed = [
            (name, *classes.member(value)) for name, value in members.items() if name not in classes.OF_A_CLASS
        ]
        number = self.request("derive", None, args=(made.__name__, parents, packed, options))
        if type(number) is not int:
            self._break("a class that is none")
        self._stand_ins[number] = made
        remote.adopt(self, number, made)

    def make_derived(self, name: str, bases: tuple[type, ...], members: list[Any], options: dict[str, Any]) -> int:
        """The class that the other side derived from one of ours; its number."""
        made = types.new_class(
            name,
            bases,
            options,
            lambda space: space.update({each: classes.member_of(*parts) for each, *parts in members}),
        )
        return self._export(made)

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
        if not (self.wary and kind is types.SimpleNamespace) and (parts := values.reduced(value)) is not None:
            return ["v", parts[0], *map(self.pack, parts[1])]
        if kind in values.VIEWS:
            return ["w", values.VIEWS[kind], *map(self.pack, value)]
        return self._pack_rest(value)

    def pack_module(self, module: types.ModuleType) -> Any:
        """A module of ours as a function that has its attributes: its class does not have to cross."""
        return ["f", self._export(module), module.__name__, False]

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
        if (hint := values.type_parts(value)) is not None:
            name, origin, args = hint
            return ["t", name, self.pack(origin), *map(self.pack, args)]
        if (fields := classes.plain_named_tuple(type(value))) is not None:
            return ["P", type(value).__name__, list(fields), *map(self.pack, value)]
        if isinstance(value, types.ModuleType) and self.wary:
            return ["m", value.__name__]
        if (public := self._name_of(value)) is not None and not any(value is each for each in _CATCH_ASSERTIONS):
            return ["n", *public]
        return self._pack_handle(value)

    def _name_of(self, value: Any) -> tuple[str, str] | None:
        """The name by which a type or function of the standard library crosses."""
        public = values.public_name(value) if callable(value) else None
        if public is None or not (self.wary or public in self._given_by_name or values.handed_out(*public, value)):
            return None
        if self.wary:
            self._given_by_name.add(public)
        return public

    def _pack_error_class(self, kind: type) -> Any:
        public = self._name_of(kind)
        return ["n", *public] if public is not None else self.pack(kind)

    def _pack_handle(self, value: Any) -> Any:
        if isinstance(value, types.TracebackType):
            return None  # leads to frames
        if isinstance(value, type):
            self._lent.add(id(value))
            return self._pack_class(value)
        if isinstance(value, _FUNCTIONS):
            name = str(getattr(value, "__name__", "function"))
            return ["f", self._export(value), name, type(value) is types.FunctionType]
        if isinstance(value, BaseException):
            return ["x", self.pack_error(value)]
        if self.wary and not kinds.crosses_as_handle(value):
            return self._pickled(value)
        return self._pack_instance(value)

    def _pack_instance(self, value: Any) -> Any:
        if (tag := kinds.RESUMED.get(type(value))) is not None:
            return [tag, self._export(value), self._pack_class(type(value))]
        known = id(value) in self._numbers
        packed = ["o", self._export(value), self._pack_class(type(value))]
        base = values.base_of(type(value))
        if known or not base:
            return packed
        if (tag := shared.CONTAINERS.get(values.base_named(base))) is not None:
            return ["u", *packed[1:], *self._pack_container(value, tag)]
        return [*packed, self.pack(values.plain(value, base))]

    def _pickled(self, value: Any) -> Any:
        """Tests may send objects of the standard library as pickles: the solution has nothing to protect."""
        import pickle

        if kinds.is_array(value) and any(remote.link_of(each) is not None for each in value.flat):
            raise TypeError("an array of objects of the solution")
        if type(value).__module__.partition(".")[0] in ("asyncio", "queue", "_queue"):
            raise asked.ByNature(f"a {type(value).__name__} that both sides would wait at")
        if type(value).__module__.partition(".")[0] not in values.KNOWN:
            raise Unsupported(f"a {type(value).__module__}.{type(value).__name__} cannot cross to the solution")
        try:
            return ["p", pickle.dumps(value, protocol=4).decode("latin-1")]
        except (TypeError, ValueError, AttributeError, pickle.PicklingError, RecursionError) as error:
            raise Unsupported(f"a {type(value).__name__} cannot cross to the solution") from error

    def _pack_class(self, kind: type) -> Any:
        if remote.link_of(kind) is not None:
            return self._pack_rest(kind)
        if id(kind) in self._numbers:
            return ["c", self._numbers[id(kind)]]
        number = self._export(kind)
        bases = [self._pack_error_class(base) for base in kind.__bases__ if self._base_is_kept(base)]
        base = values.base_of(kind)
        plain = values.base_named(base) if base else object
        return [
            "c",
            number,
            kind.__name__,
            bases,
            classes.operations_of(kind, plain),
            base,
            classes.own_names(kind, plain),
        ]

    def _base_is_kept(self, base: type) -> bool:
        return issubclass(base, BaseException) or values.public_name(base) is None

    def _export(self, value: Any) -> int:
        key: Any = id(value)
        if type(value) is types.MethodType:  # made anew at every look, and equal to the one before
            key = id(value.__self__), id(value.__func__)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._objects)
            self._objects.append(value)
        return number

    def pack_error(self, error: BaseException, depth: int = 0) -> Any:
        """An exception: class, arguments, text, the solution's last line it passed through, its handle, its own
        attributes, notes, and what it came from."""
        if (link := remote.link_of(error)) is not None:
            return ["M", link.number]
        if isinstance(error, AssertionError | remote.Told) and raised.line_of(error) is None:
            self.dropped[id(error)] = error
        args = [self._packed_argument(arg) for arg in error.args]
        known = values.public_name(type(error)) is not None
        own = {name: value for name, value in vars(error).items() if known and not name.startswith("_")}
        came_from = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        source = None if came_from is None or depth > _CAUSES else self.pack_error(came_from, depth + 1)
        more = [
            [[str(name), self._packed_argument(value)] for name, value in own.items()],
            [str(note) for note in getattr(error, "__notes__", ())],
            [error.__cause__ is not None, source] if source is not None else None,
            error.__suppress_context__,
        ]
        return [
            self._pack_error_class(type(error)),
            args,
            raised.text_of(error),
            raised.solution_line(error) or 0,
            self._export(error),
            more,
        ]

    def _packed_argument(self, value: Any) -> Any:
        try:
            return self.pack(value)
        except Unsupported:
            return repr(value)[: raised.TEXT_LIMIT]

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
        self._fill_new(value, int(number), [] if tag == "A" else packed)
        return value

    def _fill_new(self, value: Any, number: int, packed: list[Any]) -> None:
        """Share a new container of the other side; what is put into it may ask that side, which may drop it."""
        self._shared.add(value, number)
        entry = self._shared[number]
        if packed:
            shared.fill(value, packed, self.unpack)
        entry.agree()

    def _unpack_value(self, parts: list[Any]) -> Any:
        return values.made(parts[0], *map(self.unpack, parts[1:]))

    def _unpack_array_scalar(self, parts: list[Any]) -> Any:
        made = values.array_from(*parts)
        return made[()] if made.shape == () else made

    def _unpack_named_tuple(self, parts: list[Any]) -> Any:
        name, fields, *items = parts
        key = (str(name), *map(str, fields))
        if key not in self._named_tuples:
            self._named_tuples[key] = classes.named_tuple(key[0], key[1:])
        return self._named_tuples[key](*map(self.unpack, items))

    def _unpack_class(self, parts: list[Any]) -> Any:
        number = int(parts[0])
        if number not in self._stand_ins:
            _, name, bases, operations, base, names = parts
            known = [self._unpack_error_class(each) for each in bases if each[0] in ("c", "n")]
            kept = tuple(each for each in known if isinstance(each, type))
            plain = values.base_named(base) if base else None
            own = [each for each in names if type(each) is str]
            self._stand_ins[number] = remote.make_class(self, number, str(name), kept, operations, plain, own)
        return self._stand_ins[number]

    def _unpack_function(self, parts: list[Any]) -> Any:
        number = int(parts[0])
        if number not in self._stand_ins:
            self._stand_ins[number] = remote.function(self, number, str(parts[1]), parts[2] is True)
        return self._stand_ins[number]

    def _unpack_instance(self, parts: list[Any]) -> Any:
        number, kind = int(parts[0]), self.unpack(parts[1])
        if number in self._stand_ins:
            remote.seen_again(self._stand_ins[number])
        else:
            value = self.unpack(parts[2]) if len(parts) > 2 else None
            self._stand_ins[number] = remote.instance(self, number, kind, value)
        return self._stand_ins[number]

    def _unpack_container_instance(self, parts: list[Any]) -> Any:
        number, kind, tag, place, made_with, packed = parts
        made = remote.instance(self, int(number), self.unpack(kind))
        if shared.CONTAINERS.get(shared.base_of(made)) != tag:
            raise ValueError("contents of another container")
        self._stand_ins[int(number)] = made
        shared.prepare(made, tag, self.unpack(made_with) if tag == "E" else made_with)
        self._fill_new(made, int(place), packed)
        return made

    def _unpack_generator(self, parts: list[Any]) -> Any:
        return resumed.generator(self._unpack_instance(parts))

    def _unpack_async_generator(self, parts: list[Any]) -> Any:
        return resumed.async_generator(self, self._unpack_instance(parts))

    def _unpack_coroutine(self, parts: list[Any]) -> Any:
        return resumed.coroutine(self, self._unpack_instance(parts))

    def _unpack_module(self, name: str) -> Any:
        if self.wary:
            raise ValueError("a module from the solution is not taken by name")
        return values.named_module(name)

    def _unpack_name(self, module: str, name: str) -> Any:
        """A type or function of the standard library. The tests take back those that they gave, and the types of
        plain values."""
        if not self.wary:
            self._given_by_name.add((module, name))
        known = not self.wary or (module, name) in self._given_by_name
        found = values.by_name(module, name, not known)
        if not known and any(found is each for each in _CATCH_ASSERTIONS):
            raise ValueError(f"{name} is not handed out")
        return found

    def _unpack_error_class(self, packed: Any) -> Any:
        """The class of an exception, or a base of one: here it catches nothing."""
        if packed[0] == "n":
            return values.by_name(str(packed[1]), str(packed[2]), self.wary)
        return self.unpack(packed)

    def _unpack_mine(self, parts: list[Any]) -> Any:
        return self._mine(parts[0])

    def _mine(self, number: Any) -> Any:
        if type(number) is not int or number < 0:
            raise ValueError("no number of an object")
        return self._objects[number]

    def _unpack_pickle(self, parts: list[Any]) -> Any:
        if self.wary:
            raise ValueError("a pickle from the solution is not read")
        import pickle

        return pickle.loads(parts[0].encode("latin-1"))

    def _unpack_error(self, packed: Any) -> BaseException:
        if packed[0] == "M":
            mine: BaseException = self._mine(packed[1])
            if not isinstance(mine, BaseException):
                raise ValueError("not an exception")
            return mine
        kind, args, text, line, number, more = packed
        cls: Any = self._unpack_error_class(kind)
        unpacked = tuple(map(self.unpack, args))
        if not (isinstance(cls, type) and issubclass(cls, BaseException)) or issubclass(cls, Gone | Unsupported):
            raise ValueError("not an exception")
        if isinstance(cls, remote.RemoteMeta):
            if int(number) not in self._stand_ins:
                self._stand_ins[int(number)] = remote.error(self, int(number), cls, unpacked, str(text))
            made: BaseException = self._stand_ins[int(number)]
        elif self.wary and packed[0][0] != "n":
            raise ValueError("an exception of the tests")
        else:
            made = raised.rebuilt(cls, unpacked)
        object.__setattr__(made, raised.LINE, int(line))
        self._unpack_more(made, *more)
        return made

    def _unpack_more(
        self, error: BaseException, own: list[Any], notes: list[str], source: Any, suppressed: bool
    ) -> None:
        """Restore what an exception had beside its arguments."""
        for name, value in own:
            if not str(name).startswith("_"):
                error.__dict__.setdefault(str(name), self.unpack(value))
        if notes:
            object.__setattr__(error, "__notes__", [str(note) for note in notes])
        if source is not None:
            is_cause, packed = source
            came_from = self._unpack_error(packed)
            error.__context__ = came_from
            if is_cause:
                error.__cause__ = came_from
        error.__suppress_context__ = suppressed is True


_UNPACK: dict[str, Callable[[Peer, list[Any]], Any]] = {
    "i": lambda peer, parts: int(parts[0], 16),
    "T": lambda peer, parts: tuple(map(peer.unpack, parts)),
    "F": lambda peer, parts: frozenset(map(peer.unpack, parts)),
    "b": lambda peer, parts: parts[0].encode("latin-1"),
    "v": Peer._unpack_value,
    "w": lambda peer, parts: values.view_of(parts[0], [peer.unpack(part) for part in parts[1:]]),
    "R": lambda peer, parts: peer._shared[int(parts[0])].value,
    "M": Peer._unpack_mine,
    "n": lambda peer, parts: peer._unpack_name(str(parts[0]), str(parts[1])),
    "m": lambda peer, parts: peer._unpack_module(str(parts[0])),
    "a": Peer._unpack_array_scalar,
    "P": Peer._unpack_named_tuple,
    "t": lambda peer, parts: values.type_from(parts[0], *map(peer.unpack, parts[1:])),
    "c": Peer._unpack_class,
    "f": Peer._unpack_function,
    "o": Peer._unpack_instance,
    "u": Peer._unpack_container_instance,
    "g": Peer._unpack_generator,
    "h": Peer._unpack_async_generator,
    "k": Peer._unpack_coroutine,
    "p": Peer._unpack_pickle,
    "x": lambda peer, parts: peer._unpack_error(parts[0]),
    **{
        tag: (lambda peer, parts, tag=tag: peer._unpack_container(tag, parts))  # type: ignore[misc]
        for tag in [*shared.KINDS, "A"]
    },
}


def _replaces_a_part(target: Any, name: str, value: Any) -> bool:
    """Whether an object of the tests' own classes would give way to one of the solution."""
    current = getattr(target, "__dict__", {}).get(name)
    return kinds.of_the_tests(current) and remote.link_of(value) is not None


class _Deep:
    """Room for deeply nested values, without changing the recursion limit that programs see."""

    __slots__ = ("_limit",)

    def __enter__(self) -> None:
        self._limit = sys.getrecursionlimit()
        if self._limit < DEEP:
            sys.setrecursionlimit(DEEP)

    def __exit__(self, *_: object) -> None:
        if self._limit < DEEP:
            sys.setrecursionlimit(self._limit)
