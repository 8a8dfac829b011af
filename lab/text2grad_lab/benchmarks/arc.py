"""ARC-Challenge: multiple-choice science questions (Clark et al. 2018).

They show what a policy forgot in training. The prompt is that of the evaluation harnesses,
"Question: ...\\nAnswer:", without a chat template: the policy scores each answer.
"""

from __future__ import annotations

from text2grad.data.files import Row, required_text
from text2grad.data.published import Shape, read_examples, single_turn_example
from text2grad.feedback import Example
from text2grad.tasks.base import TaskSettings
from text2grad_lab.benchmarks import Benchmark

CHOICES, ANSWER = "choices", "answer"
"""Keys of an example's `meta`: the texts to choose from, and the index of the right one."""
HUB_NAME = "allenai/ai2_arc"


class ARC(Benchmark):
    """School questions; the command `choices` measures them by likelihood."""

    name = "ARC"

    def read_questions(self, settings: TaskSettings) -> list[Example]:
        """Return the questions of ARC-Challenge's test split."""
        return read_examples(settings.data or HUB_NAME, SHAPES, settings.limit, split="ARC-Challenge/test")


def _question(id: str, question: str, options: list[Row], key: str) -> Example:
    """Return a question with its options (`label`, `text`); `key` is the label of the right one.

    Raises:
        ValueError: no option has that label, or one has no text.
    """
    labels = [str(option["label"]) for option in options]
    texts = [required_text(option, "text").strip() for option in options]
    if key not in labels:
        raise ValueError(f"the answer {key!r} is not one of {', '.join(labels)}")
    answer = labels.index(key)
    example = single_turn_example(
        id, f"Question: {question.strip()}\nAnswer:", texts[answer], {"question": question}
    )
    return example.model_copy(update={"meta": {**example.meta, CHOICES: texts, ANSWER: answer}})


def _from_hub(row: Row, id: str) -> Example:
    choices = row["choices"]
    options = [
        {"label": label, "text": text} for label, text in zip(choices["label"], choices["text"], strict=True)
    ]
    return _question(str(row.get("id", id)), required_text(row, "question"), options, str(row["answerKey"]))


def _as_published(row: Row, id: str) -> Example:
    question = row["question"]
    return _question(
        str(row.get("id", id)), required_text(question, "stem"), question["choices"], str(row["answerKey"])
    )


def _with_options(row: Row, id: str) -> Example:
    return _question(str(row.get("id", id)), required_text(row, "question"), row["options"], str(row["answer"]))


SHAPES = (
    Shape("ARC on the hub", frozenset({"question", "choices", "answerKey"}), _from_hub),
    Shape("ARC as published", frozenset({"question", "answerKey"}), _as_published),
    Shape("questions with options", frozenset({"question", "options", "answer"}), _with_options),
)
