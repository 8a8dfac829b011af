"""A scripted chat server for the tests of `chat` and `annotate`: what it answers depends on what it
is shown."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from text2grad.chat.batch import PENDING

KEY = "sk-planted-key-that-must-stay-secret"
GOOD = '{"critique": "Fine.", "good_spans": ["answer"], "poor_spans": [], "omissions": ["when"], "score": 0.5}'

Reply = tuple[int, dict[str, str], bytes]
Script = Callable[[str, int, dict[str, Any]], Reply]


def said(text: str | None, finish: str = "stop", refusal: str | None = None) -> Reply:
    return 200, {}, json.dumps(completion(text, finish, refusal)).encode()


def said_with(text: str, usage: Any) -> Reply:
    """An answer with a usage of its own; None: without one."""
    body = completion(text)
    del body["usage"]
    return 200, {}, json.dumps(body if usage is None else {**body, "usage": usage}).encode()


def escaped(text: str) -> str:
    """As JSON may write a text, too: every character by its number."""
    return "".join(f"\\u{ord(character):04x}" for character in text)


def completion(text: str | None, finish: str = "stop", refusal: str | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": refusal}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
    }


def error(status: int, code: str = "", message: str = "no", **headers: str) -> Reply:
    body = {"error": {"message": message, "code": code}}
    return status, {"retry-after-ms": "1", **headers}, json.dumps(body).encode()


def in_turn(replies: Sequence[Reply], turn: int) -> Reply:
    """The turn-th reply; the last one repeats."""
    return replies[min(turn, len(replies) - 1)]


class ChatServer:
    """`answer(name, turn, body)` gives the reply to the turn-th request (from 0) that is called
    `name`.

    `name` says what a request is called: as `name_of` does, the response it shows by its first
    word. The reply may be `CUT` (half an answer, then the end) or `HANG`. `paths` are those of chat
    requests, their queries with them.
    """

    CUT, HANG = (0, {}, b"cut"), (0, {}, b"hang")

    def __init__(self, answer: Script, name: Callable[[dict[str, Any]], str] | None = None) -> None:
        self.turns: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.paths: set[str] = set()
        self.batches: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.open = self.most_open = 0
        lock, server, called = Lock(), self, name or name_of

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if not urlsplit(self.path).path.endswith("/chat/completions"):
                    self.send(server.service(self.path, data))
                    return
                body = json.loads(data)
                name = called(body)
                with lock:
                    turn = server.turns[name]
                    server.turns[name] += 1
                    server.bodies.append(body)
                    server.paths.add(self.path)
                    server.keys.add(self.headers.get("Authorization") or "")
                    server.open += 1
                    server.most_open = max(server.most_open, server.open)
                try:
                    self.send(answer(name, turn, body))
                finally:
                    with lock:
                        server.open -= 1

            def do_GET(self) -> None:
                self.send(server.service(self.path, b""))

            def send(self, reply: Reply) -> None:
                status, headers, data = reply
                if reply == ChatServer.HANG:
                    time.sleep(0.3)
                    self.close_connection = True
                    return
                if reply == ChatServer.CUT:
                    whole = said(GOOD)[2]
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(whole)))
                    self.end_headers()
                    self.wfile.write(whole[: len(whole) // 2])
                    self.close_connection = True
                    return
                self.send_response(status)
                for key, value in {"content-type": "application/json", **headers}.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def service(self, path: str, data: bytes) -> Reply:
        """Files and batches, as OpenAI has them."""
        if path.endswith("/files"):
            part = next(p for p in data.split(b"\r\n--") if b"filename=" in p)
            name = f"file-{len(self.files)}"
            self.files[name] = part.split(b"\r\n\r\n", 1)[1]
            return ok(
                {"id": name, "object": "file", "bytes": 1, "created_at": 0, "filename": "f", "purpose": "batch"}
            )
        if path.endswith("/batches") and data:
            name = f"batch-{len(self.batches)}"
            asked = json.loads(data)
            self.batches[name] = {**batch(name, PENDING[0]), "input_file_id": asked["input_file_id"]}
            self.batches[name]["metadata"] = asked.get("metadata")
            return ok(self.batches[name])
        if "/batches?" in path or path.endswith("/batches"):
            return ok({"object": "list", "data": list(self.batches.values()), "has_more": False})
        if "/batches/" in path:
            return ok(self.batches[path.rsplit("/", 1)[1]])
        return 200, {}, self.files[path.split("/")[-2]]


S = TypeVar("S", bound=ChatServer)


@contextmanager
def servers_of(make: Callable[..., S]) -> Iterator[Callable[..., S]]:
    """`make`, all of whose servers are closed at the end."""
    with ExitStack() as servers:
        yield lambda *args, **named: servers.enter_context(closing(make(*args, **named)))


def ok(body: dict[str, Any]) -> Reply:
    return 200, {}, json.dumps(body).encode()


def batch(name: str, status: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "created_at": 0,
        "status": status,
        "output_file_id": None,
        "error_file_id": None,
    }


def last_message(body: dict[str, Any]) -> str:
    """The text of a request's last message."""
    return str(body["messages"][-1]["content"])


def name_of(body: dict[str, Any]) -> str:
    """The first word of the response that a request shows."""
    found = re.search(r"<response>\n(\S+)", last_message(body))
    return found[1] if found else ""


def responses_file(path: Path, names: list[str], **more: Any) -> Path:
    """One response per name: `<name> answer.`, or the whole text where a name holds spaces."""
    rows = [
        {"id": f"r-{n}", "prompt": "Why?", "response": name if " " in name else f"{name} answer.", **more}
        for n, name in enumerate(names)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
