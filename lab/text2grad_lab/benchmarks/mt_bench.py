"""MT-Bench: 80 questions of two turns, rated by a judge from 1 to 10 (Zheng et al. 2023).

`task.data` is a folder with FastChat's files: `question.jsonl`, `judge_prompts.jsonl`, and
`reference_answer_gpt-4.jsonl` for the categories with right answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.data.files import Row, convert_rows, read_rows, required_text
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.tasks.base import TaskSettings
from text2grad_lab.benchmarks import Benchmark

TURNS, CATEGORY, REFERENCES = "turns", "category", "references"
"""Keys of an example's `meta`: the user's turns, their category, and any reference answers."""
QUESTIONS, REFERENCE_FILE = "question.jsonl", "reference_answer_gpt-4.jsonl"
TEMPERATURES = {"writing": 0.7, "roleplay": 0.7, "stem": 0.1, "humanities": 0.1}
"""FastChat's sampling temperatures by category; 0 for the others."""
WITH_REFERENCE = ("math", "reasoning", "coding")
"""Categories whose judge sees a reference answer."""


class MTBench(Benchmark):
    """Questions of two turns; the prompt of an example is the first."""

    name = "MTBench"

    def read_questions(self, settings: TaskSettings) -> list[Example]:
        """Return the questions of a folder with FastChat's files."""
        folder = Path(settings.data)
        if not settings.data or not (folder / QUESTIONS).is_file():
            cure = f"--task.data FOLDER with {QUESTIONS}, judge_prompts.jsonl and {REFERENCE_FILE}, as in FastChat"
            raise UserError(f"no MT-Bench in {settings.data or 'task.data'!r}", cure)
        references = _references(folder / REFERENCE_FILE)
        rows = list(read_rows(folder / QUESTIONS))[: settings.limit]
        keys = frozenset({"question_id", "category", "turns"})

        def convert(row: Row, _: str) -> list[Example]:
            return [_question(row, references)]

        return list(convert_rows(rows, folder / QUESTIONS, keys, convert, "MT-Bench"))


def next_turn(example: Example, answers: Sequence[str]) -> Example:
    """Return the conversation so far, up to the user's turn that is answered next."""
    turns = [Message(role="user", content=text) for text in example.meta[TURNS][: len(answers) + 1]]
    replies = [Message(role="assistant", content=text) for text in answers]
    messages = [turn for pair in zip(turns, replies, strict=False) for turn in pair]
    return example.model_copy(update={"prompt": (*messages, turns[len(answers)])})


def read_answers(path: Path, questions: Iterable[Example]) -> dict[str, list[str]]:
    """Return the answered turns by question id from a file of FastChat's `model_answer`.

    Raises:
        UserError: a row is invalid or answers an unknown question, or a question has no answer.
    """
    turn_counts = {example.id: len(example.meta[TURNS]) for example in questions}
    keys = frozenset({"question_id", "choices"})
    answers = dict(
        convert_rows(read_rows(path), path, keys, lambda row, _: [_answer(row, turn_counts)], "MT-Bench answer")
    )
    missing = [id for id in turn_counts if id not in answers]
    if missing:
        raise UserError(f"{path} has no answer to question {missing[0]}", "answer all, or set --task.limit")
    return answers


def _answer(row: Row, turn_counts: Mapping[str, int]) -> tuple[str, list[str]]:
    id, turns = str(row["question_id"]), row["choices"][0]["turns"]
    if id not in turn_counts:
        raise ValueError(f"{id!r} is not a question of this MT-Bench")
    return id, _texts(turns, turn_counts[id])


def _references(path: Path) -> dict[str, list[str]]:
    if not path.is_file():
        return {}
    keys = frozenset({"question_id", "choices"})

    def convert(row: Row, _: str) -> list[tuple[str, list[str]]]:
        return [(str(row["question_id"]), _texts(row["choices"][0]["turns"], None))]

    return dict(convert_rows(read_rows(path), path, keys, convert, "MT-Bench reference"))


def _question(row: Row, references: Mapping[str, list[str]]) -> Example:
    id, turns, category = str(row["question_id"]), _texts(row["turns"], None), required_text(row, "category")
    right = references.get(id, []) if category in WITH_REFERENCE else []
    if category in WITH_REFERENCE and len(right) < len(turns):
        raise ValueError(f"question {id} ({category}) needs a reference answer in {REFERENCE_FILE}")
    meta: dict[str, Any] = {TURNS: turns, CATEGORY: category, REFERENCES: right}
    return Example(id=id, prompt=(Message(role="user", content=turns[0]),), meta=meta)


def _texts(turns: Any, count: int | None) -> list[str]:
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError("'turns' is not a list of texts")
    if count is not None and len(turns) < count:
        raise ValueError(f"{len(turns)} of {count} turns")
    return turns if count is None else turns[:count]
