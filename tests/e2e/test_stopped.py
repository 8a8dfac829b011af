"""Runs that are stopped, through the real program: they go on, and end as if nothing had
happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from commands import TOY, Command
from safetensors.torch import load_file

from text2grad.policy.files.manifest import write_manifest

LONGER = (*TOY, "--ppo.steps", "5", "--ppo.schedule", "linear")


def stopped(run: Path, number: int, *words: str) -> tuple[int, str]:
    """Start a command in its own process and send a signal after two steps; return its exit code
    and stderr."""
    command = [sys.executable, "-m", "text2grad.cli", *words, "--run.folder", str(run)]
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *(each for each in sys.path if each)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    metrics = run / "ppo" / "x" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.read_text("utf-8").count("\n") >= 2):
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    return process.returncode, err


def measured(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("seconds")} for line in lines]


def test_training_against_the_reward_model_goes_on(command: Command, run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "straight")
    assert command("train", "--name", "x", "--run.folder", other, *LONGER).code == 0
    place, straight = run / "ppo" / "x", other / "ppo" / "x"
    code, err = stopped(run, signal.SIGINT, "train", "--name", "x", *LONGER)
    assert code == 130 and "Traceback" not in err, err
    again = command("train", "--name", "x", "--run.folder", run, *LONGER)
    assert again.code == 0 and "x: resumes after step" in again.err, again.err
    assert measured(place) == measured(straight)
    assert (place / "samples.jsonl").read_bytes() == (straight / "samples.jsonl").read_bytes()
    for name in ("model.safetensors", "value_head.safetensors"):
        ours, theirs = load_file(place / "policy" / name), load_file(straight / "policy" / name)
        assert all(ours[key].equal(theirs[key]) for key in theirs)
    assert sorted(path.name for path in place.iterdir()) == sorted(path.name for path in straight.iterdir())


def test_what_has_changed_is_named_and_forced_or_begun_anew(command: Command, run: Path) -> None:
    """A reward model of other bytes; tests/invariant/test_resume.py has all that may have
    changed."""
    words = ("train", "--name", "x", "--run.folder", run, *LONGER)
    code, _ = stopped(run, signal.SIGTERM, "train", "--name", "x", *LONGER)
    assert code == 143
    shutil.copytree(run / "ppo" / "x", run / "ppo" / "y")
    value = run / "reward_model" / "policy" / "value_head.safetensors"
    data = value.read_bytes()
    value.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    write_manifest(value.parent)  # trained anew, and not damaged
    refused = command(*words)
    assert refused.code == 1 and "Traceback" not in refused.err and "the reward model (" in refused.err
    assert "resumes after step" in command(*words, "--force").err
    assert command("train", "--name", "y", "--run.folder", run, *LONGER, "--restart").code == 0
    assert not list(run.glob("ppo/*/checkpoints"))
