"""A small MT-Bench in FastChat's format: a writing and a math question, and judge prompts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    {"question_id": 111, "category": "math", "turns": ["1 + 1?", "And 2 more?"]},
]
REFERENCES = [{"question_id": 111, "choices": [{"index": 0, "turns": ["2", "4"]}]}]
PROMPTS = [
    {
        "name": f"single{math}-v1{turns}",
        "system_prompt": "Rate from 1 to 10.",
        "prompt_template": ("Right: {ref_answer_1}\n" if math else "")
        + ("{question_1}: {answer_1}; {question_2}: {answer_2}" if turns else "{question}: {answer}"),
    }
    for math in ("", "-math")
    for turns in ("", "-multi-turn")
]


def mt_bench_folder(path: Path) -> Path:
    """Write the files of the benchmark to a folder."""
    _write(path / "question.jsonl", QUESTIONS)
    _write(path / "reference_answer_gpt-4.jsonl", REFERENCES)
    _write(path / "judge_prompts.jsonl", PROMPTS)
    return path


def _write(path: Path, rows: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
