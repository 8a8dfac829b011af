"""Labels of steps and tokens through the command line: unit models, and PPO on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import TOY, Command

from text2grad.errors import EXIT_FAILED

ANNOTATE = ("--annotate.critic", "program", "--annotate.samples_per_prompt", "2", "--task.heldout_share", "0.3")
TRAINING = ("--unit_model.training.epochs", "1", "--unit_model.training.batch_size", "4")


@pytest.fixture(scope="module")
def judged(command: Command, run: Path) -> Path:
    ended = command("annotate", "--run.folder", run, *TOY, *ANNOTATE)
    assert ended.code == 0, ended.err
    return run


@pytest.mark.parametrize(("units", "recipe"), [("steps", "prm"), ("tokens", "dense")])
def test_a_unit_model_and_ppo_on_it(command: Command, judged: Path, units: str, recipe: str) -> None:
    training = ("train", "--config", "demo", "--config", recipe, "--name", recipe, "--run.folder", judged, *TOY)
    early = command(*training)
    assert early.code == EXIT_FAILED and f"train-reward --units {units}" in early.err
    ended = command("train-reward", "--units", units, "--run.folder", judged, *TOY, *TRAINING, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out.splitlines()[-1])
    assert found["trained_on"] > 0 < found["heldout"]
    ended = command(*training)
    assert ended.code == 0, ended.err
