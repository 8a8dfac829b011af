"""The result of one request to a chat server: a reply or a problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from text2grad.chat.api_errors import Capability

ProblemKind = Literal[
    "unreachable", "cut", "timeout", "busy", "broken", "oversized", "refused", "too_long", "unfit", "fatal"
]


class NoReplyError(Exception):
    """The connection gave no usable answer (`kind`); `cure` tells the user how to fix it."""

    def __init__(self, kind: ProblemKind, words: str, cure: str = "") -> None:
        super().__init__(words)
        self.kind, self.cure = kind, cure


@dataclass(frozen=True)
class Reply:
    """An answer of a server.

    `truncated`: the token limit was reached. `usage`: token counts of the server. `refusal`: the
    reason of a refusal, else empty.
    """

    text: str
    truncated: bool
    usage: Mapping[str, Any]
    seconds: float
    refusal: str = ""


@dataclass(frozen=True)
class Problem:
    """The reason why a request has no answer.

    Attributes:
        kind: `unreachable`: no connection. `cut`: the answer broke off. `timeout`. `busy`: status
            429. `broken`: status 5xx or an invalid answer. `oversized`: an answer too long or too
            deeply nested to parse. `refused`: a content filter. `too_long`: the request does not
            fit the model. `unfit`: the server rejects this request (other 4xx). `fatal`: the server
            rejects every request (key, model, quota, redirection).
        message: the error in one line.
        status: the HTTP status, or 0.
        wait: seconds that the server asked to wait.
        cure: how the user can fix it.
        refused: capabilities of the request that the server does not support.
    """

    kind: ProblemKind
    message: str
    status: int = 0
    wait: float | None = None
    cure: str = ""
    refused: frozenset[Capability] = frozenset()

    @property
    def is_temporary(self) -> bool:
        """True if a retry may succeed."""
        return self.kind in ("unreachable", "cut", "timeout", "busy", "broken")

    @property
    def may_cost(self) -> bool:
        """True if the server may charge for the request because it may have generated an answer."""
        return self.kind in ("cut", "timeout", "oversized") or (self.kind == "broken" and self.status == 200)
