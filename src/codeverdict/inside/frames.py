"""Frames on a pipe: four bytes of length, then JSON. Longer ones than the limit are refused on both
sides.

Packets between a server and whoever started it: a few words as JSON, and descriptors of the files
of a job. Nothing else of a job comes to the server: its processes read the program and its tests
from these files after the fork, so no later process can find them in the memory it inherits.
"""

from __future__ import annotations

import json
import os
import select
import socket
from _blake2 import blake2b  # without the rest of hashlib: what a server imports, every job inherits
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


KEY_BYTES = 16


class Seal:
    """Makes the lines of a verdict, or reads them: JSON behind a digest of the key, their number
    and it."""

    def __init__(self, key: bytes) -> None:
        self._key, self._lines = key, 0

    def line(self, message: Any) -> bytes:
        """The next line."""
        return self._sealed(_ENCODER.encode(message).encode())

    def message(self, line: bytes) -> Any:
        """The message in the next line.

        Raises:
            ValueError: somebody without the key wrote it, or it stood elsewhere.
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
    """The other side is gone."""


class Channel:
    """One end of a SOCK_SEQPACKET pair."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self._socket = socket.socket(fileno=descriptor)
        self.descriptor = descriptor
        """To wait for a packet."""

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send one packet.

        Raises:
            Closed: nobody reads any more.
        """
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            raise Closed(error.strerror) from error

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """The next packet and the descriptors in it.

        Raises:
            Closed: the other side is gone, or sent nothing within `seconds`.
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
        """Whether a packet, or the end, is there within this time."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, 1000 * seconds)))
