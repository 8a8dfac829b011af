"""AlpacaEval's files: what is written for it, and the win rates of what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from text2grad import errors
from text2grad.errors import UserError
from text2grad.tasks.base import TaskSettings
from text2grad_lab.benchmarks.alpaca import (
    LENGTH_CONTROLLED,
    AlpacaEval,
    model_outputs,
    read_annotations,
    win_rates,
)


def row(preference: Any) -> dict[str, Any]:
    return {"preference": preference, "output_1": "four", "output_2": "longer", "generator_2": "ours"}


def test_instructions_become_outputs_in_its_shape(tmp_path: Path) -> None:
    rows = [
        {"dataset": "vicuna", "instruction": "Why?", "output": "So.", "generator": "gpt4"},
        {"instruction": "How?"},
    ]
    (tmp_path / "alpaca_eval.json").write_text(json.dumps(rows))
    task = AlpacaEval(TaskSettings(name="AlpacaEval", data=str(tmp_path / "alpaca_eval.json")))
    examples = task.examples("heldout")
    assert [example.reference for example in examples] == ["So.", ""] and task.examples("train") == []
    assert model_outputs(examples, ["Because.", "Thus."], "ours") == [
        {"dataset": "vicuna", "instruction": "Why?", "output": "Because.", "generator": "ours"},
        {"dataset": "", "instruction": "How?", "output": "Thus.", "generator": "ours"},
    ]


def test_win_rates_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Points 1, .8, .5 (twice, a draw is 0 or 1.5), .1: mean .58; variance .1 / 4 + ..., rounded 2 wins, 1 loss."""
    errors.warn_once.cache_clear()
    found = win_rates([row(value) for value in (2, 1.8, 0, 1.5, 1.1, None)])
    assert (found["win_rate"], found["discrete_win_rate"]) == pytest.approx((58, 60))
    spread = sum((each - 0.58) ** 2 for each in (1, 0.8, 0.5, 0.5, 0.1)) / 4
    assert found["standard_error"] == pytest.approx(100 * (spread / 5) ** 0.5)
    counts = ("n_wins", "n_wins_base", "n_draws", "n_total", "unrated")
    assert [found[name] for name in counts] == [2, 1, 2, 5, 1]
    assert (found["length"], found["their_length"]) == (6, 4)
    if "alpaca_eval" not in sys.modules:
        assert found[LENGTH_CONTROLLED] is None
        assert capsys.readouterr().err.count("pip install alpaca_eval") == 1


def test_the_length_controlled_rate_is_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = ModuleType("alpaca_eval.metrics")
    monkeypatch.setattr(
        metrics,
        "get_length_controlled_winrate",
        lambda frame, save_weights_dir: {"length_controlled_winrate": float(len(frame)) + frame["index"].iloc[-1]},
        raising=False,
    )
    monkeypatch.setitem(sys.modules, "alpaca_eval", ModuleType("alpaca_eval"))
    monkeypatch.setitem(sys.modules, "alpaca_eval.metrics", metrics)
    assert win_rates([row(1), row(2)])[LENGTH_CONTROLLED] == 3.0


@pytest.mark.parametrize("value", [3, -1, 0.5, "2", True])
def test_a_preference_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    (tmp_path / "annotations.json").write_text(json.dumps([row(1), row(value)]))
    with pytest.raises(UserError, match="record 2: a preference of"):
        read_annotations(tmp_path / "annotations.json")


def test_what_is_no_file_of_annotations_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    path.write_text('[{"preference": 1}]')
    with pytest.raises(UserError, match="record 1: no 'output_1'"):
        read_annotations(path)
    path.write_text(json.dumps([{**row(None)}, {**row(float("nan"))}]))
    with pytest.raises(UserError, match="no annotation has a preference"):
        win_rates(read_annotations(path))
