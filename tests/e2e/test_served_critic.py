"""Training against a critic in another process is training against that critic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import TOY, Command

from serving import served
from text2grad.critics import served as client_side
from text2grad.critics.program import ProgramCritic
from text2grad.feedback import Judgement
from text2grad.sandbox import Runner


def steps(run: Path, name: str) -> list[dict[str, Any]]:
    rows = map(json.loads, (run / "ppo" / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


def test_steps_are_those_of_the_critic_itself(run: Path, command: Command) -> None:
    words = ("train", "--run.folder", run, *TOY)
    assert command(*words, "--critic.kind", "program", "--name", "here").code == 0
    with Runner(5.0) as runner, served(ProgramCritic(runner)) as address:
        ended = command(*words, "--critic.kind", address, "--name", "there")
    assert ended.code == 0, ended.err
    assert steps(run, "there") == steps(run, "here")


def test_a_run_whose_critic_is_gone_stops_with_one_line(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Leaves(ProgramCritic):
        """Answers one batch, and takes its server with it."""

        def critique(self, *asked: Any) -> list[Judgement]:
            answers = super().critique(*asked)
            monkeypatch.setattr(client_side, "RETRY_DELAYS", (0.01,))
            monkeypatch.setattr(client_side.ServedCritic, "_client", property(lambda client: gone))
            return answers

    import httpx2

    gone = httpx2.Client(base_url="http://127.0.0.1:9", trust_env=False)
    with Runner(5.0) as runner, served(Leaves(runner)) as address:
        words = ("--critic.kind", address, "--name", "gone", "--ppo.max_failed", "0.5", "--ppo.steps", "3")
        ended = command("train", "--run.folder", run, *TOY, *words)
    last = ended.err.splitlines()[-1]
    assert ended.code == 1 and last.startswith("error: 8 of 8 critiques failed")
    assert f"no answer from {address}" in last
