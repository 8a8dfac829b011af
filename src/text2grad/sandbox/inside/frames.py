"""Frames on a pipe: four bytes of length, then JSON. Longer ones than the limit are refused on both sides."""

from __future__ import annotations

import json
import os
from typing import Any

FRAME_BYTES = 16 << 20
"""The longest frame that solution and tests may exchange, in bytes."""


_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


class Broken(Exception):
    """The other side closed its end, or sent what is no frame."""


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


def receive(descriptor: int, limit: int = FRAME_BYTES) -> Any:
    """Read one frame.

    Raises:
        Broken: the pipe ended, the frame is longer than `limit` bytes, or it is not JSON.
    """
    size = int.from_bytes(_exactly(descriptor, 4), "big")
    if size > limit:
        raise Broken(f"a frame of {size} bytes")
    try:
        return _DECODER.decode(_exactly(descriptor, size).decode())
    except (ValueError, RecursionError) as error:
        raise Broken("a frame that is not JSON") from error


def _exactly(descriptor: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.read(descriptor, min(size, 1 << 20))
        if not piece:
            raise Broken("the other side is gone")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
