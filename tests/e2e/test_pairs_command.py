"""Learning from pairs through the command line: a scalar reward model, PPO on it, and DPO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import TOY, Command
from toy_task import FUNCTIONS

from text2grad.errors import EXIT_FAILED

TRAINING = ("training.lr", "1e-3"), ("training.batch_size", "2"), ("training.epochs", "2")


def pairs_file(folder: Path, **changes: Any) -> Path:
    rows = [
        {"prompt": f"Write f, to {words}.", "chosen": right, "rejected": wrong}
        for words, (right, wrong) in FUNCTIONS.items()
    ]
    rows[0] |= changes
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def words_for(section: str, run: Path, pairs: Path) -> tuple[str | Path, ...]:
    rates = [word for name, value in TRAINING for word in (f"--{section}.{name}", value)]
    return "--pairs", pairs, "--run.folder", run, *TOY, *rates, "--task.heldout_share", "0.3", "--json"


def test_a_scalar_reward_model_and_ppo_on_it(command: Command, run: Path, tmp_path: Path) -> None:
    pairs = pairs_file(tmp_path)
    early = command("train", "--config", "demo", "--config", "scalar_rm", "--run.folder", run, *TOY)
    assert early.code == EXIT_FAILED and "train-reward --pairs FILE" in early.err
    ended = command("train-reward", *words_for("scalar_model", run, pairs))
    assert ended.code == 0, ended.err
    found = json.loads(ended.out.splitlines()[-1])
    assert found["pairs"] == 8 == found["trained_on"] + found["heldout"] and found["heldout"] > 0
    assert 0 <= found["heldout_accuracy_low"] <= found["heldout_accuracy"] <= found["heldout_accuracy_high"] <= 1
    assert (run / "evaluation" / "preferences" / "scalar_model.json").is_file()
    ended = command(
        "train", "--config", "demo", "--config", "scalar_rm", "--name", "scalar_rm", "--run.folder", run, *TOY
    )
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in (run / "ppo" / "scalar_rm" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["critic_failed"] == 0 and -1 < rows[0]["score"] < 1
    sample = json.loads((run / "ppo" / "scalar_rm" / "samples.jsonl").read_text().splitlines()[0])
    assert sample["spans"] == [] and not any(sample["delta"][:-1]) and sample["delta"][-1]


def test_dpo_stands_beside_the_other_methods(command: Command, run: Path, tmp_path: Path) -> None:
    ended = command("train", *words_for("dpo", run, pairs_file(tmp_path, rejected=" " + FUNCTIONS["double it"][0])))
    assert ended.code == 0, ended.err
    assert "left out of the pairs: 1 equal sides" in ended.err
    found = json.loads(ended.out.splitlines()[-1])
    assert found["out"] == str(run / "ppo" / "dpo" / "policy") and found["left_out"] == {"equal_sides": 1}
    assert found["heldout_kl"] > 0
    first = json.loads((run / "ppo" / "dpo" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5) and first["margin"] == 0
    assert command("evaluate", "dpo", "--run.folder", run, *TOY).code == 0
    assert command("report", run).code == 0


@pytest.mark.parametrize("name", ["train", "train-reward"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [({"rejected": None}, "record 1: no 'rejected'"), ({"prompt": ""}, "record 1: no text in 'prompt'")],
)
def test_a_bad_pair_is_one_line_and_leaves_no_trace(
    command: Command, run: Path, tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    ended = command(name, "--pairs", pairs_file(tmp_path, **changes), "--run.folder", run, *TOY)
    assert (ended.code, said in ended.err) == (EXIT_FAILED, True)
    assert len(ended.err.strip().splitlines()) == 1
    assert not (run / "ppo" / "dpo").exists() and not (run / "scalar_model").exists()
