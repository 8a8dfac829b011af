"""One chat request to an OpenAI-compatible server, and what came of it.

Written on `http1`: the openai SDK takes 3.7 ms of CPU for a request (docs/LOG.md), and with 64 requests in flight
one core must do more than a thousand a second. It never retries and never raises for what the
server does: whoever asks decides (`asking`). The key is sent and redacted, and goes nowhere else.
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from text2grad.annotation.http1 import Answer, Connection, CutError
from text2grad.errors import UserError

OPENAI_URL = "https://api.openai.com/v1"
LONGEST_WAIT = 300.0
"""Seconds. A server that asks for a longer pause has no answer today."""
LONGEST_MESSAGE = 300

Trouble = Literal["unreachable", "cut", "timeout", "busy", "broken", "refused", "unfit", "fatal"]


@dataclass(frozen=True)
class Reply:
    """An answer: its text, whether it was cut at the token limit, tokens by name, seconds it took."""

    text: str
    truncated: bool
    usage: Mapping[str, float]
    seconds: float
    refusal: str = ""


@dataclass(frozen=True)
class Problem:
    """No answer, and why.

    `unreachable`: nobody there. `cut`: the answer broke off. `timeout`. `busy`: 429, asked for patience. `broken`:
    5xx, or an answer that is none. `refused`: a content filter. `unfit`: the server will never take this request
    (other 4xx). `fatal`: it will take none (key, model, quota); `cure` mends it. `wait`: seconds it asked for.
    """

    kind: Trouble
    message: str
    status: int = 0
    wait: float | None = None
    cure: str = ""

    @property
    def passing(self) -> bool:
        """Whether asking again may help."""
        return self.kind in ("unreachable", "cut", "timeout", "busy", "broken")


@dataclass
class Endpoint:
    """A server, by its base URL. One connection per thread, kept open between requests.

    Raises:
        UserError: the URL is none, or OpenAI itself is meant and there is no key.
    """

    base_url: str | None
    timeout: float
    _key: str = field(default="", init=False, repr=False)
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False)

    def __post_init__(self) -> None:
        url = self.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise UserError(f"base_url {url!r} is no http(s) address", "for example http://localhost:8000/v1")
        if self._url.username or self._url.password:
            raise UserError("a base_url may hold no password", "export OPENAI_API_KEY=... instead")
        self._key = key_for(self._url.hostname)
        if not self._key and url == OPENAI_URL:
            raise UserError("no API key in OPENAI_API_KEY", "export OPENAI_API_KEY=... or set critic.base_url")
        if not (self._key.isascii() and self._key.isprintable()):
            raise UserError("the API key has characters no key has", "export OPENAI_API_KEY again")
        query = f"?{self._url.query}" if self._url.query else ""
        lines = [
            f"POST {self._url.path.rstrip('/')}/chat/completions{query} HTTP/1.1",
            f"Host: {self._url.netloc}",
            "Content-Type: application/json",
            "Accept: application/json",
            *([f"Authorization: Bearer {self._key}"] if self._key else []),
            *([f"api-key: {self._key}"] if "azure.com" in self._url.hostname else []),
        ]
        self._head = "".join(f"{line}\r\n" for line in lines).encode("ascii")

    @property
    def name(self) -> str:
        """The server as it may be shown and stored."""
        return f"{self._url.scheme}://{self._url.netloc}{self._url.path}".rstrip("/")

    @property
    def is_openai(self) -> bool:
        """Whether this is OpenAI's own service, or Azure's."""
        return str(self._url.hostname).endswith(("openai.com", "azure.com"))

    def redact(self, text: str) -> str:
        """The text without the key, should a server echo it."""
        return text.replace(self._key, "[key]") if self._key else text

    def ask(self, body: str) -> Reply | Problem:
        """Send one request, a JSON text, and wait for the end of its answer."""
        data = body.encode()
        start = time.monotonic()
        fresh = not hasattr(self._local, "connection")
        try:
            answer = self._exchange(data)
        except TimeoutError:
            self.close()
            return Problem("timeout", f"no answer from {self.name} within {self.timeout:g} s")
        except OSError as error:
            self.close()
            closed = isinstance(error, ConnectionError) or (isinstance(error, CutError) and error.empty)
            if closed and not fresh:
                return self.ask(body)  # the server had closed an idle connection: nothing was lost
            return self._no_answer(error)
        if answer.status == 200:
            return self._reply(answer.body, time.monotonic() - start)
        return self._problem(answer.status, answer.headers, answer.body)

    def close(self) -> None:
        """Close this thread's connection."""
        if hasattr(self._local, "connection"):
            self._local.connection.close()
            del self._local.connection

    def _exchange(self, data: bytes) -> Answer:
        if not hasattr(self._local, "connection"):
            self._local.connection = Connection(self._url, self.timeout)
        answer: Answer = self._local.connection.post(self._head, data)
        if not answer.keep:
            self.close()
        return answer

    def _no_answer(self, error: OSError) -> Problem:
        words = self.redact(str(error)) or type(error).__name__
        if isinstance(error, CutError | ConnectionResetError | BrokenPipeError):
            return Problem("cut", f"the answer of {self.name} broke off: {words}"[:LONGEST_MESSAGE])
        return Problem("unreachable", f"nobody answers at {self.name}: {words}"[:LONGEST_MESSAGE])

    def _reply(self, raw: bytes, seconds: float) -> Reply | Problem:
        try:
            body = json.loads(self.redact(raw.decode("utf-8", "replace")))
        except ValueError:
            body = None
        return self.reply_of(body, seconds)

    def reply_of(self, body: Any, seconds: float = 0.0) -> Reply | Problem:
        """What a chat completion says; `broken` if it is none."""
        try:
            choice = body["choices"][0]
            message = choice["message"]
            text, refusal = message.get("content") or "", message.get("refusal") or ""
            finish = choice.get("finish_reason") or ""
        except (LookupError, TypeError, AttributeError):
            return Problem("broken", f"{self.name} answered with something that is no chat completion", 200)
        if finish == "content_filter":
            refusal = refusal or "content filter"
        usage = _usage(body.get("usage"))
        return Reply(str(text), finish == "length", usage, round(seconds, 3), str(refusal)[:LONGEST_MESSAGE])

    def _problem(self, status: int, headers: Mapping[str, str], raw: bytes) -> Problem:
        code, words = _error_of(self.redact(raw.decode("utf-8", "replace")))
        if status in (401, 403):
            return Problem("fatal", f"{self.name} refused the key ({status})", status, cure="check OPENAI_API_KEY")
        if status == 404:
            return Problem(
                "fatal", f"{self.name} has no such model", status, cure="check critic.model and base_url"
            )
        if code == "insufficient_quota":
            return Problem("fatal", f"{self.name}: the account's quota is used up", status, cure="add credit")
        if code == "content_filter":
            return Problem("refused", "content filter", status)
        if status == 429:
            return Problem("busy", f"{self.name} answered 429", status, retry_after(headers))
        if status in (408, 409, 425) or status >= 500:
            return Problem("broken", f"{self.name} answered {status}", status, retry_after(headers))
        return Problem("unfit", f"{self.name} answered {status}: {words}"[:LONGEST_MESSAGE], status)


def key_for(host: str) -> str:
    """The key that the environment has for a server; empty if it has none."""
    key = os.environ.get("OPENAI_API_KEY", "")
    return os.environ.get("AZURE_OPENAI_API_KEY", key) if "azure.com" in host else key


def _usage(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    names = ("prompt_tokens", "completion_tokens")
    return {name: float(value[name]) for name in names if isinstance(value.get(name), int | float)}


def _error_of(text: str) -> tuple[str, str]:
    """Code and message of a server's error, as far as it has any."""
    try:
        error = json.loads(text)
        error = error.get("error", error)
        if isinstance(error, dict):
            return str(error.get("code") or ""), " ".join(str(error.get("message") or text).split())
    except (ValueError, AttributeError):
        pass
    return "", " ".join(text.split())


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of Retry-After (a number or a date) or retry-after-ms; None where the server says nothing."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        return max(
            0.0, email.utils.parsedate_to_datetime(headers.get("retry-after") or "").timestamp() - time.time()
        )
    except ValueError:
        return None
