"""`annotate --responses` with every kind of critic, and the options that only a paid one has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chat_server import GOOD, KEY, ChatServer, said
from text2grad.chat.journal import STATES
from text2grad.cli import main
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.policy.tiny import make_tiny_model

TESTS = "from solution import double\n\ndef test_double():\n    assert double(2) == 4\n"
ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Double n.", "response": "def double(n):\n    return 2 * n\n", "meta": {"tests": TESTS}},
    {"id": "b", "prompt": "Double n.", "response": "def double(n):\n    return n + 1\n", "meta": {"tests": TESTS}},
    {"id": "c", "prompt": "Say why.", "response": "an answer to it", "reference": "the answer to all"},
]
Annotate = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "responses.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def annotate(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> Annotate:
    def call(*words: str) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        given = ["annotate", "--responses", str(file), "--run.folder", str(tmp_path / "run"), "--json", *words]
        with pytest.raises(SystemExit) as left:
            main(given)
        printed, err = capsys.readouterr()
        return int(left.value.code or 0), json.loads(printed.splitlines()[-1]) if printed else {}, err

    return call


def written(tmp_path: Path) -> list[Feedback]:
    return list(read_jsonl(tmp_path / "run" / "feedback.jsonl", Feedback))


def test_unit_tests_judge_a_file(annotate: Annotate, tmp_path: Path) -> None:
    code, summary, err = annotate("--critic.kind", "program", "--critic.program.gate", "false")
    good, poor, none = written(tmp_path)
    assert (good.score, poor.score, good.source.kind) == (1.0, -1.0, "program")
    assert [span.text for span in poor.spans if span.label < 0] == ["n + 1"]
    assert none.error is not None and none.error.kind == "unsupported" and none.score is None
    assert (code, summary["records"], summary["ok"], summary["invalid"]) == (3, 3, 2, 1), err


def test_a_comparison_with_references_judges_a_file(annotate: Annotate, tmp_path: Path) -> None:
    code, summary, err = annotate("--critic.kind", "reference")
    *without, compared = written(tmp_path)
    assert [record.error.kind for record in without if record.error] == ["unsupported"] * 2
    assert [(span.text, span.label) for span in compared.spans] == [("an", -1), ("answer to", 1), ("it", -1)]
    assert (code, summary["ok"], summary["failed_records"]) == (3, 1, 2), err


def test_what_people_said_judges_a_file(annotate: Annotate, tmp_path: Path) -> None:
    span = Span(start=0, end=9, label=-1, text="an answer")
    person = Feedback(
        id="c",
        prompt=(Message(role="user", content="Say why."),),
        response="an answer to it",
        critique="Which one?",
        spans=(span,),
        source=Source(kind="human"),
    )
    write_jsonl(tmp_path / "run" / "feedback.jsonl", [person])
    code, summary, err = annotate("--critic.kind", "human", "--out", str(tmp_path / "out.jsonl"))
    *unknown, known = read_jsonl(tmp_path / "out.jsonl", Feedback)
    assert (known.critique, known.spans) == ("Which one?", (span,))
    assert all(record.error for record in unknown)
    assert (code, summary["ok"], summary["invalid"]) == (3, 1, 2), err


def test_a_trained_reward_model_judges_a_file(annotate: Annotate, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    make_tiny_model(folder, [json.dumps(row) for row in ROWS] * 20)
    words = ("--reward_model.max_new_tokens", "160", "--run.threads", "1")
    where = ("--critic.kind", "reward_model", "--critic.reward_model.folder", str(folder))
    code, summary, err = annotate(*where, *words)
    records = written(tmp_path)
    assert [record.id for record in records] == ["a", "b", "c"]
    assert {(record.source.kind, record.source.model) for record in records} == {("reward_model", str(folder))}
    assert sum(summary[state] for state in STATES) == summary["requested"] == 3
    assert code == (0 if summary["ok"] == 3 else 3), err
    code, _, err = annotate("--critic.kind", "reward_model")
    assert code == 1 and "no reward model in" in err and err.count("\n") == 1


def test_a_chat_model_judges_a_file_and_no_torch_is_needed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = ChatServer(lambda name, turn, body: said(GOOD.replace('["answer"]', "[]")))
    words = ["annotate", "--responses", str(file), "--out", str(tmp_path / "out.jsonl"), "--no-canaries"]
    words += ["--critic.kind", "prompted", "--critic.prompted.model", "m", "--critic.prompted.base_url", server.url]
    for given in (words, [*words, "--critic.kind", "program"]):
        blocked = "import sys; sys.modules['torch'] = None; from text2grad.cli import main; main(sys.argv[1:])"
        if given is not words:
            given = [word for word in given if word != "--no-canaries"]
        done = subprocess.run([sys.executable, "-c", blocked, *given], capture_output=True, text=True, check=False)
        assert done.returncode == (0 if given is words else 3), done.stderr
    server.close()
    kinds = [(record.id, record.source.kind) for record in read_jsonl(tmp_path / "out.jsonl", Feedback)]
    assert kinds == [(id, kind) for kind in ("llm", "program") for id in "abc"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--plan"], "--plan"),
        (["--budget-usd", "1", "--batch"], "--budget-usd, --batch"),
        (["--write-requests", "r.jsonl"], "--write-requests"),
        (["--no-resume", "--again", "--anchor"], "--no-resume, --again, --anchor"),
        (["--no-canaries"], "--no-canaries"),
    ],
)
def test_options_of_a_paid_critic_are_refused_with_another(
    annotate: Annotate, tmp_path: Path, words: list[str], says: str
) -> None:
    code, _, err = annotate("--critic.kind", "program", *words)
    assert (code, (tmp_path / "run").exists()) == (2, False)
    assert err == f"error: {says}: only where a chat model is asked (--annotate.critic prompted)\n"


def test_a_model_must_be_named(annotate: Annotate) -> None:
    code, _, err = annotate("--critic.kind", "prompted")
    assert code == 2 and "no model to ask (--critic.prompted.model NAME)" in err
