"""What a judge of programs says could be better: kept in the records, shown, and never paid for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from annotating import Job
from chat_server import ChatServer, said
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


def annotated(job: Job, prompt: str, z: dict[str, Any]) -> tuple[ChatServer, Feedback]:
    server, file = job.serve(said(json.dumps(z))), job.folder / "r.jsonl"
    row: dict[str, Any] = {"id": "a", "prompt": "Sum up.", "response": PROGRAM, "reference": "sum(xs)"}
    file.write_text(json.dumps(row | {"meta": {"tests": "assert f([1]) == 1"}}) + "\n", encoding="utf-8")
    assert job.paid(file, "--task.name", "code", "--critic.prompted.prompt", prompt).code == 0
    (record,) = read_jsonl(job.out, Feedback)
    return server, record


def labels(record: Feedback) -> list[tuple[str, int, str]]:
    return [(span.text, span.label, span.reason) for span in record.spans]


def test_a_suggestion_is_kept_with_its_words_and_shown(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    server, record = annotated(job, "code", OURS)
    assert labels(record) == [("for x in xs", 0, "sum(xs)"), ("t -= x", -1, "adds"), ("return t", 1, "")]
    assert record.meta["lost"] == ["not there"] and "unmatched" not in record.meta
    assert len(server.bodies) == 1, "what pays nothing is no reason to ask again"
    with pytest.raises(SystemExit) as left:
        main(["feedback-report", str(job.out), "--show", "3"])
    assert left.value.code in (0, None) and "~ for x in xs: sum(xs)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", str(job.out), "--as", "csv", "--out", str(job.folder / "a.csv"), "--json"])
    assert json.loads(capsys.readouterr().out)["left_out"] == {"improvable_spans": 1}
