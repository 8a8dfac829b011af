"""The real command under `accelerate launch` with the repository's profiles: two processes, and the same policy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import launch_task
import pytest
from processes import run_in
from safetensors.torch import load_file
from scenes import train_by_config

from tiny_runs import tiny_model

HERE = Path(__file__).parent
PROFILES = HERE.parents[1] / "configs" / "accelerate"
SETTINGS = [*launch_task.SETTINGS, "--ppo.steps", "3"]


@pytest.mark.parametrize(
    ("profile", "weights"),
    [("ddp", "whole in each"), pytest.param("fsdp2", "split", marks=pytest.mark.nightly)],
)
def test_a_profile_of_accelerate_starts_two_processes_that_train_one_policy(
    profile: str, weights: str, tmp_path: Path
) -> None:
    words = ("--policy.model", str(tiny_model(tmp_path / "model")), *SETTINGS)
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    launch = ["accelerate.commands.launch", "--config_file", str(PROFILES / f"{profile}.yaml"), "--num_processes=2"]
    command = [sys.executable, "-m", *launch, "-m", "text2grad.cli", "train", "--name", "x", "--json"]
    command += ["--run.folder", str(tmp_path / "launched"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"2 processes (gloo), weights {weights}" in done.stderr
    straight = ("--run.folder", str(tmp_path / "straight"))
    straight += ("--run.parallel", "fsdp" if weights == "split" else "ddp")
    assert run_in(2, train_by_config, tmp_path, (*straight, *words)) == [2, 2]
    launched, alone = (tmp_path / name / "ppo" / "x" / "policy" for name in ("launched", "straight"))
    assert (launched / "model.safetensors").is_file()
    for file in launched.glob("*.safetensors"):
        mine, theirs = load_file(file), load_file(alone / file.name)
        assert mine.keys() == theirs.keys()
        assert all(mine[name].equal(theirs[name]) for name in mine), file.name
