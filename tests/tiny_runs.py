"""What tests of training share: a model that is made in a moment, and a critic that needs no
model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from text2grad.feedback import Critique, Example, Judgement, Message, Source, Span
from text2grad.policy.batch import TokenBatch
from text2grad.policy.model import Policy
from text2grad.policy.tiny import TinyShape, make_tiny_model

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
"""A model of two small layers, as the configurations of most families take it."""
TEXTS = ("keep the even ones", "write a short poem about rain", "def f(x):\n    return x + 1\n", "ok")
SMALL = TinyShape(hidden=32, layers=2, heads=2, feed_forward=48)


def tiny_model(path: Path, context: int = 128) -> Path:
    """A random Llama of two layers and its tokenizer in the folder `path`, always the same."""
    make_tiny_model(path, TEXTS, 300, context, SMALL, seed=3)
    return path


def whole_logits(model: Any, batch: TokenBatch) -> torch.Tensor:
    """(B, T, V) at the tokens of the responses, by the model's own forward over everything."""
    inputs = {"attention_mask": batch.attention_mask, "position_ids": batch.position_ids}
    logits: torch.Tensor = model(input_ids=batch.input_ids, **inputs).logits
    return logits[:, -batch.width - 1 : -1]


def ending(policy: Policy) -> Policy:
    """The policy, which ends its turns by itself now and then."""
    likelier = torch.zeros(len(policy.tokenizer)).index_fill_(0, torch.tensor(policy.stop_ids), 4.5)
    policy.model.get_output_embeddings().register_forward_hook(lambda module, inputs, logits: logits + likelier)
    return policy


class Talker:
    """An environment that never ends, and answers every turn with words that a critic would pay
    for."""

    say = "well said, "

    def reset(self, example: Example) -> Sequence[Message]:
        self.say = str(example.meta.get("say", self.say))
        return ()

    def step(self, turn: Message) -> tuple[Sequence[Message], bool]:
        return [Message(role="tool", content=f"{self.say}{len(turn.content)}")], False


class Halves:
    """Praises the first half of a response and blames the second; the score is the text's alone."""

    source = Source(kind="program")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        cut = len(text) // 2
        pieces = [(0, cut, 1), (cut, len(text), -1)]
        spans = [Span(start=a, end=b, label=c, text=text[a:b]) for a, b, c in pieces if b > a]  # type: ignore[arg-type]
        return Critique(text="half and half", spans=tuple(spans), score=self.score(text))

    def score(self, text: str) -> float:
        return (len(text) % 5 - 2) / 2
