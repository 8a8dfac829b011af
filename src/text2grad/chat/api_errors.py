"""Classify API errors by their cause and by the capability that the server refuses.

Supports the formats of OpenAI and Azure (`error.message`), vLLM (`message`), FastAPI and Mistral
(`detail` with `loc`), Gemini (a list), Anthropic, Groq, LiteLLM and OpenRouter (a provider's error
nested in another).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from text2grad.json_text import from_json

Reason = Literal["moderated", "too_long", "credit", "key", "model", "path", "busy", ""]
"""The cause of an error.

`moderated` and `too_long` concern a single request, `busy` is temporary, and the others would fail
every request.
"""
Capability = Literal[
    "json_schema", "json_object", "max_tokens", "max_completion_tokens", "temperature", "system_role"
]
LONGEST_ERROR = 100_000
"""Maximum characters of an error that are parsed."""
_DEEPEST = 6
_ECHO = re.compile(r"""['"]input['"]: ?.*?(?=\}|$)""")
_MESSAGES = ("message", "msg", "detail", "error", "errors", "raw", "")


class Fallback(NamedTuple):
    """A pattern of errors that refuse a capability, and the capability to use instead, if any."""

    refusal: re.Pattern[str]
    instead: str = ""


_UNSUPPORTED = (
    r"unsupported|disabled|unknown|unrecogni[sz]ed|unexpected|extra[_ ](forbidden|inputs?|parameters?)|extraneous"
    r"|deprecated|unavailable|cannot find field|must be (omitted|removed|unset)|fixed at"
    r"|(not|n't|no longer) (be )?(support|permit|allow|accept|recogni[sz]e|take)"
    r"|only\b.{0,60}\b(supported|allowed|accepted|default)|(only be set to|expected) 1\b"
)
_INVALID_VALUE = (
    r"between|\brange\b|at (most|least)|(less|greater|larger) than|too (large|high|big|low|small)|exceed|positive"
)


def _refusal(name: str, other: str = "") -> re.Pattern[str]:
    """Match an error that rejects the option `name` or requires the option `other`."""
    rejected = rf"(?=.*(?<![a-z0-9_]){name}(?![a-z0-9_]))(?=.*(?:{_UNSUPPORTED}))(?!.*(?:{_INVALID_VALUE}))"
    required = rf"|requires {other}\b|\b{other}: field required" if other else ""
    return re.compile(rf"\A(?:{rejected}){required}", re.IGNORECASE | re.DOTALL)


_FORMAT = re.compile(
    r"response[_ ]?format|json[_ ](schema|object|mode)|structured[_ ]outputs?|guided_", re.IGNORECASE
)
_SYSTEM_ROLE = re.compile(
    r"(?=.*(['\"]system['\"]|(system|developer)[ _](role|message|instruction|prompt)))"
    rf"(?=.*({_UNSUPPORTED}|not enabled))"
    r"|roles must alternate",
    re.IGNORECASE | re.DOTALL,
)
FALLBACKS: Mapping[Capability, Fallback] = {
    "json_schema": Fallback(_FORMAT, "json_object"),
    "json_object": Fallback(_FORMAT, "text"),
    "max_tokens": Fallback(_refusal("max_tokens", "max_completion_tokens"), "max_completion_tokens"),
    "max_completion_tokens": Fallback(_refusal("max_completion_tokens", "max_tokens"), "max_tokens"),
    "temperature": Fallback(_refusal("temperature")),
    "system_role": Fallback(_SYSTEM_ROLE),
}
"""Capabilities that some servers lack. An error about an option's value is not a refusal."""
_REASONS: Mapping[Reason, re.Pattern[str]] = {
    "moderated": re.compile(
        r"content[_ ]?(filter|policy|management)|responsibleai|data_inspection|inappropriate content|safety system"
        r"|\bflagged\b|requires moderation|violat\w+ .{0,40}polic",
        re.IGNORECASE,
    ),
    "too_long": re.compile(
        r"context[_ ]?(length|window|size|limit)|maximum context|reduce (the|your) (length|prompt|input)"
        r"|(prompt|input|messages?)s? (is|are) too (long|large)|too many (input |prompt )?tokens"
        r"|too large for model|input token count|input tokens? exceed|request (is )?too large",
        re.IGNORECASE,
    ),
    "credit": re.compile(
        r"credit balance|insufficient[_ ](balance|credits?|funds|quota)|more credits|billing_hard_limit"
        r"|payment required",
        re.IGNORECASE,
    ),
    "key": re.compile(
        r"api[ _-]?key.{0,20}(invalid|not valid|not found|incorrect|expired|missing)"
        r"|(invalid|incorrect)[ _]api[ _]?key",
        re.IGNORECASE,
    ),
    "model": re.compile(
        r"model[_ ]not[_ ]found|deployment ?not ?found|(invalid|unknown|no such) model\b"
        r"|model\b[^.]{0,80}\b(does(n't| not) exist|not found|decommissioned)",
        re.IGNORECASE,
    ),
    "path": re.compile(
        r"unexpected endpoint|invalid url|cannot post|no route|(page|file) not found|method not allowed"
        r"|^(error: )?not[ _]?found\W*$",
        re.IGNORECASE | re.MULTILINE,
    ),
    "busy": re.compile(
        r"overloaded|rate[_ ]limit|temporar|time[d -]?out|try again|at capacity|server[_ ]error|unavailable",
        re.IGNORECASE,
    ),
}


