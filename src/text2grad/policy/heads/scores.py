"""A scalar reward model that scores answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        found: list[float | None] = [None] * len(said)
        for chosen in alike(lengths, context, self.batch_size):
            self.tokens += sum(lengths[index] for index in chosen)
            with self.model.evaluating():
                scores = self.model.scores(self.model.pack([asked[i] for i in chosen], [said[i] for i in chosen]))
            for index, score in zip(chosen, scores.tolist(), strict=True):
                found[index] = score
        return found


def alike(lengths: Sequence[int], context: int | None, size: int) -> Iterator[list[int]]:
    """The indices of the lengths that fit into a context, `size` at a time, those of similar length together."""
    fitting = [index for index, length in enumerate(lengths) if context is None or length <= context]
    fitting.sort(key=lengths.__getitem__)
    for start in range(0, len(fitting), size):
        yield fitting[start : start + size]
