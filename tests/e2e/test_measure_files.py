"""`evaluate` of files as a user types it: figures as JSON, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Command
from test_bad_input import FAILED, one_line

USAGE = 2

ROW = {"id": "1", "prompt": "Sum up.", "response": "the cat sat", "reference": "the cat sat down"}


def test_a_file_of_answers_is_one_json_object(command: Command, tmp_path: Path) -> None:
    (tmp_path / "gpt.jsonl").write_text(json.dumps(ROW) + "\n")
    words = ("--task", "summarization", "--run.folder", tmp_path / "run", "--json")
    ended = command("evaluate", "--answers", tmp_path / "gpt.jsonl", *words)
    assert ended.code == 0, ended.err
    figures = json.loads(ended.out.splitlines()[-1])
    assert {"rouge1", "rouge2", "rouge_l", "bleu", "empty"} <= figures.keys()
    assert (figures["rouge1"], figures["empty"]) == (6 / 7, 0)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--answers", "nosuch.jsonl", "--task", "summarization"], FAILED, "nosuch.jsonl"),
        (["--answers", "a.jsonl", "--task", "reward-model"], USAGE, "exclude each other"),
        (["--marks", "a.jsonl"], USAGE, "--marks is for"),
        (["--answers", "a.jsonl", "--against", "b.jsonl"], USAGE, "--evaluate.judge MODEL"),
        (["sft", "--evaluate.judge", "m", "--judge.prompt", "code_e2"], USAGE, "no others (--against FILE"),
        (["--answers", "a.jsonl", "--judge.prompt=code_e2"], USAGE, "no others (--against FILE"),
    ],
)
def test_a_mistake_costs_one_line(command: Command, tmp_path: Path, words: list[str], code: int, said: str) -> None:
    one_line(command("evaluate", *words, "--run.folder", tmp_path / "run"), code, said)
    assert not (tmp_path / "run").exists()
