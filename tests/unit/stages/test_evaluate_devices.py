"""Evaluating on several devices, with one process for each."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from text2grad.config import Config
from text2grad.errors import UserError
from text2grad.stages.evaluate import devices
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
    monkeypatch.setattr(stage, "find_devices", lambda _: ["cpu", "cuda:99"])
    with pytest.raises(UserError, match="no device 'cuda:99'"):
        run_evaluate(imported, "sft")


def test_a_killed_process_ends_in_one_line(imported: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    run_sft(imported)
    sample = devices.sample

    def kill_others(*arguments: Any) -> Any:
        for process in multiprocessing.active_children():
            process.kill()
        return sample(*arguments)

    monkeypatch.setattr(devices, "sample", kill_others)
    monkeypatch.setattr(stage, "find_devices", lambda _: ["cpu", "cpu"])
    with pytest.raises(UserError, match="was killed"):
        run_evaluate(imported, "sft")
