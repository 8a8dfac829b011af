"""Packets between a server and whoever started it: a few words as JSON, and the ends of the pipes of a job.

Nothing of a job but these ends comes here. Its program and its tests go through pipes to the processes that the
server forks, after the fork, so no later process can find them in the memory it inherits.
"""

from __future__ import annotations

import _socket  # not `socket`: a server must stay small
import array
import json
import select
from typing import Any

PACKET_BYTES = 1 << 17
_MOST_DESCRIPTORS = 8
_RIGHTS = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end of a SOCK_SEQPACKET pair."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self._socket = _socket.socket(fileno=descriptor)

    @property
    def descriptor(self) -> int:
        """To wait for a packet."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send one packet.

        Raises:
            Closed: nobody reads any more.
        """
        rights = [(*_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg([json.dumps(message).encode()], rights)
        except OSError as error:
            raise Closed(error.strerror) from error

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """The next packet and the descriptors in it.

        Raises:
            Closed: the other side is gone, or sent nothing within `seconds`.
        """
        if seconds is not None and not self.waits(seconds):
            raise Closed(f"no answer within {seconds:g} s")
        received = array.array("i")
        try:
            data, rights, _, _ = self._socket.recvmsg(
                PACKET_BYTES, _socket.CMSG_SPACE(_MOST_DESCRIPTORS * received.itemsize)
            )
        except OSError as error:
            raise Closed(error.strerror) from error
        for level, kind, packed in rights:
            if (level, kind) == _RIGHTS:
                received.frombytes(packed[: len(packed) - len(packed) % received.itemsize])
        if not data:
            raise Closed("the other side is gone")
        message: dict[str, Any] = json.loads(data)
        return message, list(received)

    def waits(self, seconds: float) -> bool:
        """Whether a packet, or the end, is there within this time."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, 1000 * seconds)))
