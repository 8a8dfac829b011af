"""The server of `text2grad serve`: one critic behind HTTP, shared by training processes.

`POST /critique` judges a batch, `GET /health` names the critic's source, `GET /metrics` has
counters for Prometheus. Requests that arrive while the critic is busy form its next batch.
`critics.served` is the client.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from text2grad.align.critic_queue import CriticQueue
from text2grad.critics.served import MAX_BYTES, TIMEOUT_SECONDS, Batch, dump_judgements, is_loopback
from text2grad.errors import EXIT_DONE, UserError, first_error
from text2grad.feedback import Critic, Failure, count_critic_tokens
from text2grad.json_text import from_json, to_json

MAX_BATCH = 256
"""Responses that the critic judges at once."""
MAX_REQUESTS = 512
"""Open requests; further ones are answered 503, and the client retries."""
BODY_SECONDS = 60.0
"""Time limit for receiving a request."""


class RequestRefused(Exception):
    """A request that is answered with `status` and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class CriticService:
    """An HTTP application around a critic.

    Requests must carry `token`; without a token, only requests from this machine are answered.
    """

    def __init__(self, critic: Critic, token: str) -> None:
        self.critic, self.token = critic, token
        self._queue = CriticQueue(critic, TIMEOUT_SECONDS, retries=1, max_in_flight=MAX_BATCH)
        self._requests: Counter[int] = Counter()
        self._failures: Counter[str] = Counter()
        self._responses = 0
        self._seconds = 0.0

    def app(self) -> ASGIApp:
        """Return the application, behind its guard."""
        routes = [
            Route("/critique", self.critique, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        app = Starlette(routes=routes, exception_handlers={RequestRefused: _refusal})
        return Guard(app, self.token, self._requests)

    async def critique(self, request: Request) -> Response:
        """Judge a batch.

        Raises:
            RequestRefused: 408, 413, 422: the request is too slow, too long, or not a batch; 500:
                the critic is misconfigured, so every request would fail.
        """
        started = time.monotonic()
        batch = await run_in_threadpool(parse_batch, await read_body(request))
        questions = list(zip(batch.examples, batch.responses, strict=True))
        try:
            judgements = await asyncio.wrap_future(self._queue.submit(questions))
        except UserError as error:
            raise RequestRefused(500, " ".join(str(error).split())) from error
        self._responses += len(judgements)
        self._failures.update(judgement.kind for judgement in judgements if isinstance(judgement, Failure))
        self._seconds += time.monotonic() - started
        return Response(await run_in_threadpool(dump_judgements, judgements), media_type="application/json")

    async def health(self, _: Request) -> Response:
        """Return the source of the critiques, for clients and health checks."""
        return _json({"status": "ok", "source": self.critic.source.model_dump(mode="json")})

    async def metrics(self, _: Request) -> Response:
        """Return the counters since the start, in the text format of Prometheus."""
        lines = [
            *_counter("requests", "Requests by the status of their answer.", self._requests, "status"),
            *_counter("failures", "Failed critiques by kind.", self._failures, "kind"),
            *_counter("responses", "Responses that were judged.", {"": self._responses}),
            *_counter("seconds", "Seconds that requests took, waiting included.", {"": self._seconds}),
            *_counter("tokens", "Tokens that the critic read and wrote.", {"": count_critic_tokens(self.critic)}),
        ]
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def _counter(name: str, description: str, values: Mapping[Any, float], label: str = "") -> Iterator[str]:
    name = f"text2grad_serve_{name}_total"
    yield f"# HELP {name} {description}"
    yield f"# TYPE {name} counter"
    for key, value in sorted(values.items()):
        yield f'{name}{{{label}="{key}"}} {value}' if label else f"{name} {value}"


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    return _json({"error": str(error)}, error.status)


async def read_body(request: Request) -> bytes:
    """Read the body of a request.

    Raises:
        RequestRefused: the body is too long, arrives too slowly, or is interrupted.
    """
    too_long = RequestRefused(413, f"a request has at most {MAX_BYTES} bytes")
    # uvicorn has checked that the header is a number.
    if int(request.headers.get("content-length") or 0) > MAX_BYTES:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BYTES:
                    raise too_long
    except TimeoutError as error:
        raise RequestRefused(408, f"the request took more than {BODY_SECONDS:g} s") from error
    except ClientDisconnect as error:
        raise RequestRefused(400, "the request was interrupted") from error
    return bytes(body)


def parse_batch(body: bytes) -> Batch:
    """Parse the body of a request; raise `RequestRefused` if it is not a batch."""
    try:
        return Batch.model_validate(from_json(body.decode("utf-8")))
    except ValueError as error:
        raise RequestRefused(422, " ".join(first_error(error).split())[:300]) from error


class Guard:
    """Middleware that refuses requests without the token, or from a browser if there is no token.

    Another site's page may reach a port of this machine through the user's browser. Such a request
    names the origin of the page, or a host other than this machine.
    """

    def __init__(self, app: ASGIApp, token: str, status_counts: Counter[int]) -> None:
        self._app, self._token, self._status_counts = app, token, status_counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 403, or forward the request, and count the answer by status."""
        if scope["type"] != "http":
            return

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status_counts[message["status"]] += 1
            await send(message)

        refusal = self._check(Headers(scope=scope))
        app = _json({"error": str(refusal)}, refusal.status) if refusal else self._app
        await app(scope, receive, send_and_count)

    def _check(self, headers: Headers) -> RequestRefused | None:
        if self._token:
            header = headers.get("authorization", "").encode()
            matches = secrets.compare_digest(header, f"Bearer {self._token}".encode())
            return None if matches else RequestRefused(401, "the token is missing or wrong")
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:
            host = ""
        if "origin" in headers or not is_loopback(host):
            return RequestRefused(403, "this server only answers programs on its own machine")
        return None


def open_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        UserError: the address is in use, or is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MAX_REQUESTS)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise UserError(f"cannot listen on {host}, port {port}: {reason}", "--port NUMBER") from error


def client_address(listener: socket.socket) -> str:
    """Return the address for clients, with this machine's name if it listens on all interfaces."""
    host, port = listener.getsockname()[:2]
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def make_server(service: CriticService) -> uvicorn.Server:
    """Return the HTTP server of a service; on exit, it answers the open requests first."""
    config = uvicorn.Config(
        service.app(),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        limit_concurrency=MAX_REQUESTS,
        timeout_graceful_shutdown=int(TIMEOUT_SECONDS),
    )
    return uvicorn.Server(config)


def serve(service: CriticService, listener: socket.socket) -> int:
    """Serve until a signal, then answer the open requests; a second Ctrl-C exits immediately.

    Raises:
        KeyboardInterrupt: after Ctrl-C.
        SystemExit: after SIGTERM, with exit code 0.
    """
    print(client_address(listener), flush=True)
    print("Press Ctrl-C to stop.", file=sys.stderr)
    # uvicorn raises SIGTERM again after its graceful shutdown.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_DONE))
    make_server(service).run(sockets=[listener])
    return EXIT_DONE
