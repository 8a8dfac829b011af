"""HTTP/1.1 as a client of JSON services needs it: one POST at a time over one kept connection, one `send` each.

`http.client` sends head and body apart and reads headers as e-mail; that costs more than all the rest of a request
(docs/LOG.md). Here a request is one buffer, and of an answer only status, headers, and body are read: by length,
chunked, or to the end of the connection. Nothing is followed, retried or stored.
"""

from __future__ import annotations

import socket
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

PIECE = 1 << 16
MOST_HEAD, MOST_BODY = 1 << 16, 1 << 28


class CutError(OSError):
    """The connection ended, or what came is no HTTP, before the answer was whole. `empty`: before any of it."""

    def __init__(self, message: str, empty: bool = False) -> None:
        super().__init__(message)
        self.empty = empty


@dataclass(frozen=True)
class Answer:
    """Status, headers by their names in lower case, and the body; whether the connection stays open."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    keep: bool


class Connection:
    """An open connection to the server of a URL, through the proxy that the environment names.

    `timeout` is seconds without a byte. Raises OSError (`TimeoutError` among them) when it cannot be made.
    """

    def __init__(self, url: SplitResult, timeout: float) -> None:
        self._waiting = bytearray()
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
            CutError: the answer is not whole. TimeoutError, OSError: as of sockets.
        """
        self._socket.sendall(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))
        return self._answer()

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
        while (end := self._waiting.find(b"\r\n\r\n")) < 0:
            if len(self._waiting) > MOST_HEAD:
                raise CutError("endless headers")
            self._more()
        first, *lines = self._waiting[:end].decode("latin-1").split("\r\n")
        del self._waiting[: end + 4]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise CutError("what came is no HTTP")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        return _number(rest[:3], 10), headers

    def _more(self) -> None:
        piece = self._socket.recv(PIECE)
        if not piece:
            raise CutError("the connection was closed", empty=not self._waiting)
        self._waiting += piece

    def _bytes(self, count: int) -> bytes:
        if count > MOST_BODY:
            raise CutError(f"an answer of {count} bytes")
        while len(self._waiting) < count:
            self._more()
        taken = bytes(self._waiting[:count])
        del self._waiting[:count]
        return taken

    def _line(self) -> bytes:
        while (end := self._waiting.find(b"\r\n")) < 0:
            if len(self._waiting) > MOST_HEAD:
                raise CutError("an endless line")
            self._more()
        line = bytes(self._waiting[:end])
        del self._waiting[: end + 2]
        return line

    def _chunks(self) -> bytes:
        parts, size = [], 0
        while length := _number(self._line().partition(b";")[0].decode("latin-1"), 16):
            size += length
            if size > MOST_BODY:
                raise CutError("an endless answer")
            parts.append(self._bytes(length))
            self._line()
        while self._line():
            pass  # trailers
        return b"".join(parts)

    def _rest(self) -> bytes:
        while piece := self._socket.recv(PIECE):
            self._waiting += piece
            if len(self._waiting) > MOST_BODY:
                raise CutError("an endless answer")
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
