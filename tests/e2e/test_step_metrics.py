"""What one step of every recipe logs, digit by digit: a change of rooms must move none of it.

Other processors round sums in another order, and one other token changes every figure, so digits
are compared only on the processor that wrote them, named in the file. WRITE_GOLDEN=1 pytest
tests/e2e/test_step_metrics.py writes it anew. A change that means to move a figure says in its
message which, and why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from commands import TOY, Command

GOLDEN = Path(__file__).parents[1] / "golden" / "step_metrics.json"
GROUP = ("--ppo.samples_per_prompt", "2")
RECIPES: dict[str, tuple[str, ...]] = {
    "failing": (),  # its reward model writes nothing that can be read: the step is left out, and logged
    "program": ("--critic.kind", "program"),
    "value": ("--critic.kind", "program", "--ppo.advantage", "gae", "--ppo.lam", "0.95"),
    "span": ("--critic.kind", "program", "--credit.weighting", "span"),
    "scalar": ("--critic.kind", "program", "--config", "scalar"),
    "grpo": ("--critic.kind", "program", "--config", "grpo", *GROUP),
    "paper": ("--critic.kind", "program", "--config", "paper", "--ppo.value_warmup", "0"),
    "offline": ("--offline", "feedback.jsonl"),
}
SUPERVISED: dict[str, tuple[str, ...]] = {
    "sft": ("sft",),
    "reward_model": ("train-reward",),
    "tagger": (*("train-reward", "--reward_model.kind", "tagger"),),
}
MEASURED_TIME = ("seconds", "time", "per_second", "peak", "memory")


def processor() -> str:
    """The processor's name and model, and the instructions that torch takes of it."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): value.strip() for key, value in facts.items()}
    names = (named.get(key, "unknown") for key in ("model name", "cpu family", "model"))
    return ", ".join([*names, torch.backends.cpu.get_cpu_capability()])


def metrics(folder: Path) -> list[dict[str, float]]:
    """The numbers that a run logged, those that depend on the clock and the machine left out."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in row.items() if not any(word in key for word in MEASURED_TIME)} for row in rows
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_one_step_logs_what_it_did(name: str, command: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    config = RECIPES[name] if "--config" in RECIPES[name] else ("--config", "demo", *RECIPES[name])
    train = ("train", "--config", "demo", *config, "--run.folder", run, *TOY, "--ppo.steps", "1", "--name", name)
    ended = command(*train, "--offline.epochs", "1")
    assert ended.code == 0, ended.err
    check(name, metrics(run / "ppo" / name))


@pytest.mark.parametrize("name", SUPERVISED)
def test_supervised_training_logs_what_it_did(
    name: str, command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    stage, *settings = SUPERVISED[name]
    ended = command(
        stage, "--config", "demo", "--run.folder", run, *TOY, *settings, "--restart", "--sft.epochs", "50"
    )
    assert ended.code == 0, ended.err
    check(name, metrics(run / ("sft" if name == "sft" else "reward_model")))


def check(name: str, found: list[dict[str, float]]) -> None:
    """Compare the logged numbers with the golden file, or write them there."""
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("WRITE_GOLDEN"):
        golden.update({"processor": processor(), name: found})
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    assert [row.keys() for row in found] == [row.keys() for row in golden[name]]
    if processor() != golden["processor"]:
        pytest.skip(f"the digits are those of {golden['processor']}, and this is {processor()}")
    for row, expected in zip(found, golden[name], strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-7)
