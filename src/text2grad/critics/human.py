"""People as critics: what they said about a response, played back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from text2grad.errors import UserError
from text2grad.feedback import Example, Failure, Feedback, Judgement, Source


class HumanCritic:
    """Answers with what people said about exactly this response to exactly this example; else `unsupported`.

    Raises:
        UserError: two records say different things about one response to one example.
    """

    source = Source(kind="human")

    def __init__(self, records: Iterable[Feedback]) -> None:
        self._known: dict[tuple[str, str], Judgement] = {}
        for record in records:
            key, judgement = (record.id, record.response), record.judgement()
            if self._known.setdefault(key, judgement) != judgement:
                raise UserError(f"two critiques of one response to {record.id!r}", "give each review its own id")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Look up each pair; a response without a review gives a `Failure`."""
        return [
            self._known.get((example.id, response))
            or Failure(kind="unsupported", message=f"{example.id}: this response has no review")
            for example, response in zip(examples, responses, strict=True)
        ]
