"""One chat request to an OpenAI-compatible server, and its result.

Sent by the openai SDK (`transport`). It never retries and never raises for what the server does:
`asking` decides that. The key is sent and redacted, and goes nowhere else.
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, urlsplit

from text2grad.chat.api_errors import ApiError, Reason, error_in, read_error
from text2grad.chat.reply import NoReplyError, Problem, Reply
from text2grad.errors import UserError
from text2grad.json_text import ExcessiveJSONError, from_json

if TYPE_CHECKING:
    import httpx2

    from text2grad.chat.transport import Client

OPENAI_URL = "https://api.openai.com/v1"
KEY = "OPENAI_API_KEY"
TIMEOUT = 120.0
"""Seconds without a sign of an answer."""
LONGEST_WAIT = 300.0
"""Seconds. A server that asks for a longer pause has no answer today."""
LONGEST_MESSAGE = 300
CURE_OF_A_REQUEST = "set what it names (critic.prompted.model, max_tokens, temperature) to what it takes"
SHORTEST_SECRET = 8
"""Characters. What is shorter (`none`, `EMPTY`) opens no account, and may be a word of an
answer."""
REDACTED = "[key]"
STREAM_STARTS = ("data:", "event:", "id:", "retry:", ":")
"""The first characters of server-sent events; JSON starts with none of them."""
FINISHES: Mapping[str, Literal["length", "content_filter"]] = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(
        ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "refusal"),
        "content_filter",
    ),
}
"""Finish reasons of OpenAI, Gemini, Anthropic and Mistral (lower case); any other is a stop."""
_ESCAPE = re.compile(r"[\\%&]")

FATAL: Mapping[Reason, tuple[str, str]] = {
    "credit": ("says that the account's quota is used up", "add credit"),
    "key": ("refused the key", "check OPENAI_API_KEY"),
    "model": ("has no such model", "check critic.prompted.model and base_url"),
    "path": ("has no chat completions there", "does base_url end in /v1, as in http://localhost:8000/v1?"),
}
"""Complaints that every request to come would meet, and their cures."""


class Endpoint:
    """A server, by its base URL. Connections are kept open between requests; any thread may ask.

    Whatever the server sends is decoded first, and then the key is redacted from it: every request
    to a server goes through here. With `asks` False no request is sent, and no key is needed.

    Raises:
        UserError: the URL cannot be used, or OpenAI itself is meant and there is no key.
    """

    def __init__(self, base_url: str | None, asks: bool = True) -> None:
        self.url = url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        self._url = _checked_url(url)
        azure = "azure.com" in str(self._url.hostname)
        self.key = os.environ.get(KEY, "")
        if azure:
            self.key = os.environ.get("AZURE_OPENAI_API_KEY", self.key)
        if asks and not self.key and url == OPENAI_URL:
            raise UserError(f"no API key in {KEY}", f"export {KEY}=... or set critic.prompted.base_url")
        if not (self.key.isascii() and self.key.isprintable()):
            raise UserError("the API key has characters that no key has", f"export {KEY} again")
        self.redact = redactor(self.key)
        self._client: Client | None = None
        if asks:
            from text2grad.chat.transport import Client  # imported here: the SDK takes time

            self._client = Client(url, self.key, {"api-key": self.key} if azure else {}, TIMEOUT)

    @property
    def name(self) -> str:
        """The server's address without its query."""
        return f"{self._url.scheme}://{self._url.netloc}{self._url.path}".rstrip("/")

    @property
    def is_openai(self) -> bool:
        """True for OpenAI's own service, and Azure's."""
        return str(self._url.hostname).endswith(("openai.com", "azure.com"))

    def ask(self, body: str) -> Reply | Problem:
        """Send one request, a JSON text, and wait for the end of its answer."""
        assert self._client is not None
        start = time.monotonic()
        try:
            response = self._client.post(body.encode())
            if response.status_code != 200:
                return self._problem(response.status_code, response.headers, response.text)
            content = self._content(response)
        except NoReplyError as error:
            what = {"oversized": "the answer is not read", "cut": "the answer broke off"}.get(
                error.kind, "no answer"
            )
            message = f"{what} from {self.name}: {self.redact(str(error))}"
            return Problem(error.kind, message[:LONGEST_MESSAGE], cure=error.cure)
        except ExcessiveJSONError as error:
            return Problem("oversized", f"the answer of {self.name} is not read: {error.msg}", 200)
        return self.reply_of(content, time.monotonic() - start)

    def _content(self, response: httpx2.Response) -> Any:
        """Return the JSON of an answer; None if it is not JSON, or not text in its declared
        character set."""
        assert self._client is not None
        try:
            text = response.content.decode(response.charset_encoding or "utf-8")
        except (ValueError, LookupError):
            return None
        if text.lstrip().startswith(STREAM_STARTS):
            return self._client.read_stream(response)
        try:
            return from_json(text)
        except ExcessiveJSONError:
            raise
        except json.JSONDecodeError:
            return None

    def close(self) -> None:
        """Close the idle connections."""
        if self._client is not None:
            self._client.close()

    def reply_of(self, body: Any, seconds: float = 0.0) -> Reply | Problem:
        """Read a chat completion, or the error that the server sent; `broken` if it is neither."""
        if (error := error_in(body)) is not None:
            return self.problem_of(200, error)
        try:
            choice = body["choices"][0]
            message = choice["message"]
            text, refusal = _text(message.get("content")), _text(message.get("refusal"))
            finish = FINISHES.get(_text(choice.get("finish_reason")).lower(), "stop")
        except (LookupError, TypeError, AttributeError):
            return Problem("broken", f"{self.name} answered with something that is not a chat completion", 200)
        refusal = refusal or _text(message.get("content"), "refusal")
        if finish == "content_filter":
            refusal = refusal or "content filter"
        usage, refusal = body.get("usage"), self.redact(refusal)[:LONGEST_MESSAGE]
        counts = usage if isinstance(usage, dict) else {}
        return Reply(self.redact(text), finish == "length", counts, round(seconds, 3), refusal)

    def _problem(self, status: int, headers: Mapping[str, str], body: str) -> Problem:
        if 300 <= status < 400:  # it is not followed, because the key and the responses would go there
            where, setting = _address(self.redact(headers.get("location", ""))), "critic.prompted.base_url"
            cure = f"if you trust it, --{setting} {where}" if where else f"set {setting} to its address"
            return Problem("fatal", f"{self.name} answered {status}: it has another address", status, cure=cure)
        return self.problem_of(status, read_error(body), retry_after(headers))

    def problem_of(self, status: int, error: ApiError, wait: float | None = None) -> Problem:
        """Say what an error means for the request and for those to come.

        The status inside of an error says what came of a request that was answered with 200.
        """
        reason, words = error.reason, self.redact(error.message)
        meant = error.status or 400 if status == 200 else status
        if meant in (400, 403, 404, 422) and reason == "moderated":
            return Problem("refused", f"content filter: {words}"[:LONGEST_MESSAGE], status)
        if fatal := _fatal(meant, error):
            message = f"{self.name} {fatal[0]} ({meant}): {words}"[:LONGEST_MESSAGE].rstrip(": ")
            return Problem("fatal", message, status, cure=fatal[1])
        message = f"{self.name} answered {meant}: {words}"[:LONGEST_MESSAGE].rstrip(": ")
        if reason == "too_long" or meant == 413:
            return Problem("too_long", message, status)
        if meant == 429:
            return Problem("busy", message, status, wait)
        if meant in (408, 409, 425) or meant >= 500 or meant < 300 or (status == 200 and reason == "busy"):
            return Problem("broken", message, status, wait)
        return Problem("unfit", message, status, wait, CURE_OF_A_REQUEST, error.refused)


