"""Frames between solution and tests, and packets between a server and its caller.

A frame is four bytes of length, then JSON; both sides refuse frames above the limit. A packet has a
small JSON message and descriptors of a job's files. The server receives nothing else of a job. Its
processes read program and tests from these files after the fork, so that later processes cannot
find them in inherited memory.
"""

from __future__ import annotations

import json
import os
import select
import socket
from _blake2 import blake2b  # not from hashlib: every job inherits what a server imports
from typing import Any, BinaryIO

FRAME_BYTES = 16 << 20
"""Maximum size of a frame between solution and tests, in bytes."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


class Broken(Exception):
    """The other side closed its end or sent an invalid frame."""


class TooLong(Exception):
    """A frame to send exceeds the limit."""


def send(descriptor: int, message: Any) -> None:
    """Write one frame.

    Raises:
        TooLong: it would exceed FRAME_BYTES; nothing was written.
        Broken: the other side has closed its end.
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
    """Read one frame.

    Raises:
        Broken: the pipe ended, the frame exceeds FRAME_BYTES, or it is not JSON.
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
    """Encode a message for a separate file."""
    return _ENCODER.encode(message).encode()


def read_once(descriptor: int) -> Any:
    """Read the first message of a job's process and close its file."""
    with open(descriptor, "rb") as file:
        return _DECODER.decode(file.read().decode())


KEY_BYTES = 16


class Seal:
    """Writes or reads the lines of a verdict: JSON after a keyed digest of line number and JSON."""

    def __init__(self, key: bytes) -> None:
        self._key, self._lines = key, 0

    def line(self, message: Any) -> bytes:
        """Return the next line with a message."""
        return self._sealed(_ENCODER.encode(message).encode())

    def message(self, line: bytes) -> Any:
        """Return the message in the next line.

        Raises:
            ValueError: the line was written without the key, or it is out of order.
        """
        body = line[2 * KEY_BYTES : -1]
        if self._sealed(body) != line:
            raise ValueError("a line without its seal")
        return _DECODER.decode(body.decode())

    def _sealed(self, body: bytes) -> bytes:
        self._lines += 1
        digest = blake2b(b"%d " % self._lines + body, key=self._key, digest_size=KEY_BYTES)
        return digest.hexdigest().encode() + body + b"\n"


PACKET_BYTES = 1 << 17
_MOST_DESCRIPTORS = 8


class Closed(Exception):
    """The other side has closed the connection."""


class Channel:
    """One end of a SOCK_SEQPACKET pair."""

    def __init__(self, descriptor: int) -> None:
        """Take ownership of a descriptor."""
        self._socket = socket.socket(fileno=descriptor)
        self.descriptor = descriptor
        """The descriptor, for polling."""

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send one packet.

        Raises:
            Closed: the other side has closed the connection.
        """
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            raise Closed(error.strerror) from error

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """Receive the next packet and its descriptors.

        Raises:
            Closed: the connection is closed, or nothing came within `seconds`.
        """
        if seconds is not None and not self.waits(seconds):
            raise Closed(f"no answer within {seconds:g} s")
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, PACKET_BYTES, _MOST_DESCRIPTORS)
        except OSError as error:
            raise Closed(error.strerror) from error
        if not data:
            raise Closed("the other side is gone")
        return json.loads(data), descriptors

    def waits(self, seconds: float) -> bool:
        """Wait for a packet or the end of the connection; return False after `seconds`."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, 1000 * seconds)))
