"""Small people's feedback in the published shapes, and a configuration that trains on it in
seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from text2grad.config import Config, find_config, load_config

SMALL = (
    *("--tiny.vocabulary", "300", "--run.threads", "1", "--sft.epochs", "1"),
    *("--reward_model.training.epochs", "1", "--reward_model.max_new_tokens", "8"),
    *("--generation.max_new_tokens", "8", "--ppo.steps", "1", "--ppo.rollouts", "4", "--ppo.value_warmup", "0"),
    *("--ppo.max_failed", "1.0", "--evaluate.samples", "1", "--critic.reward_model.gate", "false"),
)
"""Overrides that make `human_qa` small enough for a test; the model learns nothing."""


def small_config(folder: Path, *overrides: str) -> Config:
    """`human_qa` with a model that trains in a second, writing to `folder`."""
    return load_config(find_config("human_qa"), ["--run.folder", str(folder), *SMALL, *overrides])


def corrected_file(path: Path, count: int = 30, corrected: str = "It was {n}.") -> Path:
    """Remarks that correct the answers to `count` questions, each with one error at its end."""
    rows = [_corrected_row(n, corrected.format(n=n)) for n in range(count)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def reviews_file(path: Path, count: int = 30) -> Path:
    """Reviews without a corrected answer: two reviewers on each of `count` questions."""
    rows = [_review(n, worker) for n in range(count) for worker in ("a", "b")]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def _corrected_row(n: int, corrected: str) -> dict[str, Any]:
    answer = f"It was {n}, long ago."
    error = {"start": answer.index(","), "end": len(answer), "label": "poor", "reason": "Unverifiable"}
    return {
        "id": f"dev_feedback-{n + 1}",
        "prompt": f"What is number {n}?\n\nNumbers: The number is {n}.",
        "response": answer,
        "spans": [error],
        "critique": '", long ago." is not supported by the passages.',
        "score": -0.18,
        "corrected": corrected,
    }


def _review(n: int, worker: str) -> dict[str, Any]:
    return {
        "id": f"review-{n}-{worker}",
        "prompt": f"What is the plot? (story {n})",
        "response": f"Robot {n} lands. It never leaves.",
        "spans": [{"text": "It never leaves.", "label": "poor", "reason": "Incorrect"}],
        "critique": '"It never leaves.": Incorrect',
        "score": 0.0,
        "annotator": worker,
    }
