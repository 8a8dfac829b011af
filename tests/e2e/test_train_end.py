"""What `train` says when it is done: counts, what they mean, and what to type next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import TOY, Command


@pytest.mark.parametrize("words", [(), ("--offline", "feedback.jsonl")])
def test_train_ends_with_what_it_did_and_the_next_command(
    command: Command, run: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    ended = command("train", "--name", "y", "--run.folder", run, *TOY, "--ppo.steps", "1", *words)
    assert (ended.code, ended.out) == (0, ""), ended.err
    said = ended.err[ended.err.index("out: ") :]
    assert "from its start" in said or "The loss went from" in said
    next_command = f"text2grad evaluate y --run.folder {run}"
    assert f"next: {next_command}" in said
    assert json.loads(command(*next_command.split()[1:], "--json").out)["prompts"] == 3, "by the run's own settings"
    assert "grad_norm" not in said


def test_it_says_nothing_beside_json(command: Command, run: Path) -> None:
    ended = command("train", "--run.folder", run, *TOY, "--ppo.steps", "1", "--name", "z", "--json")
    assert ended.code == 0 and "next: " not in ended.err
    assert json.loads(ended.out) == {"steps": 1, "out": str(run / "ppo" / "z" / "policy")}
