"""HTTP/1.1 for JSON services: one POST at a time over one kept connection, read by `http.client`.

Head and body go out in one `send`. Nothing is followed, retried or stored. An answer ends in time and in size,
whatever the server does.
"""

from __future__ import annotations

import io
import socket
import time
import urllib.request
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead, LineTooLong
from typing import Any
from urllib.parse import SplitResult, urlsplit

MOST_BYTES = (1 << 24) + (1 << 16)
"""Of an answer: 16 MiB and its headers."""
WHOLE = 5.0
"""A whole request may take this many times the time a server may be silent."""


class CutError(OSError):
    """The connection ended before the answer was whole, or what came is not HTTP. `empty`: nothing came at all."""

    def __init__(self, message: str, empty: bool = False) -> None:
        super().__init__(message)
        self.empty = empty


class OversizedError(CutError):
    """The answer is longer than any that is read."""


@dataclass(frozen=True)
class Answer:
    """Status, headers (names in any case) and the body; whether the connection stays open."""

    status: int
    headers: Message
    body: bytes
    keep: bool


class Connection:
    """An open connection to the server of a URL, through the proxy that the environment names.

    `timeout` is seconds without a byte; a whole request may take `WHOLE` times as long. Raises OSError
    (`TimeoutError` among them) when it cannot be made.
    """

    def __init__(self, url: SplitResult, timeout: float) -> None:
        self._timeout = timeout
        host, secure = str(url.hostname), url.scheme == "https"
        port = url.port or (443 if secure else 80)
        made = HTTPSConnection if secure else HTTPConnection
        proxy = urllib.request.getproxies().get(url.scheme, "")
        if proxy and not urllib.request.proxy_bypass(host):
            between = urlsplit(proxy if "//" in proxy else f"//{proxy}")
            opened = made(str(between.hostname), between.port or 80, timeout=timeout)
            opened.set_tunnel(host, port)
        else:
            opened = made(host, port, timeout=timeout)
        try:
            opened.connect()
        except HTTPException as error:
            raise OSError(f"the proxy answered: {error}") from error
        self._socket: socket.socket = opened.sock

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def post(self, head: bytes, body: bytes) -> Answer:
        """Send one request and read its answer. `head` ends before Content-Length, which is added.

        Raises:
            CutError: the answer is not whole. OversizedError: it is too long. TimeoutError, OSError: as of sockets.
        """
        received = _Received(self._socket, self._timeout)
        self._socket.settimeout(self._timeout)
        self._socket.sendall(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        try:
            return _answer(received)
        except (HTTPException, ValueError) as error:
            if type(error) in (LineTooLong, HTTPException):
                raise OversizedError(str(error)) from error
            message = "the connection was closed" if received.ended else f"not HTTP: {type(error).__name__}"
            raise CutError(message, empty=not received.count) from error


class _Received(io.RawIOBase):
    """The bytes of one answer, as a file for `http.client`, with limits to their number and their time."""

    def __init__(self, source: socket.socket, timeout: float) -> None:
        self._socket, self._timeout = source, timeout
        self._until = time.monotonic() + WHOLE * timeout
        self.count = 0
        self.ended = False

    def makefile(self, mode: str) -> io.BufferedReader:
        """What `http.client` asks of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if left < self._timeout:
            self._socket.settimeout(left)
        size = self._socket.recv_into(buffer)
        self.count += size
        self.ended = not size
        if self.count > MOST_BYTES:
            raise OversizedError(f"an answer of more than {MOST_BYTES >> 20} MiB")
        return size


def _answer(received: _Received) -> Answer:
    response = HTTPResponse(received, method="POST")  # type: ignore[arg-type]  # it only calls makefile
    try:
        response.begin()
        length = response.headers.get("content-length")
        delimited = response.chunked or response.length is not None
        if received.ended or (length is not None and not delimited):
            raise IncompleteRead(b"")
        if (response.length or 0) > MOST_BYTES:
            raise OversizedError(f"an answer of {response.length} bytes")
        body = response.read()
        if delimited and received.ended:
            raise IncompleteRead(body)
        return Answer(response.status, response.headers, body, not response.will_close)
    finally:
        response.close()
