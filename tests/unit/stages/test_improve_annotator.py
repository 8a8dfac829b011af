"""`improve --annotator`: a chat model marks the words of comments, after its cost is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chat_server import KEY, ChatServer, Reply, last_message, said, servers_of
from human_data import small_config
from text2grad.config import Config
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl
from text2grad.stages.improve.inbox import run_inbox
from text2grad.stages.improve.run import run_improve
from text2grad.stages.improve.source import ImproveOptions
from workbook_files import write_xlsx

QUICK = ("--sft.epochs", "1", "--offline.epochs", "1", "--generation.max_new_tokens", "8")
WRONG = ("the best choice", "Sydney", "54")
"""What the model blames: a superlative, and the known faults of the canaries."""


def mark(name: str, turn: int, body: dict[str, Any]) -> Reply:
    text = last_message(body)
    response = text[text.index("<response>") :]
    poor = [words for words in WRONG if words in response]
    good = ["a week"] if "a week" in response else []
    return said(json.dumps({"critique": "x", "good_spans": good, "poor_spans": poor, "omissions": []}))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with servers_of(ChatServer) as start:
        yield start(mark)


def config_of(folder: Path, server: ChatServer) -> Config:
    return small_config(folder / "run", *QUICK, "--critic.prompted.base_url", server.url)


def comments(folder: Path) -> Path:
    """Twelve comments, of which half are about a superlative that none of them quotes."""
    rows: list[tuple[str, ...]] = [("Question", "Answer", "Comment")]
    for number in range(12):
        praise = "the best choice and " if number % 2 else ""
        comment = "No superlatives please." if number % 2 else "Fine."
        rows.append((f"Describe lamp {number}.", f"Lamp {number} is {praise}30 cm wide.", comment))
    return write_xlsx(folder / "feedback.xlsx", {"Feedback": rows})


def test_comments_are_marked_once_and_trained_on(
    tmp_path: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = comments(tmp_path), config_of(tmp_path, server)
    assert run_improve(config, path, ImproveOptions()).steps == (), "nothing to learn without marks"
    summary = run_improve(config, path, ImproveOptions(annotator="gpt-4o"))
    shown = capsys.readouterr().err
    assert "gpt-4o: 12 requests" in shown and "tokens in" in shown and "USD" in shown
    assert "6 of 12 comments now point at words" in shown and "annotate --anchor" in shown
    assert summary.steps == ("sft", "offline") and summary.minutes is not None
    records = list(read_jsonl(tmp_path / "run" / "feedback.jsonl", Feedback))
    marked = {record.spans[0].text for record in records if record.spans}
    assert len(records) == 12 and marked == {"the best choice"}
    assert all(record.source.kind == "human" for record in records)

    count = len(server.bodies)
    again = run_improve(config, path, ImproveOptions(annotator="gpt-4o"))
    assert len(server.bodies) == count and again.minutes == summary.minutes, "paid and trained once"


def test_nothing_is_asked_before_the_cost_is_approved(
    tmp_path: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = comments(tmp_path), config_of(tmp_path, server)
    questions: list[str] = []

    def refuse(question: str) -> bool:
        questions.append(question)
        return False

    run_improve(config, path, ImproveOptions(annotator="a-model"), refuse)
    assert questions == ["Ask a-model?"] and "price unknown" in capsys.readouterr().err
    run_improve(config, path, ImproveOptions(annotator="a-model", plan=True))
    assert "12 requests" in capsys.readouterr().err
    assert not server.bodies and not (tmp_path / "run").exists()


def test_an_inbox_has_its_comments_marked(tmp_path: Path, server: ChatServer) -> None:
    (tmp_path / "inbox").mkdir()
    comments(tmp_path / "inbox")
    options = ImproveOptions(annotator="gpt-4o")
    summary = run_inbox(config_of(tmp_path, server), tmp_path / "inbox", options)
    assert summary.minutes is not None and (tmp_path / "run" / "ppo" / "offline" / "policy").is_dir()
    records = list(read_jsonl(tmp_path / "run" / "feedback.jsonl", Feedback))
    assert sum(bool(record.spans) for record in records) == 6
