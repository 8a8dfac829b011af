"""Small people's feedback in the published shapes, and a configuration that trains on it in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from text2grad.config import Config, find_config, load_config

SMALL = (
    *("--tiny.vocabulary", "300", "--tiny.context", "1024", "--run.threads", "1", "--sft.epochs", "1"),
    *("--reward_model.training.epochs", "1", "--reward_model.generation.max_new_tokens", "8"),
    *("--generation.max_new_tokens", "8", "--ppo.steps", "1", "--ppo.rollouts", "4", "--ppo.value_warmup", "0"),
    *("--ppo.max_failed", "1.0", "--evaluate.samples", "1", "--critic.reward_model.gate", "false"),
)
"""Overrides that make `human_qa` small enough for a test; the model learns nothing."""


def small_config(folder: Path, *overrides: str) -> Config:
    """`human_qa` with a model that trains in a second, writing to `folder`."""
    return load_config(find_config("human_qa"), ["--run.folder", str(folder), *SMALL, *overrides])


def finegrained_file(path: Path, count: int = 30, corrected: str = "It was {n}.") -> Path:
    """FineGrainedRLHF's shape: `count` questions, each answer with one error at its end."""
    rows = [_finegrained_row(n, corrected.format(n=n)) for n in range(count)]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def squality_file(path: Path, count: int = 30) -> Path:
    """SQuALITY's flat shape: two reviewers on each of `count` questions."""
    rows = [_review(n, worker) for n in range(count) for worker in ("a", "b")]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def _finegrained_row(n: int, corrected: str) -> dict[str, Any]:
    answer = f"It was {n}, long ago."
    error = {"error type": "Unverifiable", "explanation": "", "start": answer.index(","), "end": len(answer)}
    return {
        "question": f"What is number {n}?",
        "passages": [["Numbers", f"The number is {n}."]],
        "gold": f"Number {n}.",
        "prediction 1": answer,
        "feedback": {"errors": [error], "missing-info": [], "corrected-prediction": corrected},
    }


def _review(n: int, worker: str) -> dict[str, Any]:
    return {
        "passage_id": str(n),
        "question_index": "0",
        "question": "What is the plot?",
        "system": "bart",
        "response": f"Robot {n} lands. It never leaves.",
        "worker_id": worker,
        "spans": [{"selection": "It never leaves.", "comment": ["Incorrect"]}],
        "correctness": 40,
        "selection": 50,
        "overall": 45,
    }
