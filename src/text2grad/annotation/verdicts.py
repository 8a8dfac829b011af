"""What raw answers say: one critique per answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from text2grad import wire
from text2grad.errors import UserError
from text2grad.feedback import Critique, Failure, FailureKind, Judgement
from text2grad.journal import State

STATE_OF: Mapping[FailureKind, State] = {
    "refused": "refused",
    "invalid": "invalid",
    "truncated": "invalid",
    "unsupported": "invalid",
    "exhausted": "exhausted",
}
Validation = Literal["keep", "ask", "drop"]
"""A critique with quotes that are not in the response (paper, appendix M.1): `keep` the spans that hold; `ask` once
more, then keep; `drop` the record from training (it becomes a typed failure) if the second answer is no better."""


@dataclass(frozen=True)
class Reader:
    """How answers are read. `repair`: json-repair may mend what is no JSON (servers without a JSON mode)."""

    ambiguity: wire.Ambiguity = "skip"
    grounding: wire.QuoteSearch | None = None
    validation: Validation = "drop"
    repair: bool = False

    def __post_init__(self) -> None:
        if self.ambiguity not in get_args(wire.Ambiguity):
            raise UserError(f"unknown ambiguity {self.ambiguity!r}", "first, all or skip")

    def read(self, line: Mapping[str, Any], response: str) -> Judgement:
        """The judgement in a line of the journal (an answer, or the failure that stands for it)."""
        if line["is"] == "failure":
            return Failure(kind=line["kind"], message=line["message"])
        if line.get("refusal"):
            return Failure(kind="refused", message=line["refusal"], raw=line["text"])
        text = line["text"]
        if line.get("truncated"):
            return Failure(kind="truncated", message="the answer ran into the token limit", raw=_storable(text))
        judgement = self._parse(text, response)
        if isinstance(judgement, Failure) and judgement.kind == "invalid" and self.repair and "{" in text:
            return self._repaired(text, response) or judgement
        return judgement

    def broken(self, judgement: Judgement) -> bool:
        """Whether a fresh sample is worth its price."""
        if isinstance(judgement, Failure):
            return judgement.kind in ("invalid", "truncated")
        return self.validation != "keep" and judgement.unmatched > 0

    def validated(self, judgement: Judgement) -> Judgement:
        """The judgement as it is kept: with `drop`, one that quotes what is not there is a failure."""
        if isinstance(judgement, Failure) or self.validation != "drop" or not judgement.unmatched:
            return judgement
        message = f"{judgement.unmatched} of its quotes are not in the response"
        return Failure(kind="invalid", message=message, raw="; ".join(judgement.lost))

    def _parse(self, text: str, response: str) -> Judgement:
        return wire.parse(text, response, ambiguity=self.ambiguity, grounding=self.grounding)

    def _repaired(self, text: str, response: str) -> Critique | None:
        """What json-repair makes of it, if every quote of that stands in the response, and each only once.

        A repair guesses where strings end; a wrong guess seldom quotes the response as whole words.
        """
        import json_repair

        value = json_repair.loads(text[text.index("{") : text.rindex("}") + 1])
        if not isinstance(value, dict):
            return None
        read = self._parse(json.dumps(value, ensure_ascii=False), response)
        return read if isinstance(read, Critique) and not (read.unmatched or read.ambiguous) else None


def state_of(judgement: Judgement) -> State:
    """How a request ended whose answer says this."""
    return STATE_OF[judgement.kind] if isinstance(judgement, Failure) else "ok"


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
