"""One critique from several about the same response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from text2grad.feedback import Critique, Judgement, QuoteCounts, Span

SAME_SPAN = 0.5
"""Two spans of one label are the same vote if they share at least half of the characters they cover together."""


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
            "quotes": sum((critique.quotes for critique in critiques), QuoteCounts()),
            "forced": sum(critique.forced for critique in critiques),
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
