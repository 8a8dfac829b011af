"""Merge several critiques of one response by voting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from statistics import fmean

from text2grad.feedback import (
    Critic,
    Critique,
    Example,
    Failure,
    Judgement,
    QuoteCounts,
    Span,
    overlap_of,
    tokens_of,
)

SAME_SPAN = 0.5
"""Two spans of one label are the same vote if they share at least half of the characters they cover together."""


def vote(judgements: Sequence[Judgement], share: float = 0.5) -> Judgement:
    """One judgement from several about one response.

    Spans of one label that overlap enough are one vote; those that more than `share` of the critiques cast stay,
    with the share of votes as their weight. Their edges are those most often cast. The text is that of the
    critique with the most spans that stayed; scores are means. With no critique at all: the first failure.
    """
    critiques = [judgement for judgement in judgements if isinstance(judgement, Critique)]
    if len(critiques) < 2:
        return critiques[0] if critiques else judgements[0]
    groups = [votes for votes in _groups(critiques) if len(votes) > share * len(critiques)]
    kept = [_elected(votes, len(critiques)) for votes in groups]
    stayed = Counter(voter for votes in groups for voter in votes)
    spokesman = critiques[max(range(len(critiques)), key=lambda index: (stayed[index], -index))]
    return spokesman.model_copy(
        update={
            "spans": tuple(sorted(kept, key=lambda span: (span.start, span.end, -span.label))),
            "score": _mean(critique.score for critique in critiques),
            "turn_scores": tuple(map(_mean, zip_longest(*(critique.turn_scores for critique in critiques)))),
            "quotes": sum((critique.quotes for critique in critiques), QuoteCounts()),
            "forced": sum(critique.forced for critique in critiques),
            "lost": tuple(dict.fromkeys(quote for c in critiques for quote in c.lost)),
        }
    )


def _mean(scores: Iterable[float | None]) -> float | None:
    given = [score for score in scores if score is not None]
    return round(fmean(given), 4) if given else None


Votes = dict[int, Span]
"""By the number of the critique that casts it."""


def _groups(critiques: Sequence[Critique]) -> list[Votes]:
    """Votes for the same span: each joins the first group whose first span it matches, once per voter."""
    groups: list[Votes] = []
    for voter, critique in enumerate(critiques):
        for span in critique.spans:
            alike = (g for g in groups if voter not in g and _same(next(iter(g.values())), span))
            if (group := next(alike, None)) is None:
                groups.append({voter: span})
            else:
                group[voter] = span
    return groups


def _same(a: Span, b: Span) -> bool:
    shared = min(a.end, b.end) - max(a.start, b.start)
    covered = max(a.end, b.end) - min(a.start, b.start)
    return a.label == b.label and shared >= SAME_SPAN * covered


def _elected(votes: Votes, voters: int) -> Span:
    (edges, _), *_ = Counter((span.start, span.end) for span in votes.values()).most_common(1)
    span = next(span for span in votes.values() if (span.start, span.end) == edges)
    return span.model_copy(update={"weight": round(len(votes) / voters, 4)})


class AgreeingCritic:
    """Two critics as one that says what both say: what they disagree about pays nothing (`agreed`)."""

    def __init__(self, first: Critic, second: Critic) -> None:
        self.source, self.overlap = first.source, overlap_of(first)
        self._both = first, second

    @property
    def tokens(self) -> float:
        """Read and written by both."""
        return sum(map(tokens_of, self._both))

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """What both critics say of each response."""
        said = [critic.critique(examples, responses) for critic in self._both]
        return [agreed(*each) for each in zip(*said, responses, strict=True)]


def agreed(one: Judgement, other: Judgement, response: str) -> Judgement:
    """The first critique with those places alone that the other gives the same label, as sure as the less sure one.

    The score is the mean of both, and none where one is above 0 and the other below. Of failures the first.
    """
    if isinstance(one, Failure) or isinstance(other, Failure):
        return one if isinstance(one, Failure) else other
    alike = [(a, b) for a in one.spans for b in other.spans if a.label == b.label]
    places = [(a, b, max(a.start, b.start), min(a.end, b.end)) for a, b in alike]
    spans = [
        a.model_copy(
            update={"start": start, "end": end, "text": response[start:end], "weight": min(a.weight, b.weight)}
        )
        for a, b, start, end in places
        if start < end
    ]
    known = one.score is not None and other.score is not None
    opposed = (one.score or 0.0) * (other.score or 0.0) < 0
    score = _mean((one.score, other.score)) if known and not opposed else None
    return one.model_copy(update={"spans": tuple(spans), "score": score})
