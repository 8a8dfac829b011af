"""What a server says against a request, in the words of any provider, and what of the request it is about.

Read are the shapes of OpenAI and Azure (`error.message`), vLLM (`message`), FastAPI and Mistral (`detail` with
`loc`), Gemini (a list), Anthropic, Groq, LiteLLM and OpenRouter (the provider's own error inside of theirs). An
option counts as refused only where one sentence names it and says that it is not taken; a limit on its value is
no refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from text2grad.feedback import from_json

Reason = Literal["moderated", "too_long", "options", "key", "credit", "model", "busy", ""]
"""What a complaint is about. Of `moderated` and `too_long` the cause lies in this one request, `options` are some
that the server does not take, `busy` passes; the others would hit every request.
"""
LIMITS = ("max_tokens", "max_completion_tokens")
LONGEST_ERROR = 100_000
"""Characters of an error that are read."""
_DEEPEST = 6

_CAUSES: Mapping[Reason, re.Pattern[str]] = {
    "moderated": re.compile(
        r"content[_ ]?(filter|policy|management)|responsibleai|data_inspection|inappropriate content|safety system"
        r"|\bflagged\b|requires moderation|violat\w+ .{0,40}polic",
        re.IGNORECASE,
    ),
    "too_long": re.compile(
        r"context[_ ]?(length|window|size|limit)|maximum context|above_max_length"
        r"|reduce (the|your) (length|prompt|input)"
        r"|(prompt|input|messages?|conversation)s? (is|are) too (long|large)|too many (input |prompt )?tokens"
        r"|too large for model|input token count|input tokens? exceed|request (is )?too large"
        r"|must be at least 1, got -",
        re.IGNORECASE,
    ),
    "credit": re.compile(
        r"credit balance|insufficient[_ ](balance|credits?|funds|quota)|arrear|overdue|more credits"
        r"|billing_hard_limit|payment required",
        re.IGNORECASE,
    ),
    "key": re.compile(
        r"api[ _-]?key.{0,20}(invalid|not valid|not found|incorrect|expired|missing)"
        r"|(invalid|incorrect)[ _]api[ _]?key",
        re.IGNORECASE,
    ),
    "model": re.compile(
        r"model[_ ]not[_ ]found|deployment ?not ?found|(invalid|unknown|no such) model\b|not a (valid |chat )model"
        r"|model\b[^.]{0,80}\b(does(n't| not) exist|not exist|not found|decommissioned)",
        re.IGNORECASE,
    ),
    "busy": re.compile(
        r"overloaded|rate[_ ]limit|temporar|time[d -]?out|try again|at capacity|server[_ ]error|unavailable",
        re.IGNORECASE,
    ),
}
_FORMS = re.compile(
    r"response[_ ]?format|json[_ ](schema|object|mode)|structured[_ ]outputs?|guided_|\bgrammar\b", re.IGNORECASE
)
_NAMED = {
    name: re.compile(rf"(?<![A-Za-z0-9_]){name.replace('_', '[_ ]?')}(?![A-Za-z0-9_])", re.IGNORECASE)
    for name in (*LIMITS, "temperature")
}
_NOT_TAKEN = re.compile(
    r"unsupported|disabled"
    r"|(not|n't) (be )?(supported|permitted|allowed|available|accepted|recogni[sz]ed|configurable)"
    r"|(does not|doesn't|do not|don't|cannot|no longer) (support|accept|allow|take)"
    r"|unknown|unrecogni[sz]ed|unexpected|extra[_ ](forbidden|inputs?|fields?|parameters?|keys?)|extraneous"
    r"|additional propert|deprecated|unavailable|cannot find field|not an? \w+ (field|parameter|property|argument)"
    r"|invalid parameter|must be (omitted|removed|unset)"
    r"|only\b.{0,60}\b(supported|allowed|accepted|permitted|default)"
    r"|((only|must|should) be (set to |equal to )?|expected |fixed (at|to) )1(\.0+)?(?![.\d])",
    re.IGNORECASE,
)
_OTHER_LIMIT = re.compile(r"\b(use|instead|requires?|required|replaced|missing)\b", re.IGNORECASE)
_OF_A_VALUE = re.compile(
    r"between|\brange\b|at (most|least)|less than|greater|larger|too (large|high|big|low|small)|exceed|maximum"
    r"|minimum|positive|\bor (less|lower|more|higher)|up to|[<>≤≥]",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"[.;!]+(?=\s|$)|\n")
_ECHO = re.compile(r"""['"]input['"]: ?.*?(?=\}|$)""")


@dataclass(frozen=True)
class Complaint:
    """`code`: the server's own, a word or a status. `words`: its message in one line. `refused`: options of a chat
    request that it does not take (`response_format` stands for every way to ask for a form)."""

    code: str = ""
    words: str = ""
    refused: frozenset[str] = frozenset()
    reason: Reason = ""

    @property
    def status(self) -> int:
        """The HTTP status that its code is; 0 if it is none."""
        return int(self.code) if re.fullmatch(r"[3-5]\d\d", self.code) else 0


