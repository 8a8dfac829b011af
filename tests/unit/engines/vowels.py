"""A task and a critic for a model that is made in a moment: vowels are praised, other letters
blamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from text2grad.feedback import Critique, Example, Judgement, Message, Source, Span
from text2grad.tasks.base import Split

VOWELS = "aeiou"
WORDS = (
    *("--task.name", "vowels:Vowels", "--critic.kind", "vowels:LikesVowels", "--credit.outcome_weight", "0"),
    *("--run.threads", "1", "--generation.max_new_tokens", "8", "--ppo.rollouts", "16", "--ppo.lr", "1e-2"),
    *("--ppo.kl_coefficient", "0", "--ppo.max_kl", "null", "--ppo.mini_batches", "1", "--ppo.epochs", "2"),
    *("--ppo.micro_batch_size", "8"),
)
"""Settings over those of the demo with which a tiny model learns it in some ten steps."""


class Vowels:
    """Four prompts to train on and one held out."""

    name, critic_prompt = "vowels", "qa"

    def __init__(self, settings: Any = None) -> None:
        pass

    def examples(self, split: Split) -> list[Example]:
        words = ("sing",) if split == "heldout" else ("say", "write", "call", "shout")
        return [
            Example(id=each, prompt=(Message(role="user", content=f"{each} ok"),), reference="ok") for each in words
        ]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"vowels": share(response)}


class LikesVowels:
    """Praises every vowel and blames every other character; the score is the share of vowels."""

    source = Source(kind="program")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(text) for text in responses]

    def judge(self, text: str) -> Critique:
        spans = [
            Span(start=place, end=place + 1, label=1 if letter in VOWELS else -1, text=letter)
            for place, letter in enumerate(text)
        ]
        return Critique(text="vowels", spans=tuple(spans), score=2 * share(text) - 1)


def share(text: str) -> float:
    return sum(letter in VOWELS for letter in text) / max(1, len(text))