def _checked_url(url: str) -> SplitResult:
    """Split a base URL.

    Raises:
        UserError: it cannot be used.
    """
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        usable = None
    if not usable or not url.isascii() or not url.isprintable():
        raise UserError(f"base_url {url!a} is not an http(s) address", "for example http://localhost:8000/v1")
    if "/chat/completions" in parts.path:
        raise UserError("a base_url ends before /chat/completions", f"set it to {_address(url)}")
    if parts.username or parts.password:
        raise UserError("a base_url must not hold a password", "export OPENAI_API_KEY=... instead")
    return parts


def _fatal(status: int, error: ApiError) -> tuple[str, str] | None:
    """Return what an error says of every request to come, and its cure; None for one of this
    request alone."""
    reason = error.reason
    if status == 402 or (status in (403, 429) and reason == "credit"):
        reason = "credit"
    elif status in (401, 403):
        reason = "key"
    elif status == 404 and not error.refused:
        reason = "path" if reason == "path" else "model"
    elif status not in (400, 405, 422):
        return None
    return FATAL.get(reason)


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
    """A text, or the parts of that kind of a list of parts, joined; what a model thought first is
    neither."""
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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of Retry-After (a number or a date) or retry-after-ms; None where the server says
    nothing."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        with suppress(ValueError):
            seconds = float(headers.get(name) or "") / unit
            if math.isfinite(seconds):
                return max(0.0, seconds)
    with suppress(ValueError, OverflowError, TypeError):
        until = email.utils.parsedate_to_datetime(headers.get("retry-after") or "").timestamp()
        return max(0.0, until - time.time())
    return None


def redactor(key: str) -> Callable[[str], str]:
    """A function that takes the key out of decoded text.

    It is also found where each of its characters may be escaped once more, or several times, as in
    JSON inside of JSON (`\\u0073`, `\\\\/`), in a URL (`%73`) or in HTML (`&#115;`): what is stored
    here may be decoded later.
    """
    if len(key) < SHORTEST_SECRET:
        return lambda text: text
    pattern = re.compile("".join(map(_ways, key)))
    return lambda text: pattern.sub(REDACTED, text) if key in text or _ESCAPE.search(text) else text


def _ways(character: str) -> str:
    """A pattern of all ways to write a character."""
    code = ord(character)
    number = rf"0{{0,6}}(?i:{code:x})"
    escaped = (
        rf"\\{{1,8}}(?:[uU]\{{?{number}\}}?|x{number}|0?{code:o})"  # bounded: an answer may be all backslashes
    )
    return rf"(?:\\{{0,8}}{re.escape(character)}|{escaped}|%(?i:{code:02x})|&#(?:0{{0,6}}{code}|[xX]{number});?)"
