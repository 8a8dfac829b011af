"""Sampling responses with Hugging Face `generate`, and a local model as a chat endpoint.

The ids that come back are the ids that were sampled. No special token is stripped, no text re-encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from text2grad.chat import Completion
from text2grad.feedback import Failure, Message
from text2grad.policy.encode import encode_prompt, stop_ids
from text2grad.policy.grounded import Grounded, Vocabulary
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings


@dataclass(frozen=True)
class Sample:
    """A sampled response: its ids (the end-of-turn token included when there is one) and whether it was cut."""

    ids: list[int]
    truncated: bool


Constraint = Callable[[Sequence[int]], LogitsProcessor]
"""What masks the scores of one batch, which holds the prompts of these indices."""


def generate(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    constraint: Constraint | None = None,
) -> list[Sample]:
    """Sample one response per prompt, in the order given.

    Prompts of similar length share a batch (less padding), padded on the left. Temperature 0 is greedy.
    Sampling is from the full distribution at `temperature`, so that it can be scored exactly as sampled; a
    model's own generation defaults (top-p, repetition penalty) are ignored for the same reason.
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
    samples: dict[int, Sample] = {}
    for start in range(0, len(order), settings.batch_size):
        chosen = order[start : start + settings.batch_size]
        processors = LogitsProcessorList([constraint(chosen)] if constraint else [])
        answers = _generate_batch(policy, [prompts[i] for i in chosen], settings, processors)
        samples.update(zip(chosen, answers, strict=True))
    return [samples[i] for i in range(len(prompts))]


def _generate_batch(
    policy: Policy, prompts: Sequence[Sequence[int]], settings: GenerationSettings, processors: LogitsProcessorList
) -> list[Sample]:
    pad = policy.tokenizer.pad_token_id
    width = max(len(ids) for ids in prompts)
    rows = [[pad] * (width - len(ids)) + list(ids) for ids in prompts]
    attention = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    stops = stop_ids(policy.tokenizer)
    with policy.evaluating():
        output = policy.model.generate(
            input_ids=torch.tensor(rows, device=policy.device),
            attention_mask=torch.tensor(attention, device=policy.device),
            generation_config=_generation_config(settings, stops, pad),
            logits_processor=processors,
        )
    return [_cut(row, set(stops)) for row in output[:, width:].tolist()]


def _generation_config(settings: GenerationSettings, stops: list[int], pad: int) -> GenerationConfig:
    sampled = settings.temperature > 0
    how = {"temperature": settings.temperature, "top_k": 0, "top_p": 1.0} if sampled else {}
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=settings.max_new_tokens,
        do_sample=sampled,
        eos_token_id=stops,
        pad_token_id=pad,
        **how,
    )


def _cut(row: list[int], stops: set[int]) -> Sample:
    for index, token in enumerate(row):
        if token in stops:
            return Sample(row[: index + 1], truncated=False)
    return Sample(row, truncated=True)


class LocalChat:
    """A model of this process as a chat endpoint: how the trained reward model answers (see `chat.Chat`).

    With a `vocabulary`, answers about a text are grounded in it (see `policy.grounded`).
    """

    def __init__(
        self,
        policy: Policy,
        settings: GenerationSettings,
        name: str,
        vocabulary: Vocabulary | None = None,
        whole_quotes: bool = False,
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.name = name
        self._vocabulary = vocabulary
        self._whole_quotes = whole_quotes

    def complete(self, conversations: Sequence[Sequence[Message]]) -> list[Completion | Failure]:
        """Answer each conversation; one that leaves no room for an answer is a typed failure, never cut."""
        return self._answer(conversations, None)

    def complete_about(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]
    ) -> list[Completion | Failure]:
        """The same, where answer i is a critique of `texts[i]`."""
        return self._answer(conversations, texts if self._vocabulary else None)

    def _answer(
        self, conversations: Sequence[Sequence[Message]], texts: Sequence[str] | None
    ) -> list[Completion | Failure]:
        prompts = [encode_prompt(self.policy.tokenizer, messages) for messages in conversations]
        limit, room = self.policy.context, self.settings.max_new_tokens
        fits = [i for i, ids in enumerate(prompts) if limit is None or len(ids) + room <= limit]
        answers: list[Completion | Failure] = [
            Failure(
                kind="unsupported", message=f"{len(ids)} prompt and {room} new tokens exceed the context of {limit}"
            )
            for ids in prompts
        ]
        constraint = self._grounding([texts[i] for i in fits]) if texts is not None else None
        samples = generate(self.policy, [prompts[i] for i in fits], self.settings, constraint)
        for index, sample in zip(fits, samples, strict=True):
            answers[index] = self._completion(prompts[index], sample)
        return answers

    def _grounding(self, texts: Sequence[str]) -> Constraint:
        vocabulary = self._vocabulary
        assert vocabulary is not None
        return lambda rows: Grounded(vocabulary, [texts[row] for row in rows], self.settings, self._whole_quotes)

    def _completion(self, prompt: list[int], sample: Sample) -> Completion:
        text = self.policy.tokenizer.decode(
            sample.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        usage = {"input_tokens": float(len(prompt)), "output_tokens": float(len(sample.ids))}
        return Completion(text=text, truncated=sample.truncated, usage=usage)
