"""What came of one request to a chat server: a reply, or the problem in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from text2grad.chat.api_errors import Capability

Trouble = Literal[
    "unreachable", "cut", "timeout", "busy", "broken", "oversized", "refused", "too_long", "unfit", "fatal"
]


class NoReplyError(Exception):
    """The connection gave no answer, or none that is read (`kind`); `cure` is what the user can do
    about it."""

    def __init__(self, kind: Trouble, words: str, cure: str = "") -> None:
        super().__init__(words)
        self.kind, self.cure = kind, cure


@dataclass(frozen=True)
class Reply:
    """An answer: its text, whether it was cut at the token limit, what the server counts, seconds
    it took."""

    text: str
    truncated: bool
    usage: Mapping[str, Any]
    seconds: float
    refusal: str = ""


@dataclass(frozen=True)
class Problem:
    """The reason why there is no answer.

    `unreachable`: no connection. `cut`: the answer broke off. `timeout`. `busy`: 429. `broken`:
    5xx, or not a valid answer. `oversized`: an answer too long, or nested too deeply, to be read.
    `refused`: a content filter. `too_long`: this request does not fit the model. `unfit`: the
    server will never take this request (other 4xx). `fatal`: it will take none (key, model, quota,
    another address). `wait`: seconds the server asked for. `refused`: the capabilities of the
    request that it does not have.
    """

    kind: Trouble
    message: str
    status: int = 0
    wait: float | None = None
    cure: str = ""
    refused: frozenset[Capability] = frozenset()

    @property
    def passing(self) -> bool:
        """True if asking again may help."""
        return self.kind in ("unreachable", "cut", "timeout", "busy", "broken")

    @property
    def may_cost(self) -> bool:
        """True if the server may charge for the request, because it may have written an answer."""
        return self.kind in ("cut", "timeout", "oversized") or (self.kind == "broken" and self.status == 200)
