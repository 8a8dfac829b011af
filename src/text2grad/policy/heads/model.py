"""A scalar model: a policy whose head scores an answer, read after its last token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from text2grad.feedback import Message
from text2grad.policy.episode import encode_turns
from text2grad.policy.model import Policy


def read_scores(policy: Policy, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> Tensor:
    """Return the scores (N,) of N answers, in one pass; both arguments are token ids."""
    head = policy.score_head
    assert head is not None
    columns = torch.tensor([len(answer) for answer in answers], device=policy.device)
    hidden = policy.reader(policy.model, policy.pack(prompts, answers)).hidden  # (B, T+1, H)
    scores: Tensor = head(hidden[torch.arange(len(answers), device=policy.device), columns])
    return scores


class ScalarModel:
    """Scores answers; those of similar length are read together, `batch_size` at a time."""

    def __init__(self, policy: Policy, batch_size: int = 32) -> None:
        self.policy = policy
        self.batch_size = batch_size
        self.tokens = 0.0  # read in all

    def scores(self, prompts: Sequence[Sequence[Message]], answers: Sequence[str]) -> list[float | None]:
        """The score of `answers[i]` to `prompts[i]`; None where the two are longer than the model's context."""
        context = self.policy.context
        threads = [encode_turns(self.policy.tokenizer, *each) for each in zip(prompts, answers, strict=True)]
        lengths = [len(each.prompt) + len(each.ids) for each in threads]
        fitting = [index for index, length in enumerate(lengths) if context is None or length <= context]
        fitting.sort(key=lengths.__getitem__)  # similar lengths share a pass: less padding
        scores: list[float | None] = [None] * len(threads)
        for start in range(0, len(fitting), self.batch_size):
            chosen = fitting[start : start + self.batch_size]
            self.tokens += sum(lengths[index] for index in chosen)
            asked, ids = [threads[index].prompt for index in chosen], [threads[index].ids for index in chosen]
            with self.policy.evaluating():
                read = read_scores(self.policy, asked, ids).tolist()
            for index, score in zip(chosen, read, strict=True):
                scores[index] = score
        return scores
