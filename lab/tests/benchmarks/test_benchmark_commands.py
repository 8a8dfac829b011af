"""The commands choices, mt-bench and alpaca: files, figures and user errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from mt_bench_folder import mt_bench_folder

from chat_server import ChatServer, Reply, last_message, said, servers_of
from text2grad.errors import EXIT_FAILED, EXIT_USAGE
from tiny_runs import tiny_model


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-key-of-anybody")


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], Reply]], ChatServer]]:
    def server(answer: Callable[[str], Reply]) -> ChatServer:
        return ChatServer(lambda name, turn, body: answer(name), last_message)

    with servers_of(server) as start:
        yield start


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def figures_of(command: Command, *words: object) -> dict[str, Any]:
    ended = command(*words, "--json")
    assert ended.code == 0, ended.err
    figures: dict[str, Any] = json.loads(ended.out.splitlines()[-1])
    return figures


def test_choices_of_a_policy(command: Command, tmp_path: Path) -> None:
    options = [{"label": "A", "text": "rain"}, {"label": "B", "text": "poem"}]
    rows = [{"id": f"q{n}", "question": f"Why {n}?", "options": options, "answer": "A"} for n in range(5)]
    run = ("--run.folder", tmp_path / "run", "--task.data", write(tmp_path / "questions.jsonl", rows))
    model = tiny_model(tmp_path / "model")
    words = ("--policy.model", model, "--evaluate.limit", "3")
    figures = figures_of(command, "choices", model, "--config", "demo", *run, *words)
    answers = json.loads(Path(figures["out"]).with_name("model.answers.json").read_text())
    assert [row["id"] for row in answers] == ["q0", "q1", "q2"] and figures["total"] == 3
    assert figures["likelihood_normalised"] == sum(row["response"] == "rain" for row in answers) / 3


def test_both_turns_of_mt_bench_are_answered_and_rated(
    command: Command, tmp_path: Path, serve: Callable[[Callable[[str], Reply]], ChatServer]
) -> None:
    server = serve(lambda name: said("[[8]]" if "And 2" in name else "[[5]]"))
    model, folder = tiny_model(tmp_path / "model"), mt_bench_folder(tmp_path)
    run = ("--config", "demo", "--run.folder", tmp_path / "run", "--task.data", folder)
    ended = command("mt-bench", model, *run)
    assert ended.code == EXIT_USAGE and "needs a judge" in ended.err
    judge = ("--evaluate.judge", "judge", "--evaluate.judge_url", server.url)
    tiny = ("--generation.max_new_tokens", "4", "--policy.model", model)
    figures = figures_of(command, "mt-bench", model, *run, *tiny, *judge)
    names = ("mt_bench", "turn_1", "turn_2", "writing", "math", "judged", "failed_records")
    assert [figures[name] for name in names] == [5.75, 5, 6.5, 5, 6.5, 4, 0]
    rows = [json.loads(line) for line in Path(figures["answers"]).read_text().splitlines()]
    assert [(row["question_id"], len(row["choices"][0]["turns"])) for row in rows] == [(81, 2), (111, 2)]
    lines = Path(figures["judgements"]).read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [5, 5, 5, 8]
    again = figures_of(command, "mt-bench", "--answers", figures["answers"], *run, *judge)
    assert [again[name] for name in names] == [figures[name] for name in names]
    assert len(server.bodies) == 4, "the same answers are not rated twice"


def test_alpacaeval_answers_are_written(command: Command, tmp_path: Path) -> None:
    rows = [{"instruction": f"keep {n} even", "output": "it rains", "generator": "gpt4"} for n in range(2)]
    data, model = tmp_path / "alpaca.json", tiny_model(tmp_path / "model")
    data.write_text(json.dumps(rows))
    run = ("--config", "demo", "--run.folder", tmp_path / "run", "--task.data", data, "--policy.model", model)
    tiny = ("--generation.max_new_tokens", "4", "--evaluate.samples", "1")
    out = tmp_path / "model_outputs.json"
    assert figures_of(command, "alpaca", model, "--out", out, *run, *tiny)["prompts"] == 2
    outputs = json.loads(out.read_text())
    assert [row["instruction"] for row in outputs] == [row["instruction"] for row in rows]
    assert {row["generator"] for row in outputs} == {"model"}


@pytest.mark.parametrize(
    ("words", "code", "name"),
    [
        (["mt-bench"], EXIT_FAILED, "--task.data FOLDER"),
        (["choices", "--task.split", "[0.3,0.5,0.2]"], EXIT_FAILED, "arc:ARC"),
    ],
)
def test_mistakes_are_one_line(command: Command, tmp_path: Path, words: list[str], code: int, name: str) -> None:
    ended = command(*words, "--config", "demo", "--run.folder", tmp_path / "run")
    assert (ended.code, name in ended.err, len(ended.err.splitlines())) == (code, True, 1)
