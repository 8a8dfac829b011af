"""Doing what the other side asked to an object of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from codeverdict.inside import commit, operations
from codeverdict.inside.kinds import TESTS_MODULE, is_mock

_STEP_SECONDS = 0.002


@functools.cache
def _loop() -> Any:
    """One loop for all that is awaited: what an asynchronous object began in a loop, it can only end there."""
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def perform(op: str, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what the other side asked to an object of ours."""
    if op == "op":
        return _operate(target, name, args)
    if op not in _PERFORM:
        raise AttributeError(f"no operation {op}")
    return _PERFORM[op](target, name, args, kwargs)


_PERFORM: dict[str, Callable[[Any, str, Any, Any], Any]] = {
    "call": lambda target, name, args, kwargs: target(*args, **kwargs),
    "get": lambda target, name, args, kwargs: _SPECIAL.get(name, getattr)(target, name),
    "set": lambda target, name, args, kwargs: setattr(target, name, args[0]),
    "del": lambda target, name, args, kwargs: delattr(target, name),
    "start": lambda target, name, args, kwargs: _running_loop().create_task(_awaited(target, name, args)),
    "step": lambda target, name, args, kwargs: _stepped(target),
    "cancel": lambda target, name, args, kwargs: bool(target.cancel()),
    "result": lambda target, name, args, kwargs: target.result(),
    "isinstance": lambda target, name, args, kwargs: isinstance(args[0], target),
    "is_a": lambda target, name, args, kwargs: (issubclass if isinstance(target, type) else isinstance)(
        target, args[0]
    ),
    "issubclass": lambda target, name, args, kwargs: issubclass(args[0], target),
    "look": lambda target, name, args, kwargs: getattr(__import__(name.partition(".")[0]), name.partition(".")[2])(
        target
    ),
    "dir": lambda target, name, args, kwargs: dir(target),
    "pickled": lambda target, name, args, kwargs: _pickled_and_back(target),
    "commit": lambda target, name, args, kwargs: commit.commit(target, name),
    "copy": lambda target, name, args, kwargs: __import__("copy").copy(target),
    "deepcopy": lambda target, name, args, kwargs: __import__("copy").deepcopy(target),
}


def _operate(target: Any, name: str, args: tuple[Any, ...]) -> Any:
    if name not in operations.OPERATIONS:
        raise AttributeError(f"no operation {name}")
    if name == "__iter__":
        return iter(target)
    if name == "__contains__":
        return args[0] in target
    if isinstance(target, type) and name == "__getitem__":
        return target[args[0]]  # type: ignore[index]
    if isinstance(target, type) and name == "__len__":
        return len(target)  # type: ignore[arg-type]
    method = operations.special(type(target), name)
    if method is None:
        raise AttributeError(f"{type(target).__name__} has no {name}")
    return (method if is_mock(method) else method.__get__(target, type(target)))(*args)


def _running_loop() -> Any:
    """The loop that runs, or ours."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return _loop()


def _stepped(task: Any) -> bool:
    """Let a task go on for a moment; whether it has ended."""
    import asyncio

    loop = task.get_loop()
    if not task.done() and not loop.is_running():
        loop.run_until_complete(asyncio.wait({task}, timeout=_STEP_SECONDS))
    return bool(task.done())


def _pickled_and_back(value: Any) -> Any:
    import pickle

    return pickle.loads(pickle.dumps(value))


async def _awaited(target: Any, name: str, args: tuple[Any, ...]) -> Any:
    return await (getattr(target, name)(*args) if name else target)


def _fields(kind: Any, name: str) -> list[tuple[str, bool]]:
    return [
        (field.name, field.init) for field in getattr(kind, name).values() if field._field_type.name == "_FIELD"
    ]


def _signature(target: Any, name: str) -> list[Any]:
    """Name, kind, default and annotation of each parameter; of a default of the tests only that there is one."""
    import inspect

    try:
        found = inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise AttributeError(name) from error
    empty = inspect.Parameter.empty
    rows: list[Any] = [
        (each.name, int(each.kind), *_given(_default(each, target), empty), *_given(each.annotation, empty))
        for each in found.parameters.values()
    ]
    return [*rows, _given(found.return_annotation, empty)]


def _default(parameter: Any, target: Any) -> Any:
    of_tests = getattr(target, "__module__", "") == TESTS_MODULE
    return ... if of_tests and parameter.default is not parameter.empty else parameter.default


def _given(value: Any, empty: Any) -> tuple[bool, Any]:
    return (False, None) if value is empty else (True, value)


_SPECIAL: dict[str, Callable[[Any, str], Any]] = {
    "__dataclass_fields__": _fields,
    "__signature__": _signature,
    "__dict__": lambda target, name: dict(getattr(target, name)),
    "__annotations__": lambda target, name: dict(getattr(target, name, {})),
    "__members__": lambda target, name: dict(getattr(target, name)),
}
