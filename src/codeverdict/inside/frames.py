"""Frames on a pipe: four bytes of length, then JSON. Longer ones than the limit are refused on both sides."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO

FRAME_BYTES = 16 << 20
"""The longest frame that solution and tests may exchange, in bytes."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


class Broken(Exception):
    """The other side closed its end, or sent something that is not a frame."""


class TooLong(Exception):
    """A frame of ours would be longer than the limit."""


def send(descriptor: int, message: Any) -> None:
    """Write one frame.

    Raises:
        TooLong: it would be longer than FRAME_BYTES; nothing was written.
        Broken: nobody reads any more.
    """
    body = _ENCODER.encode(message).encode()
    if len(body) > FRAME_BYTES:
        raise TooLong(f"{len(body)} bytes in one value")
    data = memoryview(len(body).to_bytes(4, "big") + body)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError as error:
        raise Broken("the other side is gone") from error


def receive(pipe: BinaryIO) -> Any:
    """The next frame.

    Raises:
        Broken: the pipe ended, the frame is longer than FRAME_BYTES, or it is not JSON.
    """
    size = int.from_bytes(head := pipe.read(4), "big")
    if size > FRAME_BYTES:
        raise Broken(f"a frame of {size} bytes")
    body = pipe.read(size)
    if len(head) + len(body) < 4 + size:
        raise Broken("the other side is gone")
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise Broken("a frame that is not JSON") from error


def held(message: Any) -> bytes:
    """A message that lies in a file, by itself."""
    return _ENCODER.encode(message).encode()


def read_once(descriptor: int) -> Any:
    """The message that a process of a job begins with; closes its file."""
    with open(descriptor, "rb") as file:
        return _DECODER.decode(file.read().decode())
