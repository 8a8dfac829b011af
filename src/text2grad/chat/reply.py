"""What came of one request to a chat server: a reply, or the problem in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Trouble = Literal[
    "unreachable", "cut", "timeout", "busy", "broken", "oversized", "refused", "too_long", "unfit", "fatal"
]


class NoReplyError(Exception):
    """The connection gave no answer, or none that is read (`kind`)."""

    def __init__(self, kind: Trouble, words: str) -> None:
        super().__init__(words)
        self.kind = kind


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
