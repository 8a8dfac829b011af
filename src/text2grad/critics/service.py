"""The server of `text2grad serve`: one critic behind HTTP, for every process that trains with it.

`POST /critique` judges a batch, `GET /health` names the critic's source, `GET /metrics` counts for
Prometheus. Requests that arrive while the critic is busy are its next batch. `critics.served` is
the client.
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
from text2grad.critics.served import MOST_BYTES, SECONDS, Batch, is_loopback, written_judgements
from text2grad.errors import EXIT_DONE, UserError, first_error
from text2grad.feedback import Critic, Failure, count_critic_tokens
from text2grad.json_text import from_json, to_json

MOST_TOGETHER = 256
"""Responses that the critic is shown at once."""
MOST_OPEN = 512
"""Requests at once; more are answered 503, and a client asks again."""
BODY_SECONDS = 60.0
"""The longest that a client may take to send a request."""


class Refused(Exception):
    """A request that is answered with `status` and one line."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class CriticService:
    """An application around a critic. Requests must have `token`; if it is empty, they must be this
    machine's."""

    def __init__(self, critic: Critic, token: str = "") -> None:
        self.critic, self.token = critic, token
        self._queue = CriticQueue(critic, SECONDS, retries=1, max_in_flight=MOST_TOGETHER)
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
        return Guard(Starlette(routes=routes, exception_handlers={Refused: _refusal}), self.token, self._requests)

    async def critique(self, request: Request) -> Response:
        """Judge a batch.

        Raises:
            Refused: 408, 413, 422: the request is too slow, too long, or no batch; 500: a mistake
                of the critic's set-up, which every request would meet.
        """
        started = time.monotonic()
        batch = await run_in_threadpool(read_batch, await body_of(request))
        questions = list(zip(batch.examples, batch.responses, strict=True))
        try:
            judgements = await asyncio.wrap_future(self._queue.submit(questions))
        except UserError as error:
            raise Refused(500, " ".join(str(error).split())) from error
        self._responses += len(judgements)
        self._failures.update(judgement.kind for judgement in judgements if isinstance(judgement, Failure))
        self._seconds += time.monotonic() - started
        return Response(await run_in_threadpool(written_judgements, judgements), media_type="application/json")

    async def health(self, _: Request) -> Response:
        """Return the source of the critiques, for clients and for checks that the server is up."""
        return _json({"status": "ok", "source": self.critic.source.model_dump(mode="json")})

    async def metrics(self, _: Request) -> Response:
        """Return the counts since the start, in the text format of Prometheus."""
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
    assert isinstance(error, Refused)
    return _json({"error": str(error)}, error.status)


async def body_of(request: Request) -> bytes:
    """Read the body of a request.

    Raises:
        Refused: it is too long, comes too slowly, or breaks off.
    """
    too_long = Refused(413, f"a request has at most {MOST_BYTES} bytes")
    if int(request.headers.get("content-length") or 0) > MOST_BYTES:  # uvicorn refuses what is no number
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BYTES:
                    raise too_long
    except TimeoutError as error:
        raise Refused(408, f"the request took more than {BODY_SECONDS:g} s") from error
    except ClientDisconnect as error:
        raise Refused(400, "the request broke off") from error
    return bytes(body)


def read_batch(body: bytes) -> Batch:
    """Read the body of a request.

    Raises:
        Refused: it is not a batch.
    """
    try:
        return Batch.model_validate(from_json(body.decode("utf-8")))
    except ValueError as error:
        raise Refused(422, " ".join(first_error(error).split())[:300]) from error


class Guard:
    """A filter of requests: with a token, only those that have it pass; without one, none that a
    browser may send.

    A page of another site may reach a port of this machine through the browser of its user. Such a
    request names the origin of the page, or another host than this machine.
    """

    def __init__(self, app: ASGIApp, token: str, answered: Counter[int]) -> None:
        self._app, self._token, self._answered = app, token, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 403, or pass the request on, and count the answer by its status."""
        if scope["type"] != "http":
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answered[message["status"]] += 1
            await send(message)

        refused = self._refused(Headers(scope=scope))
        app = _json({"error": str(refused)}, refused.status) if refused else self._app
        await app(scope, receive, counted)

    def _refused(self, headers: Headers) -> Refused | None:
        if self._token:
            header = headers.get("authorization", "").encode()
            matches = secrets.compare_digest(header, f"Bearer {self._token}".encode())
            return None if matches else Refused(401, "the token is missing or wrong")
        if "origin" in headers or not is_loopback(_host_of(headers)):
            return Refused(403, "this server is for programs of its own machine")
        return None


def _host_of(headers: Headers) -> str:
    """Return the host that a request is for, without its port; empty if it names none."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def listening(host: str, port: int) -> socket.socket:
    """Open a socket.

    Raises:
        UserError: the address is in use, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=MOST_OPEN)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise UserError(f"cannot listen on {host}, port {port}: {reason}", "--port NUMBER") from error


def address_of(listener: socket.socket) -> str:
    """Return the address for clients; it has the name of this machine where the socket is for all
    networks."""
    host, port = listener.getsockname()[:2]
    name = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}"


def server_of(service: CriticService) -> uvicorn.Server:
    """Return the HTTP server of a service. Told to exit, it answers the open requests first."""
    config = uvicorn.Config(
        service.app(),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        limit_concurrency=MOST_OPEN,
        timeout_graceful_shutdown=int(SECONDS),
    )
    return uvicorn.Server(config)


def serve(service: CriticService, listener: socket.socket) -> int:
    """Serve until a signal comes, then answer the open requests; a second Ctrl-C ends it at once.

    Raises:
        KeyboardInterrupt: after Ctrl-C.
        SystemExit: after SIGTERM, with exit code 0.
    """
    print(address_of(listener), flush=True)
    print("Ctrl-C ends it.", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_DONE))  # uvicorn sends it again once it has obeyed
    server_of(service).run(sockets=[listener])
    return EXIT_DONE
