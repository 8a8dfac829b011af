"""`annotate --responses` with every kind of critic, and the options that only a paid one has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from annotating import Ended, Job
from chat_server import GOOD, said
from text2grad.chat.journal import STATES
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.policy.tiny import make_tiny_model

TESTS = "from solution import double\n\ndef test_double():\n    assert double(2) == 4\n"
ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Double n.", "response": "def double(n):\n    return 2 * n\n", "meta": {"tests": TESTS}},
    {"id": "b", "prompt": "Double n.", "response": "def double(n):\n    return n + 1\n", "meta": {"tests": TESTS}},
    {"id": "c", "prompt": "Say why.", "response": "an answer to it", "reference": "the answer to all"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def judged(job: Job, file: Path, kind: str, *words: str) -> tuple[Ended, list[Feedback]]:
    ended = job.annotate("--responses", str(file), "--out", str(job.out), "--critic.kind", kind, *words)
    records = list(read_jsonl(job.out, Feedback)) if job.out.exists() else []
    return ended, records


def test_unit_tests_judge_a_file(job: Job, file: Path) -> None:
    ended, (good, poor, none) = judged(job, file, "program", "--critic.program.gate", "false")
    assert (good.score, poor.score, good.source.kind) == (1.0, -1.0, "program")
    assert [span.text for span in poor.spans if span.label < 0] == ["n + 1"]
    assert none.error is not None and none.error.kind == "unsupported" and none.score is None
    assert (ended.code, ended.counts, ended.summary["records"]) == (3, (3, 2, 0, 1, 0), 3)


def test_a_comparison_with_references_judges_a_file(job: Job, file: Path) -> None:
    ended, (*without, compared) = judged(job, file, "reference")
    assert [record.error.kind for record in without if record.error] == ["unsupported"] * 2
    assert [(span.text, span.label) for span in compared.spans] == [("an", -1), ("answer to", 1), ("it", -1)]
    assert (ended.code, ended.summary["ok"], ended.summary["failed_records"]) == (3, 1, 2)


def test_what_people_said_judges_a_file(job: Job, file: Path) -> None:
    span = Span(start=0, end=9, label=-1, text="an answer")
    asked = (Message(role="user", content="Say why."),)
    person = {"critique": "Which one?", "spans": (span,), "source": Source(kind="human")}
    write_jsonl(
        job.folder / "run" / "feedback.jsonl",
        [Feedback(id="c", prompt=asked, response="an answer to it", **person)],
    )
    ended, (*unknown, known) = judged(job, file, "human", "--run.folder", str(job.folder / "run"))
    assert (known.critique, known.spans) == ("Which one?", (span,))
    assert all(record.error for record in unknown) and (ended.code, ended.counts) == (3, (3, 1, 0, 2, 0))


def test_a_trained_reward_model_judges_a_file(job: Job, file: Path) -> None:
    folder = job.folder / "model"
    make_tiny_model(folder, [json.dumps(row) for row in ROWS] * 20)
    words = ("--reward_model.max_new_tokens", "160", "--run.threads", "1")
    ended, records = judged(job, file, "reward_model", "--critic.reward_model.folder", str(folder), *words)
    assert [record.id for record in records] == ["a", "b", "c"]
    assert {(record.source.kind, record.source.model) for record in records} == {("reward_model", str(folder))}
    assert sum(ended.summary[state] for state in STATES) == ended.summary["requested"] == 3
    assert ended.code == (0 if ended.summary["ok"] == 3 else 3)
    ended, _ = judged(job, file, "reward_model", "--run.folder", str(job.folder / "run"))
    assert ended.code == 1 and "no reward model in" in ended.err and ended.err.count("\n") == 1


def test_a_chat_model_judges_a_file_and_no_torch_is_needed(job: Job, file: Path) -> None:
    job.serve(said(GOOD.replace('["answer"]', "[]")))
    blocked = "import sys; sys.modules['torch'] = None; from text2grad.cli import main; main(sys.argv[1:])"
    program = ["--responses", str(file), "--out", str(job.out), "--critic.kind", "program"]
    for words, code in ((job.command(file), 0), (program, 3)):
        command = [sys.executable, "-c", blocked, "annotate", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    kinds = [(record.id, record.source.kind) for record in read_jsonl(job.out, Feedback)]
    assert kinds == [(id, kind) for kind in ("llm", "program") for id in "abc"]


@pytest.mark.parametrize(
    "words",
    [
        ["--plan"],
        ["--budget-usd", "1", "--batch"],
        ["--write-requests", "r.jsonl"],
        ["--no-resume", "--again", "--anchor"],
        ["--no-canaries"],
    ],
)
def test_options_of_a_paid_critic_are_refused_with_another(job: Job, file: Path, words: list[str]) -> None:
    ended, _ = judged(job, file, "program", *words)
    options = ", ".join(word for word in words if word.startswith("--"))
    assert ended.code == 2 and options in ended.err and [*job.folder.iterdir()] == [file]


def test_a_model_must_be_named(job: Job, file: Path) -> None:
    ended, _ = judged(job, file, "prompted")
    assert ended.code == 2 and "critic.prompted.model" in ended.err
