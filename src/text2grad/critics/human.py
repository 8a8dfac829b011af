"""People as critics: replays recorded reviews of a response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from text2grad.critics.spec import CriticSpec
from text2grad.critics.votes import vote
from text2grad.feedback import Example, Failure, Feedback, Judgement, Source


class HumanCritic:
    """Returns people's reviews of exactly this response to exactly this example; else `unsupported`.

    Of several opinions every span stays, weighted by the share of those who marked it, and the score is their mean.
    """

    source = Source(kind="human")

    def __init__(self, records: Iterable[Feedback]) -> None:
        self._known: dict[tuple[str, str], list[Judgement]] = {}
        for record in records:
            opinions = self._known.setdefault((record.id, record.response), [])
            if (judgement := record.judgement()) not in opinions:
                opinions.append(judgement)

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Look up each pair; a response without a review gives a `Failure`."""
        return [
            vote(opinions, share=0.0)
            if (opinions := self._known.get((example.id, response)))
            else Failure(kind="unsupported", message=f"{example.id}: this response has no review")
            for example, response in zip(examples, responses, strict=True)
        ]


HUMAN = CriticSpec(
    "human",
    make=lambda materials: HumanCritic(materials.feedback()),
    inputs=lambda materials: {"the feedback": materials.digest(materials.folder / "feedback.jsonl")},
    source="human",
    about="what people said of these very responses",
)
