"""The openai SDK's client over connections whose answers end in time and in size.

Nothing is followed, retried or decompressed. The SDK takes .4 s of CPU to import: only what asks a
server imports this module.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpcore2
import httpx2
import openai

from text2grad.chat.reply import NoReplyError, Trouble
from text2grad.errors import UserError

MOST_BYTES = (1 << 24) + (1 << 16)
"""Of an answer: 16 MiB and its headers."""
WHOLE = 5.0
"""A whole request may take this many times the time a server may be silent."""


class OversizedError(Exception):
    """The answer is longer than any that is read."""


class StaleError(Exception):
    """The server had closed a kept connection: the request was not read."""


KINDS: Mapping[object, Trouble] = {
    OversizedError: "oversized",
    httpcore2.ReadTimeout: "timeout",
    httpcore2.WriteTimeout: "timeout",
    httpcore2.RemoteProtocolError: "cut",
    httpcore2.ReadError: "cut",
    httpcore2.WriteError: "cut",
}
"""What the end of a request without a reply means; of any other error: that the server was not reached."""
NETWORK_ERRORS = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.ProxyError)


class Client:
    """The SDK's client for chat requests to the server at `url`; without a `key` it sends none.

    Raises:
        UserError: the environment names an invalid proxy.
    """

    def __init__(self, url: str, key: str, headers: Mapping[str, str], timeout: float) -> None:
        place = urlsplit(url)
        self._options: openai.RequestOptions = {} if key else {"headers": {"Authorization": openai.Omit()}}
        self._transport = Transport(url, timeout)
        self._sdk = openai.OpenAI(
            api_key=key or "none",
            base_url=place._replace(query="", fragment="").geturl(),
            default_query=dict(parse_qsl(place.query)),
            default_headers={"Accept-Encoding": "identity", **headers},
            timeout=timeout,
            max_retries=0,
            http_client=httpx2.Client(transport=self._transport, follow_redirects=False),
        )

    def post(self, body: bytes) -> httpx2.Response:
        """Send one chat request and wait for the end of its answer, of any status.

        Raises:
            NoReplyError: there is none, or none that is read.
        """
        try:
            return self._sdk.post("/chat/completions", cast_to=httpx2.Response, content=body, options=self._options)
        except openai.APIStatusError as error:
            return error.response
        except (openai.APIConnectionError, OversizedError, *NETWORK_ERRORS) as error:
            cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
            kind = KINDS.get(type(cause), "unreachable")
            raise NoReplyError(kind, str(cause) or type(cause).__name__) from error

    def close(self) -> None:
        """Close the connections; others are opened when needed."""
        self._transport.close()


class Transport(httpx2.BaseTransport):
    """Kept connections to the server of a URL, through the proxy that the environment names."""

    def __init__(self, url: str, timeout: float) -> None:
        self._pool = httpcore2.ConnectionPool(
            ssl_context=httpcore2.default_ssl_context() if urlsplit(url).scheme == "https" else None,
            proxy=_proxy(url),
            max_connections=None,
            network_backend=_Backend(WHOLE * timeout),
        )
        self._guard = Lock()
        self._open = 0  # requests
        self._closing = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and read its whole answer as it comes over the wire."""
        with self._guard:
            self._open, self._closing = self._open + 1, False
        try:
            response = self._send(request)
        finally:
            with self._guard:
                self._open -= 1
                self._close_if_unused()
        headers = [pair for pair in response.headers if pair[0].lower() != b"content-encoding"]
        return httpx2.Response(response.status, headers=headers, content=response.content)

    def _send(self, request: httpx2.Request) -> httpcore2.Response:
        while True:
            with suppress(StaleError):
                return self._pool.request(
                    request.method,
                    str(request.url),
                    headers=request.headers.raw,
                    content=request.read(),
                    extensions=request.extensions,
                )

    def close(self) -> None:
        """Close the connections: now, or after the last answer that is on its way."""
        with self._guard:
            self._closing = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closing and not self._open:
            self._pool.close()


def _proxy(url: str) -> httpcore2.Proxy | None:
    """The proxy that the environment names for a URL."""
    place = urlsplit(url)
    address = urllib.request.getproxies().get(place.scheme, "")
    if not address or urllib.request.proxy_bypass(str(place.hostname)):
        return None
    try:
        proxy = httpx2.Proxy(address if "//" in address else f"http://{address}")
    except (ValueError, httpx2.InvalidURL):
        proxy = None
    if proxy is None or proxy.url.scheme not in ("http", "https"):
        cure = f"export {place.scheme}_proxy=http://HOST:PORT, or no_proxy={place.hostname}"
        raise UserError(f"the proxy of {place.scheme}_proxy is not an http(s) address", cure)
    return httpcore2.Proxy(str(proxy.url), auth=proxy.raw_auth)


class _Backend(httpcore2.SyncBackend):
    """Opens connections whose answers may take `whole` seconds."""

    def __init__(self, whole: float) -> None:
        self._whole = whole

    def connect_tcp(self, *given: Any, **named: Any) -> httpcore2.NetworkStream:
        return _Connection(super().connect_tcp(*given, **named), self._whole)


class _Connection(httpcore2.NetworkStream):
    """A connection with limits to the bytes and to the time of every answer.

    The first write after a read begins the next request.
    """

    def __init__(self, stream: httpcore2.NetworkStream, whole: float) -> None:
        self._stream, self._whole = stream, whole
        self._requests = self._bytes = 0
        self._until = 0.0
        self._reads = True

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._reads:
            self._reads, self._bytes, self._until = False, 0, time.monotonic() + self._whole
            self._requests += 1
        self._stream.write(buffer, timeout)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._reads = True
        left = self._until - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout
        stale = self._requests > 1 and not self._bytes
        try:
            data = self._stream.read(max_bytes, left if timeout is None else min(left, timeout))
        except httpcore2.ReadError as error:
            raise StaleError if stale else error from error
        if stale and not data:
            raise StaleError
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise OversizedError(f"an answer of more than {MOST_BYTES >> 20} MiB")
        return data

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *given: Any, **named: Any) -> httpcore2.NetworkStream:
        return _Connection(self._stream.start_tls(*given, **named), self._whole)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
