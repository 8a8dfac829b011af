"""What a judge of programs says could be better: kept in the records, shown, and never paid for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chat_server import KEY, ChatServer, last_message, said
from text2grad.cli import main
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl

PROGRAM = "def f(xs):\n    t = 0\n    for x in xs:\n        t -= x\n    return t\n"
OURS = {
    "reasoning": "n",
    "critique": "It subtracts.",
    "good_spans": ["return t"],
    "poor_spans": [{"quote": "t -= x", "reason": "adds"}],
    "improvable_spans": [{"quote": "for x in xs", "reason": "sum(xs)"}, "not there"],
    "omissions": [],
    "score": -1,
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the server answers, by the name of the prompt; `url`."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found: dict[str, Any] = {}
    server = ChatServer(lambda *_: said(json.dumps(found["z"])), last_message)
    found |= {"url": server.url, "bodies": server.bodies}
    yield found
    server.close()


def ran(words: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def annotated(folder: Path, answers: dict[str, Any], prompt: str, z: dict[str, Any]) -> Feedback:
    file, out = folder / "r.jsonl", folder / "feedback.jsonl"
    row: dict[str, Any] = {"id": "a", "prompt": "Sum up.", "response": PROGRAM, "reference": "sum(xs)"}
    row |= {"meta": {"tests": "assert f([1]) == 1"}}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    answers["z"] = z
    asked = ["--critic.prompted.base_url", answers["url"], "--critic.prompted.model", "gpt-4o", "--no-canaries"]
    named = ["--task.name", "code", "--critic.kind", "prompted", "--critic.prompted.prompt", prompt]
    assert ran(["annotate", "--responses", str(file), "--out", str(out), *named, *asked]) == 0
    (record,) = read_jsonl(out, Feedback)
    return record


def labels(record: Feedback) -> list[tuple[str, int, str]]:
    return [(span.text, span.label, span.reason) for span in record.spans]


def test_a_suggestion_is_kept_with_its_words(tmp_path: Path, answers: dict[str, Any]) -> None:
    record = annotated(tmp_path, answers, "code", OURS)
    assert labels(record) == [("for x in xs", 0, "sum(xs)"), ("t -= x", -1, "adds"), ("return t", 1, "")]
    assert record.meta["lost"] == ["not there"] and "unmatched" not in record.meta
    assert len(answers["bodies"]) == 1, "what pays nothing is no reason to ask again"


def test_reports_and_exports_of_suggestions(
    tmp_path: Path, answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    annotated(tmp_path, answers, "code", OURS)
    file = str(tmp_path / "feedback.jsonl")
    assert ran(["feedback-report", file, "--show", "3"]) == 0
    assert "~ for x in xs: sum(xs)" in capsys.readouterr().err
    assert ran(["export", file, "--as", "csv", "--out", str(tmp_path / "a.csv"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["left_out"] == {"improvable_spans": 1}