@dataclass(frozen=True)
class ApiError:
    """A classified error of a server.

    `status`: the HTTP status in the body, else 0. `message`: the error in one line. `refused`: the
    capabilities that the server does not support.
    """

    status: int = 0
    message: str = ""
    reason: Reason = ""
    refused: frozenset[Capability] = frozenset()


def read_error(body: str) -> ApiError:
    """Classify the body of an error response, which is JSON or plain text."""
    body = body[:LONGEST_ERROR]
    try:
        return classify(from_json(body) or body)
    except ValueError:
        return classify(body)


def classify(value: Any) -> ApiError:
    """Classify an error given as a JSON value."""
    texts = list(_texts(value))
    messages = [text for name, text in texts if name in _MESSAGES]
    full_text = _ECHO.sub("", "\n".join(text for _, text in texts).replace("’", "'"))
    reason: Reason = next((reason for reason, cause in _REASONS.items() if cause.search(full_text)), "")
    refused = {name for name, fallback in FALLBACKS.items() if fallback.refusal.search(full_text)}
    status = next((int(text) for name, text in texts if name == "code" and re.fullmatch(r"[3-5]\d\d", text)), 0)
    is_content_error = reason in ("moderated", "too_long")
    return ApiError(
        status,
        one_line(": ".join(dict.fromkeys(messages)) or (value if isinstance(value, str) else json.dumps(value))),
        "" if refused and not is_content_error else reason,
        frozenset() if is_content_error else frozenset(refused),
    )


def one_line(text: str) -> str:
    """Return a text as one line without control or invisible characters."""
    return "".join(filter(str.isprintable, " ".join(text.split())))


def error_in(body: Any) -> ApiError | None:
    """Classify the error in a body with status 200; None if the body has an answer."""
    body = body[0] if isinstance(body, list) and body else body
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        return None
    if choice.get("error") or choice.get("finish_reason") == "error":
        return classify(choice.get("error") or body.get("error") or "the answer ended in an error")
    message = choice.get("message")
    if isinstance(message, dict) and (message.get("content") or message.get("refusal")):
        return None
    error = body.get("error") or body.get("errors") or (body if body.get("object") == "error" else None)
    return classify(error) if error else None


def _texts(value: Any, name: str = "", depth: int = _DEEPEST) -> Iterator[tuple[str, str]]:
    """Yield (key, text) for every text and number, outermost first, without echoed input."""
    if isinstance(value, str):
        yield from _inner_texts(value, name, depth)
    elif isinstance(value, int):
        yield name, str(value)
    elif isinstance(value, list) and depth:
        for item in value[:8]:
            yield from _texts(item, name, depth - 1)
    elif isinstance(value, dict) and depth:
        for key, item in value.items():
            if key != "input":
                yield from _texts(item, str(key), depth - 1)


def _inner_texts(text: str, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield a text; if it ends in another error as JSON, yield the preceding text and its texts."""
    start = min((index for index in map(text.find, ("{", "[{")) if index >= 0), default=-1)
    if depth and start >= 0:
        try:
            inner = from_json(text[start : text.rindex("]" if text[start] == "[" else "}") + 1])
        except ValueError:
            inner = None
        if inner:
            if before := text[:start].strip(" :-"):
                yield name, before
            yield from _texts(inner, name, depth - 1)
            return
    if text:
        yield name, text
