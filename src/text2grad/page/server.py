"""A server for one person on this machine: loopback only, with a secret token in its address.

A page of another site may reach a loopback port through the person's own browser. Every request
must therefore name this host (against DNS rebinding) and, if the browser names an origin, this
origin (against forged requests). Nothing in an address is ever used as a path of a file.
"""

from __future__ import annotations

import errno
import html
import re
import secrets
import socket
import sys
import webbrowser
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from os import environ
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from text2grad.errors import UserError
from text2grad.json_text import to_json

LOOPBACK = "127.0.0.1"
PORT, PORTS = 8639, 50
"""The first port to try, and the number of ports."""
MOST_BYTES = 4_000_000
"""The longest body of a request."""
POLICY = "Content-Security-Policy"
_POLICY_OF_PAGE = re.compile(f'{POLICY}" content="([^"]*)"')
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Address:
    """The address of the page.

    The token is new at every start. A cookie replaces it in later addresses.
    """

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def url(self) -> str:
        """The address to open."""
        return f"http://{LOOPBACK}:{self.port}/?token={self.token}"

    @property
    def hosts(self) -> tuple[str, str]:
        """The names of this server that a request may have."""
        return f"{LOOPBACK}:{self.port}", f"localhost:{self.port}"

    @property
    def cookie(self) -> str:
        """The name of the cookie, with the port because cookies ignore ports."""
        return f"text2grad-{self.port}"


class Guard:
    """Middleware that refuses requests without the token of the address."""

    def __init__(self, app: ASGIApp, address: Address) -> None:
        self.app, self.address = app, address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request with 403 (413: too long), or pass it on and add safe headers."""
        if scope["type"] != "http":
            return
        with_token = self._has_token(scope)
        if refusal := self._refusal(scope, with_token):
            await PlainTextResponse(refusal, 403, HEADERS)(scope, receive, send)
        elif _is_too_long(Headers(scope=scope)):
            await PlainTextResponse("too long", 413, HEADERS)(scope, receive, send)
        else:
            await self.app(scope, receive, self._sender(send, with_token))

    def _sender(self, send: Send, with_token: bool) -> Send:
        async def sender(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault(POLICY, "default-src 'none'; frame-ancestors 'none'")
                if with_token:
                    value = f"{self.address.cookie}={self.address.token}; Path=/; HttpOnly; SameSite=Strict"
                    headers.append("Set-Cookie", value)
            await send(message)

        return sender

    def _has_token(self, scope: Scope) -> bool:
        """True if the address of the page itself has the token."""
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return scope["path"] == "/" and scope["method"] == "GET" and self._is_token(token)

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode("utf-8", "replace"), self.address.token.encode())

    def _refusal(self, scope: Scope, with_token: bool) -> str:
        """Return the reason to refuse a request, or an empty text."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.address.hosts:
            return "the request names another host"
        if origin is not None and origin != f"http://{host}":
            return "requests from other sites are refused"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not with_token:
            return "requests from other sites are refused"
        if not with_token and not self._is_token(self._cookie_of(headers)):
            return "open the address with the token that `text2grad` printed"
        kind = headers.get("content-type", "").partition(";")[0].strip()
        if scope["method"] not in ("GET", "HEAD") and (origin is None or kind != "application/json"):
            return "a change must come from the page"
        return ""

    def _cookie_of(self, headers: Headers) -> str:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.address.cookie)
        except CookieError:
            return ""
        return cookie.value if cookie else ""


def _is_too_long(headers: Headers) -> bool:
    """True if a body is too long, or has no length that is a number."""
    length = as_number(headers.get("content-length", "0"))
    return length is None or length > MOST_BYTES or "transfer-encoding" in headers


def as_number(text: str) -> int | None:
    """Return the number in a request; None for other text and for implausibly large numbers."""
    return int(text) if text.isdecimal() and len(text) < 12 else None


def listening(port: int | None) -> socket.socket:
    """Open a loopback socket on `port` (default `PORT`), or on the next free one with a message.

    Raises:
        UserError: no port is free.
    """
    first = port or PORT
    for number in range(first, min(first + PORTS, 65_536)):
        try:
            listener = socket.create_server((LOOPBACK, number), backlog=64)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            continue
        if number != first:
            print(f"port {first} is in use, using {number}", file=sys.stderr)
        return listener
    raise UserError(f"no free port from {first} on", "set another --port NUMBER")


def serve(app: ASGIApp, listener: socket.socket, open_browser: bool) -> int:
    """Print the address, open it in a browser if there is one, and serve until Ctrl-C; return 0."""
    address = Address(listener.getsockname()[1])
    print(address.url, flush=True)
    if open_browser and not _opened(address.url):
        print("no browser was found: open the address above", file=sys.stderr)
    print("Press Ctrl-C to stop.", file=sys.stderr)
    config = uvicorn.Config(
        Guard(app, address),
        log_config=None,  # uvicorn's default closes the handlers of all loggers
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
    return 0


def _opened(url: str) -> bool:
    """Open a graphical browser, but none that would take over the terminal."""
    if sys.platform.startswith("linux") and not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def page_response(page: str) -> Response:
    """Return a response whose header has the policy of the page, which also forbids frames."""
    policy = html.unescape(_POLICY_OF_PAGE.findall(page)[0])
    return HTMLResponse(page, headers={POLICY: f"{policy}; frame-ancestors 'none'"})


def json_response(value: Any, status: int = 200) -> Response:
    """Return a response with `value` as JSON."""
    return Response(to_json(value), status, media_type="application/json")
