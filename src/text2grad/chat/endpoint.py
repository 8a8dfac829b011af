"""One chat request to an OpenAI-compatible server, and its result.

Not through the openai SDK, which takes 3.7 ms of CPU for a request (docs/LOG.md): with 64 requests
in flight one core must do more than a thousand a second. It never retries and never raises for what
the server does: whoever asks decides (`asking`). The key is sent and redacted, and goes nowhere
else.
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from typing import Any, Literal
from urllib.parse import urlsplit

from text2grad.chat.complaint import Complaint, Reason, error_in, read_complaint
from text2grad.chat.transport import Answer, Connection, CutError, OversizedError
from text2grad.errors import UserError
from text2grad.feedback import ExcessiveJSONError, from_json

OPENAI_URL = "https://api.openai.com/v1"
KEY = "OPENAI_API_KEY"
LONGEST_WAIT = 300.0
"""Seconds. A server that asks for a longer pause has no answer today."""
LONGEST_MESSAGE = 300
CURE_OF_A_REQUEST = "set what it names (critic.prompted.model, max_tokens, temperature) to what it takes"
SHORTEST_SECRET = 8
"""Characters. What is shorter (`none`, `EMPTY`) opens no account, and may be a word of an answer."""
STRUCK = "[key]"
_ESCAPE = re.compile(r"[\\%&]")

Headers = Mapping[str, str] | Message
Trouble = Literal[
    "unreachable", "cut", "timeout", "busy", "broken", "oversized", "refused", "too_long", "unfit", "fatal"
]


@dataclass(frozen=True)
class Reply:
    """An answer: its text, whether it was cut at the token limit, what the server counts, seconds it took."""

    text: str
    truncated: bool
    usage: Mapping[str, Any]
    seconds: float
    refusal: str = ""


@dataclass(frozen=True)
class Problem:
    """No answer, and why.

    `unreachable`: no connection. `cut`: the answer broke off. `timeout`. `busy`: 429, asked for
    patience. `broken`: 5xx, or not a valid answer. `oversized`: an answer too long, or nested
    too deeply, to be read. `refused`: a content filter. `too_long`: this request does not fit the
    model. `unfit`: the server will never take this request (other 4xx). `fatal`: it will take none
    (key, model, quota, another address); `cure` mends it. `wait`: seconds it asked for. `options`:
    those of the request that the server does not take (`complaint`).
    """

    kind: Trouble
    message: str
    status: int = 0
    wait: float | None = None
    cure: str = ""
    options: frozenset[str] = frozenset()

    @property
    def passing(self) -> bool:
        """Whether asking again may help."""
        return self.kind in ("unreachable", "cut", "timeout", "busy", "broken")

    @property
    def about_the_form(self) -> bool:
        """Whether the server refused to hold its answer to a form."""
        return self.kind == "unfit" and "response_format" in self.options

    @property
    def may_be_the_form(self) -> bool:
        """Whether the same question in another form may be answered; some servers break over a form."""
        return self.kind == "unfit" or (self.kind == "broken" and self.status != 200)

    @property
    def may_cost(self) -> bool:
        """Whether the server may still charge for the request, because it may have written an answer."""
        return self.kind in ("cut", "timeout", "oversized") or (self.kind == "broken" and self.status == 200)


class Endpoint:
    """A server, by its base URL. Connections are kept open between requests; any thread may ask.

    `timeout` is seconds without a sign of an answer; a whole request may take five times as long. Whatever the
    server says is decoded first, and then the key is struck out of it (`redact`): everything that asks a server
    goes through here. Where it is not asked (`asks`), no key is needed.

    Raises:
        UserError: the URL cannot be used, or OpenAI itself is meant and there is no key.
    """

    def __init__(self, base_url: str | None, timeout: float, asks: bool = True) -> None:
        self.timeout = timeout
        self.url = url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        self._idle: deque[Connection] = deque()
        self._url = urlsplit(url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise UserError(f"base_url {url!r} is not an http(s) address", "for example http://localhost:8000/v1")
        if not url.isascii() or not url.isprintable():
            raise UserError(f"base_url {url!a} has characters that no address has", "write it in ASCII")
        if self._url.username or self._url.password:
            raise UserError("a base_url must not hold a password", "export OPENAI_API_KEY=... instead")
        azure = "azure.com" in self._url.hostname
        self.key = os.environ.get(KEY, "")
        if azure:
            self.key = os.environ.get("AZURE_OPENAI_API_KEY", self.key)
        if asks and not self.key and url == OPENAI_URL:
            raise UserError(f"no API key in {KEY}", f"export {KEY}=... or set critic.prompted.base_url")
        if not (self.key.isascii() and self.key.isprintable()):
            raise UserError("the API key has characters that no key has", f"export {KEY} again")
        self.redact = redactor(self.key)
        query = f"?{self._url.query}" if self._url.query else ""
        lines = [
            f"POST {self._url.path.rstrip('/')}/chat/completions{query} HTTP/1.1",
            f"Host: {self._url.netloc}",
            "Content-Type: application/json",
            "Accept: application/json",
            *([f"Authorization: Bearer {self.key}"] if self.key else []),
            *([f"api-key: {self.key}"] if azure else []),
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

    def ask(self, body: str) -> Reply | Problem:
        """Send one request, a JSON text, and wait for the end of its answer."""
        data, start = body.encode(), time.monotonic()
        while True:
            connection = None
            with suppress(IndexError):
                connection = self._idle.pop()
            used = connection is not None
            try:
                connection = connection or Connection(self._url, self.timeout)
                answer = self._exchange(connection, data)
            except OSError as error:
                closed = isinstance(error, ConnectionError) or (isinstance(error, CutError) and error.empty)
                if closed and used:
                    continue  # the server had closed an idle connection: nothing was lost
                return self._no_answer(error, sent=connection is not None)
            if answer.status != 200:
                return self._problem(answer.status, answer.headers, answer.body)
            try:
                content = from_json(answer.body.decode("utf-8", "replace"))
            except ExcessiveJSONError as error:
                return Problem("oversized", f"the answer of {self.name} is not read: {error.msg}", 200)
            except json.JSONDecodeError:
                content = None
            return self.reply_of(content, time.monotonic() - start)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with suppress(IndexError):  # another thread was quicker
                self._idle.pop().close()

    def _exchange(self, connection: Connection, data: bytes) -> Answer:
        keep = False
        try:
            answer = connection.post(self._head, data)
            keep = answer.keep
            return answer
        finally:
            if keep:
                self._idle.append(connection)
            else:
                connection.close()

    def _no_answer(self, error: OSError, sent: bool = True) -> Problem:
        words = self.redact(str(error)) or type(error).__name__
        if sent and isinstance(error, TimeoutError):
            return Problem("timeout", f"no whole answer from {self.name} within {self.timeout:g} s of silence")
        if isinstance(error, OversizedError):
            return Problem("oversized", f"the answer of {self.name} is not read: {words}"[:LONGEST_MESSAGE])
        if sent and isinstance(error, CutError | ConnectionResetError | BrokenPipeError):
            return Problem("cut", f"the answer of {self.name} broke off: {words}"[:LONGEST_MESSAGE])
        return Problem("unreachable", f"no answer from {self.name}: {words}"[:LONGEST_MESSAGE])

    def reply_of(self, body: Any, seconds: float = 0.0) -> Reply | Problem:
        """The content of a chat completion; the server's error where it sent one; `broken` if it is neither."""
        if (complaint := error_in(body)) is not None:
            return self.problem_of(200, complaint)
        try:
            choice = body["choices"][0]
            message = choice["message"]
            text, refusal = _text(message.get("content")), _text(message.get("refusal"))
            finish = _text(choice.get("finish_reason"))
        except (LookupError, TypeError, AttributeError):
            return Problem("broken", f"{self.name} answered with something that is not a chat completion", 200)
        refusal = refusal or _text(message.get("content"), "refusal")
        if finish == "content_filter":
            refusal = refusal or "content filter"
        usage, refusal = body.get("usage"), self.redact(refusal)[:LONGEST_MESSAGE]
        counts = usage if isinstance(usage, dict) else {}
        return Reply(self.redact(text), finish == "length", counts, round(seconds, 3), refusal)

    def _problem(self, status: int, headers: Headers, raw: bytes) -> Problem:
        if 300 <= status < 400:  # it is not followed, because the key and the responses would go there
            where, setting = _address(self.redact(headers.get("location", ""))), "critic.prompted.base_url"
            cure = f"if you trust it, --{setting} {where}" if where else f"set {setting} to its address"
            return Problem("fatal", f"{self.name} answered {status}: it has another address", status, cure=cure)
        return self.problem_of(status, read_complaint(raw.decode("utf-8", "replace")), retry_after(headers))

    def problem_of(self, status: int, complaint: Complaint, wait: float | None = None) -> Problem:
        """What a complaint means for the request and for those to come.

        The status inside of a complaint says what came of a request that was answered with 200.
        """
        reason, words = complaint.reason, self.redact(complaint.words)
        meant = complaint.status or 400 if status == 200 else status
        what = f"{self.name} answered {status}"
        what += f" with an error ({complaint.code})" if status == 200 and complaint.status else ""
        if meant in (400, 403, 404, 422) and reason == "moderated":
            return Problem("refused", f"content filter: {words}"[:LONGEST_MESSAGE], status)
        if fatal := _fatal(meant, reason):
            message = f"{self.name} {fatal[0]} ({meant}): {words}"[:LONGEST_MESSAGE].rstrip(": ")
            return Problem("fatal", message, status, cure=fatal[1])
        kind: Trouble = "unfit"
        if reason == "too_long" or meant == 413:
            kind = "too_long"
        elif meant == 429:
            kind = "busy"
        elif meant in (408, 409, 425) or meant >= 500 or meant < 300 or (status == 200 and reason == "busy"):
            kind = "broken"
        options = complaint.refused if kind == "unfit" else frozenset()
        message = f"{what}: {words}"[:LONGEST_MESSAGE].rstrip(": ")
        return Problem(kind, message, status, wait, CURE_OF_A_REQUEST if kind == "unfit" else "", options)


