"""Send one chat request to an OpenAI-compatible server and interpret the response.

Requests go through the openai SDK (`transport`), without retries. Errors of the server are
returned, not raised: `asking` decides what to do. The key is sent to the server and redacted from
responses.
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
"""Seconds that a server may be silent."""
LONGEST_WAIT = 300.0
"""Maximum seconds to wait when a server asks for a pause; a longer pause is a failure."""
LONGEST_MESSAGE = 300
REQUEST_CURE = "set critic.prompted.model, max_tokens or temperature to a value that it accepts"
SHORTEST_SECRET = 8
"""Minimum length of a redacted key; shorter ones (`none`, `EMPTY`) may be words of an answer."""
REDACTED = "[key]"
STREAM_STARTS = ("data:", "event:", "id:", "retry:", ":")
"""Prefixes of server-sent events, which cannot start JSON."""
FINISHES: Mapping[str, Literal["length", "content_filter"]] = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(
        ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "refusal"),
        "content_filter",
    ),
}
"""Finish reasons of OpenAI, Gemini, Anthropic and Mistral (lower case); any other means a stop."""
_ESCAPE = re.compile(r"[\\%&]")

FATAL: Mapping[Reason, tuple[str, str]] = {
    "credit": ("reports that the account's quota is used up", "add credit"),
    "key": ("refused the key", "check OPENAI_API_KEY"),
    "model": ("has no such model", "check critic.prompted.model and base_url"),
    "path": ("has no chat completions there", "does base_url end in /v1, as in http://localhost:8000/v1?"),
}
"""Errors that would fail every further request, with their cures."""


class Endpoint:
    """A server at a base URL; safe to use from many threads, with persistent connections.

    All requests to the server go through this class. Responses are decoded, and the key is then
    redacted from them. With `asks` False no request is sent, and no key is needed.

    Raises:
        UserError: the URL is invalid, or it is OpenAI's service and there is no key.
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
            raise UserError("the API key contains invalid characters", f"export {KEY} again")
        self.redact = redactor(self.key)
        self._client: Client | None = None
        if asks:
            from text2grad.chat.transport import Client  # imported late because the SDK loads slowly

            self._client = Client(url, self.key, {"api-key": self.key} if azure else {}, TIMEOUT)

    @property
    def name(self) -> str:
        """The server's address without its query."""
        return f"{self._url.scheme}://{self._url.netloc}{self._url.path}".rstrip("/")

    @property
    def is_openai(self) -> bool:
        """True for the services of OpenAI and Azure."""
        return str(self._url.hostname).endswith(("openai.com", "azure.com"))

    def ask(self, body: str) -> Reply | Problem:
        """Send one request (a JSON text) and wait for the complete answer."""
        assert self._client is not None
        start = time.monotonic()
        try:
            response = self._client.post(body.encode())
            if response.status_code != 200:
                return self._problem(response.status_code, response.headers, response.text)
            content = self._content(response)
        except NoReplyError as error:
            what = {"oversized": "an answer that is too large", "cut": "an incomplete answer"}.get(
                error.kind, "no answer"
            )
            message = f"{what} from {self.name}: {self.redact(str(error))}"
            return Problem(error.kind, message[:LONGEST_MESSAGE], cure=error.cure)
        except ExcessiveJSONError as error:
            return Problem("oversized", f"the answer of {self.name} is too large: {error.msg}", 200)
        return self.reply_of(content, time.monotonic() - start)

    def _content(self, response: httpx2.Response) -> Any:
        """Return the JSON of an answer; None if it is not JSON or not in its declared encoding."""
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
        """Parse a chat completion or an error of the server; `broken` if it is neither."""
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
        if 300 <= status < 400:  # not followed, because the key and the responses would be sent there
            address, setting = _address(self.redact(headers.get("location", ""))), "critic.prompted.base_url"
            cure = f"if you trust it, --{setting} {address}" if address else f"set {setting} to its address"
            return Problem("fatal", f"{self.name} answered {status}: it has another address", status, cure=cure)
        return self.problem_of(status, read_error(body), retry_after(headers))

    def problem_of(self, status: int, error: ApiError, wait: float | None = None) -> Problem:
        """Return what an error means for this request and for further ones.

        If the HTTP status is 200, the status inside the error counts.
        """
        reason, text = error.reason, self.redact(error.message)
        effective = error.status or 400 if status == 200 else status
        if effective in (400, 403, 404, 422) and reason == "moderated":
            return Problem("refused", f"content filter: {text}"[:LONGEST_MESSAGE], status)
        if fatal := _fatal(effective, error):
            message = f"{self.name} {fatal[0]} ({effective}): {text}"[:LONGEST_MESSAGE].rstrip(": ")
            return Problem("fatal", message, status, cure=fatal[1])
        message = f"{self.name} answered {effective}: {text}"[:LONGEST_MESSAGE].rstrip(": ")
        if reason == "too_long" or effective == 413:
            return Problem("too_long", message, status)
        if effective == 429:
            return Problem("busy", message, status, wait)
        is_temporary = effective in (408, 409, 425) or effective >= 500 or effective < 300
        if is_temporary or (status == 200 and reason == "busy"):
            return Problem("broken", message, status, wait)
        return Problem("unfit", message, status, wait, REQUEST_CURE, error.refused)


def _checked_url(url: str) -> SplitResult:
    """Parse a base URL."""
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        usable = None
    if not usable or not url.isascii() or not url.isprintable():
        raise UserError(f"base_url {url!a} is not an http(s) address", "for example http://localhost:8000/v1")
    if "/chat/completions" in parts.path:
        raise UserError("base_url must not include /chat/completions", f"set it to {_address(url)}")
    if parts.username or parts.password:
        raise UserError("base_url must not contain a password", "export OPENAI_API_KEY=... instead")
    return parts


def _fatal(status: int, error: ApiError) -> tuple[str, str] | None:
    """Return message and cure of an error that would fail every request; None for other errors."""
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
    """Return the base URL in a Location header, safe to print; empty if it is invalid."""
    try:
        url = urlsplit("".join(c for c in location if c.isascii() and c.isprintable())[:LONGEST_MESSAGE])
    except ValueError:
        return ""
    if url.scheme not in ("http", "https") or not url.netloc or "@" in url.netloc:
        return ""
    return f"{url.scheme}://{url.netloc}{url.path.removesuffix('/chat/completions')}"


def _text(value: Any, kind: str = "text") -> str:
    """Return a text, or the joined parts of one kind in a list of parts, without reasoning."""
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
    """Return the seconds of Retry-After (a number or a date) or retry-after-ms, or None."""
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
    """Return a function that removes the key from decoded text.

    The key is also found if its characters are escaped, even repeatedly, as in nested JSON
    (`\\u0073`, `\\\\/`), in a URL (`%73`) or in HTML (`&#115;`), because stored text may be decoded
    later.
    """
    if len(key) < SHORTEST_SECRET:
        return lambda text: text
    pattern = re.compile("".join(map(_encodings, key)))
    return lambda text: pattern.sub(REDACTED, text) if key in text or _ESCAPE.search(text) else text


def _encodings(character: str) -> str:
    """Return a pattern of all encodings of a character."""
    code = ord(character)
    number = rf"0{{0,6}}(?i:{code:x})"
    escaped = (
        rf"\\{{1,8}}(?:[uU]\{{?{number}\}}?|x{number}|0?{code:o})"  # bounded, for an answer of backslashes only
    )
    return rf"(?:\\{{0,8}}{re.escape(character)}|{escaped}|%(?i:{code:02x})|&#(?:0{{0,6}}{code}|[xX]{number});?)"
