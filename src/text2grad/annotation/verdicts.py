"""What raw answers say: one critique per answer, and one per item where several answers vote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, get_args

from text2grad import wire
from text2grad.errors import UserError
from text2grad.feedback import Critique, Failure, FailureKind, Judgement, Span
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
SAME_SPAN = 0.5
"""Two spans of one label are the same vote if they share at least half of the characters they cover together."""


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


def voted(judgements: Sequence[Judgement]) -> Judgement:
    """One judgement from several about one response.

    Spans of one label that overlap enough are one vote; those that more than half of the critiques cast stay,
    with the share of votes as their weight. Their edges are those most often cast. The text is that of the
    critique with the most spans that stayed; the score is the mean. With no critique at all: the first failure.
    """
    critiques = [judgement for judgement in judgements if isinstance(judgement, Critique)]
    if len(critiques) < 2:
        return critiques[0] if critiques else judgements[0]
    groups = _groups(critiques)
    kept = [_elected(votes, len(critiques)) for votes in groups if 2 * len(_voters(votes)) > len(critiques)]
    stayed = Counter(
        voter for votes in groups if 2 * len(_voters(votes)) > len(critiques) for voter in _voters(votes)
    )
    spokesman = critiques[max(range(len(critiques)), key=lambda index: (stayed[index], -index))]
    scores = [critique.score for critique in critiques if critique.score is not None]
    return spokesman.model_copy(
        update={
            "spans": tuple(sorted(kept, key=lambda span: (span.start, span.end, -span.label))),
            "score": round(fmean(scores), 4) if scores else None,
            **{name: sum(getattr(c, name) for c in critiques) for name in ("unmatched", "ambiguous")},
            **{name: sum(getattr(c, name) for c in critiques) for name in ("normalised", "fuzzy")},
            "lost": tuple(dict.fromkeys(quote for c in critiques for quote in c.lost)),
        }
    )


Vote = tuple[int, Span]


def _groups(critiques: Sequence[Critique]) -> list[list[Vote]]:
    """Votes for the same span: each joins the first group whose first span it matches, once per voter."""
    groups: list[list[Vote]] = []
    for voter, critique in enumerate(critiques):
        for span in critique.spans:
            group = next((g for g in groups if _same(g[0][1], span) and voter not in _voters(g)), None)
            if group is None:
                groups.append([(voter, span)])
            else:
                group.append((voter, span))
    return groups


def _voters(votes: Sequence[Vote]) -> set[int]:
    return {voter for voter, _ in votes}


def _same(a: Span, b: Span) -> bool:
    shared = min(a.end, b.end) - max(a.start, b.start)
    covered = max(a.end, b.end) - min(a.start, b.start)
    return a.label == b.label and shared >= SAME_SPAN * covered


def _elected(votes: Sequence[Vote], voters: int) -> Span:
    (edges, _), *_ = Counter((span.start, span.end) for _, span in votes).most_common(1)
    span = next(span for _, span in votes if (span.start, span.end) == edges)
    return span.model_copy(update={"weight": round(len(_voters(votes)) / voters, 4)})


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
