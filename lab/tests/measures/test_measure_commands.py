"""The command `texts`: figures of finished answers, and user errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Command

from text2grad.errors import EXIT_FAILED, EXIT_USAGE
from text2grad_lab.measures import read_texts
from tiny_runs import tiny_model

POSTS = [
    {"id": f"t{n}", "title": "", "post": f"keep {n} even", "ideal_human_summary": "it rains"} for n in range(3)
]


def figures_of(command: Command, *words: object) -> dict[str, Any]:
    ended = command(*words, "--json")
    assert ended.code == 0, ended.err
    figures: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
    return figures


@pytest.fixture
def run(tmp_path: Path) -> tuple[object, ...]:
    """A run on three posts with a tiny policy."""
    data = tmp_path / "posts.jsonl"
    data.write_text("".join(json.dumps(post) + "\n" for post in POSTS))
    task = ("--task.name", "summarization", "--task.data", data, "--task.heldout_data", data)
    tiny = ("--generation.max_new_tokens", "6", "--policy.model", tiny_model(tmp_path / "model"))
    return "--config", "demo", "--run.folder", tmp_path / "run", *task, *tiny


def test_answers_of_an_evaluation_are_measured(
    command: Command, tmp_path: Path, run: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bert:
        name = "bert"

        def __init__(self, *_: object) -> None: ...

    monkeypatch.setattr(read_texts, "Encoder", Bert)
    monkeypatch.setattr(read_texts, "bert_figures", lambda *_: {"bertscore_f1": 0.5})
    folder = tmp_path / "answers"
    folder.mkdir()
    rows = [{"id": f"t{n}", "response": text} for n, text in enumerate(("it rains", "", "rain"))]
    (folder / "mine.answers.json").write_text(json.dumps(rows))
    model = tmp_path / "model"
    figures = figures_of(command, "texts", folder, "--bertscore", "b", "--perplexity", model, *run)
    assert list(figures) == ["mine"] and figures["mine"]["perplexity"] > 1
    assert (figures["mine"]["answers"], figures["mine"]["bertscore_f1"]) == (3, 0.5)
    assert (figures["mine"]["bertscore"], figures["mine"]["perplexity_of"]) == ("bert", str(model))
    assert json.loads((folder / "mine.texts.json").read_text()) == figures["mine"]


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["."], EXIT_USAGE, "--bertscore"),
        ([".", "--perplexity", "sft"], EXIT_FAILED, "answers.json"),
        (["none.jsonl", "--perplexity", "sft"], EXIT_FAILED, "none.jsonl"),
        (["own.jsonl", "--perplexity", "sft"], EXIT_FAILED, "prompt"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.jsonl").write_text('{"response": "a", "reference": "b"}\n')
    ended = command("texts", *words, "--config", "demo", "--run.folder", tmp_path / "run")
    assert (ended.code, name in ended.err, len(ended.err.splitlines())) == (code, True, 1)
