"""Frames on a pipe: four bytes of length, then JSON. Longer ones than the limit are refused on both sides."""

from __future__ import annotations

import json
import os
from typing import Any

FRAME_BYTES = 16 << 20
"""The longest frame that solution and tests may exchange, in bytes."""

JOB_BYTES = 64 << 20
"""The longest frame that may carry a program or its tests."""


_PIECE_BYTES = 1 << 16
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


class Broken(Exception):
    """The other side closed its end, or sent something that is not a frame."""


class TooLong(Exception):
    """A frame of ours would be longer than the limit."""


def framed(message: Any) -> bytes:
    """A message as a frame."""
    body = _ENCODER.encode(message).encode()
    return len(body).to_bytes(4, "big") + body


def send(descriptor: int, message: Any) -> None:
    """Write one frame.

    Raises:
        TooLong: it would be longer than FRAME_BYTES; nothing was written.
        Broken: nobody reads any more.
    """
    body = framed(message)
    if len(body) > FRAME_BYTES:
        raise TooLong(f"{len(body)} bytes in one value")
    data = memoryview(body)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError as error:
        raise Broken("the other side is gone") from error


class Reader:
    """Reads frames from a pipe, as much at a time as there is."""

    __slots__ = ("_descriptor", "_rest")

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, b""

    def receive(self, limit: int = FRAME_BYTES) -> Any:
        """The next frame.

        Raises:
            Broken: the pipe ended, the frame is longer than `limit` bytes, or it is not JSON.
        """
        size = int.from_bytes(self._exactly(4), "big")
        if size > limit:
            raise Broken(f"a frame of {size} bytes")
        try:
            return _DECODER.decode(self._exactly(size).decode())
        except (ValueError, RecursionError) as error:
            raise Broken("a frame that is not JSON") from error

    def _exactly(self, size: int) -> bytes:
        pieces, have = [self._rest], len(self._rest)
        while have < size:
            piece = os.read(self._descriptor, max(_PIECE_BYTES, min(size - have, 1 << 20)))
            if not piece:
                raise Broken("the other side is gone")
            pieces.append(piece)
            have += len(piece)
        data = b"".join(pieces)
        self._rest = data[size:]
        return data[:size]


def receive(descriptor: int, limit: int = FRAME_BYTES) -> Any:
    """Read one frame from a pipe that nothing more is read from. Raises as `Reader.receive` does."""
    return Reader(descriptor).receive(limit)


def receive_once(descriptor: int) -> Any:
    """Read the one frame that a process of a job begins with, and close the pipe."""
    message = receive(descriptor, JOB_BYTES)
    os.close(descriptor)
    return message
