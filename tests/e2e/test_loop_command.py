"""Rounds, through the real commands: two of them are one run of PPO against two reward models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import TOY, Command

from text2grad.compare import seeds


def metrics_of(run: Path, number: int) -> list[dict[str, Any]]:
    file = run / "rounds" / str(number) / "ppo" / "text2grad" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows]


def test_the_second_round_goes_on_where_the_first_one_ended(
    command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_this_process(words: Sequence[str], *_: Any) -> tuple[int, float]:
        ended = command(*words[words.index("text2grad.cli") + 1 :])
        said.append(ended.err)
        return ended.code, 0.0

    said: list[str] = []
    monkeypatch.setattr(seeds, "run_command", in_this_process)
    shutil.rmtree(run / "ppo")
    heads = ("--reward_model.critique", "false", "--reward_model.spans", "head", "--reward_model.verdict", "spans")
    words = ("--run.folder", run, *TOY, *heads, "--annotate.prompts", "4", "--json")  # which always can be read
    for count in (1, 2):
        ended = command("loop", "--rounds", str(count), *words)
        assert ended.code == 0, ended.err
    found = json.loads(ended.out.splitlines()[-1])
    assert [row["steps"] for row in found["rounds"]] == [2, 4]
    assert ["text2grad: resumes after step 2 of 4" in each for each in said].count(True) == 1
    first, second = metrics_of(run, 1), metrics_of(run, 2)
    assert second[:2] == first and [row["step"] for row in second] == [0, 1, 2, 3]
    assert first[0]["kl"] == 0 and second[2]["kl"] != 0, "the reference is what all began with"
    assert (run / "ppo" / "loop" / "policy").is_dir() == bool(found["best_round"])
