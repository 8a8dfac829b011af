"""Rows of published data sets as responses to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from text2grad.feedback import Message


@dataclass(frozen=True)
class Response:
    """One response of a row; `feedback` is what a person wrote about it, "" where nobody did."""

    id: str
    prompt: str | tuple[Message, ...]
    response: str
    reference: str = ""
    feedback: str = ""
    meta: dict[str, Any] = field(default_factory=dict)


def responses_of(row: Mapping[str, Any]) -> list[Response] | None:
    """The responses in a row of a published shape; None: it is of no such shape."""
    return None
