"""Evaluating on several devices, with one process for each."""

from __future__ import annotations

import pytest

from text2grad.config import Config
from text2grad.errors import UserError
from text2grad.stages.evaluate import policy as stage
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.stages.run_folder import read_json
from text2grad.stages.sft import run_sft


def greedy_answers(config: Config) -> list[dict[str, object]]:
    run_evaluate(config, "sft")
    [file] = (config.run.folder / "evaluation").glob("*/sft.answers.json")
    rows: list[dict[str, object]] = read_json(file)
    return rows


def test_two_processes_answer_as_one_does(imported: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sft(imported)
    alone = greedy_answers(imported)
    monkeypatch.setattr(stage, "find_devices", lambda _: ["cpu", "cpu"])
    assert len(alone) > 1 and greedy_answers(imported) == alone


def test_the_error_of_another_device_is_reported(imported: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sft(imported)
    monkeypatch.setattr(stage, "find_devices", lambda _: ["cpu", "cuda:7"])
    with pytest.raises(UserError, match="no device 'cuda:7'"):
        run_evaluate(imported, "sft")
