"""A scalar reward model that scores answers."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.feedback import Message
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.model import Policy


class LocalScorer:
    """Scores answers with a scalar reward model, `batch_size` at a time, those of similar length together."""

    def __init__(self, model: Policy, batch_size: int) -> None:
        self.model = model
        self.batch_size = batch_size
        self.tokens = 0.0  # read in all

    def scores(self, prompts: Sequence[Sequence[Message]], answers: Sequence[str]) -> list[float | None]:
        """The score of `answers[i]` to `prompts[i]`; None where the two are longer than the model's context."""
        tokenizer, context = self.model.tokenizer, self.model.context
        asked = [encode_prompt(tokenizer, prompt) for prompt in prompts]
        said = [encode_target(tokenizer, answer) for answer in answers]
        lengths = [len(before) + len(after) for before, after in zip(asked, said, strict=True)]
        fitting = [index for index, length in enumerate(lengths) if context is None or length <= context]
        fitting.sort(key=lengths.__getitem__)
        self.tokens += sum(lengths[index] for index in fitting)
        found: list[float | None] = [None] * len(said)
        for start in range(0, len(fitting), self.batch_size):
            chosen = fitting[start : start + self.batch_size]
            with self.model.evaluating():
                scores = self.model.scores(self.model.pack([asked[i] for i in chosen], [said[i] for i in chosen]))
            for index, score in zip(chosen, scores.tolist(), strict=True):
                found[index] = score
        return found
