"""People as critics: replay recorded reviews of a response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from statistics import fmean

from text2grad.critics.spec import CriticSpec
from text2grad.feedback import Critique, Example, Failure, Feedback, Judgement, QuoteCounts, Source, Span
from text2grad.feedback.spans import sort_by_place

SAME_SPAN = 0.5
"""Overlap (shared characters by covered characters) from which two spans are one opinion."""


class HumanCritic:
    """Returns the human reviews of a response; `unsupported` without one.

    `records` are the reviews. They are found by example id and response text. Several opinions are
    merged (`merge_opinions`).
    """

    source = Source(kind="human")

    def __init__(self, records: Iterable[Feedback]) -> None:
        by_person: dict[tuple[str, str], list[tuple[object, Judgement]]] = {}
        for record in records:
            opinions = by_person.setdefault((record.id, record.response), [])
            person = record.source.model, record.meta.get("annotator")
            if (opinion := (person, record.judgement())) not in opinions:  # the same record twice counts once
                opinions.append(opinion)
        self._reviews = {key: [judgement for _, judgement in opinions] for key, opinions in by_person.items()}

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Look up each pair; a response without a review gives a `Failure`."""
        return [
            merge_opinions(opinions)
            if (opinions := self._reviews.get((example.id, response)))
            else Failure(kind="unsupported", message=f"{example.id}: this response has no review")
            for example, response in zip(examples, responses, strict=True)
        ]


def merge_opinions(judgements: Sequence[Judgement]) -> Judgement:
    """Merge several opinions about one response.

    Spans of one label that overlap by `SAME_SPAN` become one span with the bounds of the first,
    weighted by the share of people who marked it. The text is taken from the critique with the most
    spans; scores are averaged. Without a critique, the first failure is returned.
    """
    critiques = [judgement for judgement in judgements if isinstance(judgement, Critique)]
    if len(critiques) < 2:
        return critiques[0] if critiques else judgements[0]
    return max(critiques, key=lambda critique: len(critique.spans)).model_copy(
        update={
            "spans": sort_by_place(_weighted_spans(critiques)),
            "score": _mean(critique.score for critique in critiques),
            "turn_scores": tuple(map(_mean, zip_longest(*(critique.turn_scores for critique in critiques)))),
            "quotes": sum((critique.quotes for critique in critiques), QuoteCounts()),
            "lost": tuple(dict.fromkeys(quote for critique in critiques for quote in critique.lost)),
        }
    )


def _mean(scores: Iterable[float | None]) -> float | None:
    numbers = [score for score in scores if score is not None]
    return round(fmean(numbers), 4) if numbers else None


def _weighted_spans(critiques: Sequence[Critique]) -> Iterator[Span]:
    """Yield the distinct spans, weighted by the share of people who marked them."""
    groups: list[tuple[Span, set[int]]] = []
    for person, critique in enumerate(critiques):
        for span in critique.spans:
            matches = (people for first, people in groups if person not in people and _is_same(first, span))
            people = next(matches, None)
            if people is None:
                groups.append((span, {person}))
            else:
                people.add(person)
    for span, people in groups:
        yield span.model_copy(update={"weight": round(len(people) / len(critiques), 4)})


def _is_same(first: Span, second: Span) -> bool:
    shared = min(first.end, second.end) - max(first.start, second.start)
    covered = max(first.end, second.end) - min(first.start, second.start)
    return first.label == second.label and shared >= SAME_SPAN * covered


HUMAN = CriticSpec(
    "human",
    make=lambda settings, ready: HumanCritic(ready.run.feedback()),
    files=lambda settings, folder: {"the feedback": folder / "feedback.jsonl"},
    source="human",
    about="replays human feedback on these responses",
)
