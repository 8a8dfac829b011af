"""Labels of steps and tokens through the command line: unit models, and PPO on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import TOY, Command

from text2grad.errors import EXIT_FAILED, EXIT_USAGE
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl, write_jsonl

TRAINING = ("--reward_model.training.epochs", "3", "--reward_model.training.batch_size", "4")


@pytest.mark.parametrize(("units", "recipe"), [("steps", "prm"), ("tokens", "dense")])
def test_a_unit_model_and_ppo_on_it(command: Command, run: Path, units: str, recipe: str) -> None:
    configs = ("--config", "demo", "--config", f"text2grad_lab:{recipe}")
    training = ("train", *configs, "--name", recipe, "--run.folder", run, *TOY)
    early = command(*training)
    assert early.code == EXIT_FAILED and f"train-units {units}" in early.err
    ended = command("train-units", units, "--run.folder", run, *TOY, *TRAINING, "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out.splitlines()[-1])
    assert summary["records"] == summary["trained_on"] + summary["heldout"] and summary["heldout"] > 0
    for name in ("poor", "good"):
        bounds = (summary[f"heldout_{name}_f1{end}"] for end in ("_low", "", "_high"))
        assert [0, *(values := list(bounds)), 1] == sorted([0, *values, 1])
    saved = json.loads((Path(summary["out"]) / "units.json").read_text(encoding="utf-8"))
    assert saved["units"] == units and saved["heldout"]["units"] == summary["heldout_units"]
    ended = command(*training)
    assert ended.code == 0, ended.err
    metrics = (run / "ppo" / recipe / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(metrics) == 2
    for line in (run / "ppo" / recipe / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        assert sample["critique"] == "" and -1 <= sample["score"] <= 1 and sample["spans"]
        ends = {
            max(n for n, start in enumerate(sample["starts"]) if start < span["end"]) for span in sample["spans"]
        }
        rewarded = {n for n, delta in enumerate(sample["delta"]) if delta}
        assert set(sample["delta"]) <= {-1, 0, 1}
        assert rewarded == ends if recipe == "prm" else rewarded >= ends
    wrong = command(*training, "--extra.unit_model.folder", summary["out"], "--extra.unit_model.units", "other")
    assert wrong.code == EXIT_USAGE
    swapped = {"steps": "tokens", "tokens": "steps"}[units]
    wrong = command(*training, "--extra.unit_model.folder", summary["out"], "--extra.unit_model.units", swapped)
    assert (wrong.code, f"labels {units}" in wrong.err) == (EXIT_FAILED, True)


def test_records_without_labelled_steps_are_left_out_and_counted(command: Command, run: Path) -> None:
    """A failing program without a poor span labels no steps."""
    feedback = run / "feedback.jsonl"
    records = list(read_jsonl(feedback, Feedback))
    records[0] = records[0].model_copy(update={"spans": (), "score": -1.0})
    write_jsonl(feedback, records)
    ended = command("train-units", "steps", "--run.folder", run, *TOY, *TRAINING, "--json")
    assert ended.code == 0, ended.err
    assert "left out of the feedback: 1 poor without a place" in ended.err
    assert json.loads(ended.out.splitlines()[-1])["left_out"] == {"poor_without_a_place": 1}