def _fatal(status: int, reason: Reason) -> tuple[str, str] | None:
    """What a server says of every request to come, and its cure; None where it says nothing of that kind."""
    if (status in (402, 403, 429) and reason == "credit") or status == 402:
        return "says that the account's quota is used up", "add credit"
    if status in (401, 403):
        return "refused the key", "check OPENAI_API_KEY"
    if status == 404 and reason != "options":
        return "has no such model", "check critic.prompted.model and base_url"
    if status not in (400, 422):
        return None
    return {
        "credit": ("says that the account's quota is used up", "add credit"),
        "key": ("refused the key", "check OPENAI_API_KEY"),
        "model": ("has no such model", "check critic.prompted.model and base_url"),
    }.get(reason)


def _address(location: str) -> str:
    """The base URL in a Location header, safe to show; empty if there is none."""
    try:
        place = urlsplit("".join(c for c in location if c.isascii() and c.isprintable())[:LONGEST_MESSAGE])
    except ValueError:
        return ""
    if place.scheme not in ("http", "https") or not place.netloc or "@" in place.netloc:
        return ""
    return f"{place.scheme}://{place.netloc}{place.path.removesuffix('/chat/completions')}"


def _text(value: Any, kind: str = "text") -> str:
    """A text, or the parts of that kind of a list of parts, joined; what a model thought first is neither."""
    if isinstance(value, str):
        return value if kind == "text" else ""
    parts = value if isinstance(value, list) else [value]
    return "".join(_part(part, kind) for part in parts if isinstance(part, dict))


