"""Generators and coroutines of the other side, as real ones of this."""

from __future__ import annotations

import functools
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from codeverdict.inside.asked import Asker


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


async def async_generator(peer: Asker, stand_in: Any) -> AsyncGenerator[Any, Any]:
    """A real asynchronous generator that passes everything on to one of the other side."""
    name: str = "__anext__"
    args: tuple[Any, ...] = ()
    while True:
        try:
            item = await coroutine(peer, stand_in, name, args)
        except StopAsyncIteration:
            return
        try:
            sent = yield item
        except GeneratorExit:
            await coroutine(peer, stand_in, "aclose")
            raise
        except BaseException as thrown:
            name, args = "athrow", (thrown,)
        else:
            name, args = ("__anext__", ()) if sent is None else ("asend", (sent,))


async def coroutine(peer: Asker, stand_in: Any, name: str = "", args: tuple[Any, ...] = ()) -> Any:
    """A real coroutine: what is awaited runs in a loop of the other side, a little each time this one is resumed.

    Awaited is the object, or what its method `name` gives.
    """
    import asyncio

    task = peer.request("start", stand_in, name, args)
    try:
        while not peer.request("step", task):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        peer.request("cancel", task)
        peer.request("step", task)  # lets it end what it was doing
        raise
    try:
        return peer.request("result", task)
    except asyncio.CancelledError as error:  # nobody here asked for that; groups of tasks would pass over it
        raise RuntimeError("what was awaited cancelled itself") from error


GENERATOR = types.GeneratorType
COROUTINE = types.CoroutineType
ASYNC_GENERATOR = types.AsyncGeneratorType
