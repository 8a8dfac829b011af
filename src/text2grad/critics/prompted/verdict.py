"""A reward model used for its verdict alone: same prompt as the prompted critic, nothing is generated.

For methods that pay the verdict alone. It is the one that would come with the critique, since the head reads it off
the state before the first word (`policy.heads`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from text2grad.chat.base import Answer, Chat, LimitedChat
from text2grad.critics.prompted.critic import tokens_in
from text2grad.critics.prompted.messages import fitted_messages
from text2grad.feedback import Critique, Example, Failure, Judgement, Source, overlap_of


class VerdictCritic:
    """A critic made of a chat model whose answers have a score (`Completion.score`); their text is not read."""

    def __init__(self, chat: Chat, prompt: str, source: Source) -> None:
        self.chat, self.source = chat, source
        self.overlap = overlap_of(chat)
        self.usage: Counter[str] = Counter()
        self._prompt = prompt

    @property
    def tokens(self) -> float:
        """Read in all, and one token for each answer."""
        return float(self.usage.total())

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """A critique without words or spans of each response; one without a verdict is a failure."""
        excess = self.chat.excess if isinstance(self.chat, LimitedChat) else lambda _: 0
        pairs = zip(examples, responses, strict=True)
        return [
            self._judgement(answer)
            for answer in self.chat.complete([fitted_messages(self._prompt, *pair, excess) for pair in pairs])
        ]

    def _judgement(self, answer: Answer) -> Judgement:
        if isinstance(answer, Failure):
            return answer
        self.usage.update(tokens_in(answer))
        if answer.score is None or not math.isfinite(answer.score):
            return Failure(kind="invalid", message=f"the verdict is {answer.score}")
        return Critique(text="", score=answer.score)
