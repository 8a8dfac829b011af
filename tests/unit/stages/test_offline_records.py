"""`train --offline`: learn from the answers of a feedback file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from text2grad.config import PRESETS, Config, load_config
from text2grad.errors import UserError
from text2grad.feedback import Failure, Feedback
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.train import run_train_offline
from tiny_runs import tiny_model
from word_task import RECORDS, Words, file_of, record


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A run without stages behind it, on the task of one word."""
    monkeypatch.setattr(RunFolder, "task", lambda run: Words())
    model = str(tiny_model(tmp_path / "model"))
    words = ["--run.folder", str(tmp_path / "run"), "--policy.model", model, "--generation.max_new_tokens", "6"]
    words += ["--offline.epochs", "1", "--run.threads", "1"]
    return load_config(PRESETS / "demo.yaml", words)


def test_offline_writes_a_policy_that_evaluate_finds(config: Config) -> None:
    more = [record("x", "x"), RECORDS[0].model_copy(update={"error": Failure(kind="refused", message="no")})]
    summary = run_train_offline(config, file_of(config, [*RECORDS, *more]), "offline")
    assert (summary["answers"], summary["spans"]) == (5, 5)
    assert (summary["heldout_records"], summary["failed_records"]) == (1, 1)
    rows = [json.loads(line) for line in (config.run.folder / "ppo/offline/metrics.jsonl").read_text().splitlines()]
    assert {"loss", "kl", "grad_norm"} <= rows[0].keys()
    assert RunFolder.of(config).policy("offline").model == summary["out"]


def test_an_answer_that_is_too_long_is_left_out_and_named(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    long = record("b", "so " * 4000 + "b", id="essay")
    summary = run_train_offline(config, file_of(config, [*RECORDS, long]), "offline")
    assert (summary["answers"], summary["too_long"]) == (5, 1)
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("left out")]
    assert "1 of 6 answers" in line and "'essay' has" in line
    with pytest.raises(UserError, match=r"nothing to train on: 1 of 1 answers .* 'essay' has \d+ \(shorten them"):
        run_train_offline(config, file_of(config, [long]), "alone")


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([record("a", "a", spans=())], r"no words are marked in any of 1 records .text2grad annotate --anchor"),
        ([record("a", " "), *RECORDS], "1 of 6 records have no response, the first is 'a'"),
        ([record("x", "x")], "nothing to train on, 1 heldout records"),
        ([record("z", "z"), record("w", "w")], "none of 2 records is about a prompt of the task 'demo'"),
        ([], "has no records"),
    ],
)
def test_what_cannot_be_learned_from_is_one_line(config: Config, records: list[Feedback], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        run_train_offline(config, file_of(config, records), "offline")
    assert "\n" not in str(caught.value) and not (config.run.folder / "ppo").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"id": "1", "prompt": [{"role": "user", "content": "Say a."}], "source": {"kind": "llm"}}',
            "1: response",
        ),
        ('{"task_id": "1", "solution": "x"}', r"1: id: Field required"),
        ("def f(x):", "1: not JSON"),
    ],
)
def test_another_file_is_one_line(config: Config, text: str, words: str) -> None:
    path = config.run.folder.parent / "other.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=words):
        run_train_offline(config, path, "offline")
    with pytest.raises(UserError, match="no feedback in"):
        run_train_offline(config, path.with_name("none.jsonl"), "offline")


def test_marks_are_not_needed_where_the_score_alone_is_paid(config: Config) -> None:
    scalar = config.model_copy(update={"credit": config.credit.model_copy(update={"scheme": "last_token"})})
    assert run_train_offline(scalar, file_of(config, [record("a", "a", spans=())]), "x")["spans"] == 0