def read_complaint(text: str) -> Complaint:
    """What the body of an error says; of what is no JSON its text."""
    text = text[:LONGEST_ERROR]
    try:
        value = from_json(text)
    except ValueError:
        value = text
    complaint = complaint_of(value)
    return complaint if complaint.words else replace(complaint, words=_line(text))


def complaint_of(value: Any) -> Complaint:
    """What an error says that came as a value of JSON."""
    parts = list(_parts(value))
    codes, words, params = ([text for kind, text in parts if kind == name] for name in ("code", "", "param"))
    whole = _ECHO.sub("", "\n".join(words).replace("’", "'"))
    refused = _refused(_SENTENCE.split(whole), params, codes)
    everything = "\n".join([*codes, whole])
    reason: Reason = next((reason for reason, cause in _CAUSES.items() if cause.search(everything)), "")
    if refused and reason not in ("moderated", "too_long"):
        reason = "options"
    return Complaint(next(iter(codes), ""), _line(": ".join(dict.fromkeys(words))), refused, reason)


def _line(text: str) -> str:
    """A text in one line, without control characters or invisible ones."""
    return "".join(filter(str.isprintable, " ".join(text.split())))


def error_in(body: Any) -> Complaint | None:
    """The error in a body that came with status 200, beside a choice or in it; None where there is an answer."""
    if not isinstance(body, dict | list) or not body:
        return None
    whole = body[0] if isinstance(body, list) else body
    choices = whole.get("choices") if isinstance(whole, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(whole, dict) or not isinstance(choice, dict):
        return None
    if choice.get("error") or choice.get("finish_reason") == "error":
        return complaint_of(choice.get("error") or whole.get("error") or "the answer ended in an error")
    message = choice.get("message")
    if isinstance(message, dict) and (message.get("content") or message.get("refusal")):
        return None
    error = whole.get("error") or whole.get("errors") or (whole if whole.get("object") == "error" else None)
    return complaint_of(error) if error else None


def _parts(value: Any, depth: int = _DEEPEST) -> Iterator[tuple[str, str]]:
    """("code", a code), ("param", an option) and ("", a message) in an error, the outermost first."""
    if isinstance(value, str):
        yield from _parts_of_text(value, depth)
    elif isinstance(value, list) and depth:
        for each in value[:8]:
            yield from _parts(each, depth - 1)
    elif isinstance(value, dict) and isinstance(value.get("loc"), list) and depth:
        place = ".".join(map(str, value["loc"]))
        yield "", f"{place}: {value.get('type', '')} {value.get('msg', '')}".strip()
    elif isinstance(value, dict) and depth:
        for name in ("code", "type", "status"):
            code = value.get(name)
            if isinstance(code, str | int) and str(code).strip().lower() not in ("", "none", "error"):
                yield "code", str(code)
        for name in ("error", "errors", "message", "msg", "detail", "innererror", "metadata", "raw"):
            yield from _parts(value.get(name), depth - 1)
        if isinstance(value.get("param"), str) and value["param"]:
            yield "param", value["param"]


def _parts_of_text(text: str, depth: int) -> Iterator[tuple[str, str]]:
    """A message; where it is, or ends in, another error as JSON, what that says."""
    start = min((at for at in map(text.find, ("{", "[{")) if at >= 0), default=-1)
    inner: list[tuple[str, str]] = []
    if depth and start >= 0:
        with suppress(ValueError):
            end = text.rindex("]" if text[start] == "[" else "}") + 1
            inner = list(_parts(from_json(text[start:end]), depth - 1))
    if any(kind == "" for kind, _ in inner):
        text = text[:start].strip(" :-")
        yield from [("", text)] if text else []
        yield from inner
    else:
        yield "", text


def _refused(sentences: Sequence[str], params: Sequence[str], codes: Sequence[str]) -> frozenset[str]:
    """The options that sentences say a server does not take; `params` is what sentences and codes are about."""
    nameless = [each for each in sentences if not any(name.search(each) for name in _NAMED.values())]
    nameless += [code for code in codes if code.startswith(("unsupported", "unknown"))]
    of_params = [f"{param}: {words}" for param in params for words in nameless]
    about = [*sentences, *of_params]
    refused = {"response_format"} if any(map(_FORMS.search, about)) else set()
    for sentence in about:
        if _OF_A_VALUE.search(sentence):
            continue
        named = {name for name, pattern in _NAMED.items() if pattern.search(sentence)}
        if _NOT_TAKEN.search(sentence):
            refused |= named
        elif _OTHER_LIMIT.search(sentence):
            refused |= {other for one, other in (LIMITS, LIMITS[::-1]) if one in named}
    return frozenset(refused)