def _part(part: Mapping[str, Any], kind: str) -> str:
    if (part.get("type") or "text") not in (kind, f"output_{kind}"):
        return ""
    text = part.get(kind, part.get("text"))
    text = text.get("value") if isinstance(text, dict) else text
    return text if isinstance(text, str) else ""


def retry_after(headers: Headers) -> float | None:
    """Seconds of Retry-After (a number or a date) or retry-after-ms; None where the server says nothing."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name) or "") / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        until = email.utils.parsedate_to_datetime(headers.get("retry-after") or "").timestamp()
        return max(0.0, until - time.time())
    except (ValueError, OverflowError, TypeError):
        return None


def redactor(key: str) -> Callable[[str], str]:
    """A function that takes the key out of decoded text.

    It is also found where each of its characters may be escaped once more, or several times, as in JSON inside of
    JSON (`\\u0073`, `\\\\/`), in a URL (`%73`) or in HTML (`&#115;`): what is stored here may be decoded later.
    """
    if len(key) < SHORTEST_SECRET:
        return lambda text: text
    pattern = re.compile("".join(map(_ways, key)))
    return lambda text: pattern.sub(STRUCK, text) if key in text or _ESCAPE.search(text) else text


def _ways(character: str) -> str:
    """A pattern of all ways to write a character."""
    code = ord(character)
    number = rf"0{{0,6}}(?i:{code:x})"
    escaped = (
        rf"\\{{1,8}}(?:[uU]\{{?{number}\}}?|x{number}|0?{code:o})"  # bounded: an answer may be all backslashes
    )
    return rf"(?:\\{{0,8}}{re.escape(character)}|{escaped}|%(?i:{code:02x})|&#(?:0{{0,6}}{code}|[xX]{number});?)"
