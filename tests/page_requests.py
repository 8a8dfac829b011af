"""Requests to a page's application, without a socket."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp


def ask(
    app: ASGIApp, path: str, headers: dict[str, str], method: str = "GET", body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """The answer to one request: status, headers, body."""
    sent: list[dict[str, Any]] = []
    place, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": place,
        "raw_path": place.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], head, b"".join(part.get("body", b"") for part in sent[1:])
