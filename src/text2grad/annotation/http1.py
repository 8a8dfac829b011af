"""HTTP/1.1 as a client of JSON services needs it: one POST at a time over one kept connection, one `send` each.

`http.client` sends head and body apart and reads headers as e-mail; that costs more than all the rest of a request
(docs/LOG.md). Here a request is one buffer, and of an answer only status, headers, and body are read: by length,
chunked, or to the end of the connection. Nothing is followed, retried or stored. An answer has an end in time and
in size, whatever the server does.
"""

from __future__ import annotations

import socket
import ssl
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

PIECE = 1 << 16
MOST_HEAD, MOST_BODY = 1 << 16, 1 << 24
"""Bytes: 64 KiB of headers, 16 MiB of an answer."""
WHOLE = 5.0
"""A whole request may take so many times as long as the server may be silent."""


class CutError(OSError):
    """The connection ended, or what came is no HTTP, before the answer was whole. `empty`: before any of it."""

    def __init__(self, message: str, empty: bool = False) -> None:
        super().__init__(message)
        self.empty = empty


class OversizedError(CutError):
    """The answer is longer than any that is read."""


@dataclass(frozen=True)
class Answer:
    """Status, headers by their names in lower case, and the body; whether the connection stays open."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    keep: bool


class Connection:
    """An open connection to the server of a URL, through the proxy that the environment names.

    `timeout` is seconds without a byte, and a fifth (1 / `WHOLE`) of those a whole request may take. Raises OSError
    (`TimeoutError` among them) when it cannot be made.
    """

    def __init__(self, url: SplitResult, timeout: float) -> None:
        self._waiting = bytearray()
        self._timeout = timeout
        self._begin()
        host, secure = str(url.hostname), url.scheme == "https"
        port = url.port or (443 if secure else 80)
        proxy = urllib.request.getproxies().get(url.scheme, "")
        if proxy and not urllib.request.proxy_bypass(host):
            between = urlsplit(proxy if "//" in proxy else f"//{proxy}")
            self._socket = _connected(str(between.hostname), between.port or 80, timeout)
            self._tunnel(f"{host}:{port}")
        else:
            self._socket = _connected(host, port, timeout)
        if secure:
            self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def post(self, head: bytes, body: bytes) -> Answer:
        """Send one request and read its answer. `head` ends before Content-Length, which is added.

        Raises:
            CutError: the answer is not whole. OversizedError: it is too long. TimeoutError, OSError: as of sockets.
        """
        self._begin()
        self._socket.settimeout(self._timeout)
        self._socket.sendall(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        return self._answer()

    def _begin(self) -> None:
        self._until = time.monotonic() + WHOLE * self._timeout
        self._received = 0

    def _tunnel(self, authority: str) -> None:
        self._socket.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode("ascii"))
        status, _ = self._head()
        if status != 200:
            self._socket.close()
            raise OSError(f"the proxy answered {status}")

    def _answer(self) -> Answer:
        status, headers = self._head()
        while 100 <= status < 200:
            status, headers = self._head()
        keep = headers.get("connection", "").lower() != "close"
        if status in (204, 304):
            body = b""
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            body = self._chunks()
        elif "content-length" in headers:
            body = self._bytes(_number(headers["content-length"], 10))
        else:
            body, keep = self._rest(), False
        return Answer(status, headers, body, keep)

    def _head(self) -> tuple[int, dict[str, str]]:
        first, *lines = self._to(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise CutError("what came is no HTTP")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        return _number(rest[:3], 10), headers

    def _to(self, mark: bytes) -> bytes:
        """What stands before the next `mark`, which is passed over."""
        begin = 0
        while (end := self._waiting.find(mark, begin)) < 0:
            if len(self._waiting) > MOST_HEAD:
                raise OversizedError("a line without an end")
            begin = max(0, len(self._waiting) - len(mark) + 1)
            self._more()
        taken = bytes(self._waiting[:end])
        del self._waiting[: end + len(mark)]
        return taken

    def _more(self) -> None:
        if not (piece := self._receive()):
            raise CutError("the connection was closed", empty=not self._waiting)
        self._waiting += piece

    def _receive(self) -> bytes:
        """The next bytes; none at the end of the connection."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if left < self._timeout:
            self._socket.settimeout(left)
        piece = self._socket.recv(PIECE)
        self._received += len(piece)
        if self._received > MOST_HEAD + MOST_BODY:
            raise OversizedError(f"an answer of more than {MOST_BODY >> 20} MiB")
        return piece

    def _bytes(self, count: int) -> bytes:
        if count > MOST_BODY:
            raise OversizedError(f"an answer of {count} bytes")
        while len(self._waiting) < count:
            self._more()
        taken = bytes(self._waiting[:count])
        del self._waiting[:count]
        return taken

    def _chunks(self) -> bytes:
        parts = []
        while length := _number(self._to(b"\r\n").partition(b";")[0].decode("latin-1"), 16):
            parts.append(self._bytes(length))
            self._to(b"\r\n")
        while self._to(b"\r\n"):
            pass  # trailers
        return b"".join(parts)

    def _rest(self) -> bytes:
        while piece := self._receive():
            self._waiting += piece
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken


def _connected(host: str, port: int, timeout: float) -> socket.socket:
    connected = socket.create_connection((host, port), timeout)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _number(text: str, base: int) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if number < 0:
        raise CutError("what came is no HTTP")
    return number
