"""A task of one word per prompt, a critic that looks for it, and feedback records on its
prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.feedback import Critique, Example, Feedback, Judgement, Message, Source, Span
from text2grad.jsonl import write_jsonl as write
from text2grad.tasks.base import Split


def example(name: str) -> Example:
    return Example(id=name, prompt=(Message(role="user", content=f"Say {name}."),), reference=name)


class Words:
    """Three prompts to train on and two held out; an answer is right if it has the word."""

    name, critic_prompt = "words", "qa"

    def examples(self, split: Split) -> list[Example]:
        return [example(name) for name in (("x", "y") if split == "heldout" else ("a", "b", "c"))]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"right": float(example.reference in response)}


class Finder:
    """Finds the word, or blames the whole answer."""

    source = Source(kind="program")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self.judge(*pair) for pair in zip(examples, responses, strict=True)]

    def judge(self, asked: Example, response: str) -> Judgement:
        word = asked.prompt[0].content[4:-1]
        right = word in response
        spans = (Span(start=0, end=len(response), label=1 if right else -1, text=response),) if response else ()
        return Critique(text=f"wants {word}", spans=spans, score=1.0 if right else -1.0)


def record(name: str, response: str, **more: Any) -> Feedback:
    asked = example(name)
    critique = Finder().judge(asked, response)
    return Feedback.of(asked, response, critique, Source(kind="program")).model_copy(update=more)


RECORDS = [record("a", "so a"), record("a", "so b"), record("b", "so c"), record("c", "c"), record("c", "cc")]


def file_of(config: Config, records: Sequence[Feedback]) -> Path:
    path = config.run.folder.parent / "records.jsonl"
    write(path, records)
    return path
