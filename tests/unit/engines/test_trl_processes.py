"""Two processes train what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="pip install 'text2grad[trl]'")

import two_processes
import vowels
from both_engines import lines
from safetensors.torch import load_file

from places import ROOT
from text2grad.errors import EXIT_FAILED
from tiny_runs import tiny_model

pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
HERE = Path(__file__).parent
VOWELS = vowels.WORDS
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def started(*command: str) -> subprocess.CompletedProcess[str]:
    paths = [str(HERE), *filter(None, map(str, sys.path))]
    found = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # DeepSpeed looks for ninja
    one = {"OMP_NUM_THREADS": "1", "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    environment = {**os.environ, **one, "PATH": found, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def assert_as_alone(kind: str, folder: Path, launch: Sequence[str], stopped: bool = False) -> None:
    """Processes that are launched so leave what one leaves: weights, metrics, token strips; also if
    one of them was asked to stop in the first step, and all were started again."""
    model = tiny_model(folder / "model")
    alone = two_processes.run(model, folder / "one", kind)
    command = (*launch, str(HERE / "two_processes.py"), str(model), str(folder / "two"), kind)
    if stopped:
        assert started(*command, "stop").returncode != 0
        assert len(lines(folder / "two" / "metrics.jsonl")) == 1 and not (folder / "two" / "policy").exists()
    ended = started(*command)
    assert ended.returncode == 0, ended.stderr
    weights = load_file(next((folder / "two" / "policy").glob("*model.safetensors")))
    assert weights.keys() == alone.weights.keys()
    assert max(float((weights[name] - alone.weights[name]).abs().max()) for name in weights) < 1e-5
    for mine, others in zip(alone.metrics, lines(folder / "two" / "metrics.jsonl"), strict=True):
        same = [name for name in mine if not name.startswith("seconds")]
        assert [mine[name] for name in same] == pytest.approx([others[name] for name in same], abs=1e-4)
    strips = lines(folder / "two" / "samples.jsonl")
    assert [strip["ids"] for strip in strips] == [strip["ids"] for strip in alone.strips]
    ratios = [pytest.approx(strip["ratio"], abs=1e-4) for strip in alone.strips if "ratio" in strip]
    assert [strip["ratio"] for strip in strips if "ratio" in strip] == ratios


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["weights", "adapters"])
def test_two_processes_train_what_one_does(kind: str, tmp_path: Path) -> None:
    assert_as_alone(kind, tmp_path, LAUNCH)


@pytest.mark.nightly
def test_two_processes_stop_together_and_go_on(tmp_path: Path) -> None:
    assert_as_alone("adapters", tmp_path, LAUNCH, stopped=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("stage", "kind"), [(1, "weights"), (2, "adapters"), (3, "weights"), (3, "adapters")])
def test_deepspeed_trains_what_one_process_does(stage: int, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed")
    profile = str(ROOT / "configs" / "accelerate" / f"zero{stage}.yaml")
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", profile)
    assert_as_alone(kind, tmp_path, launch, stopped=(stage, kind) == (3, "weights"))


@pytest.mark.nightly
def test_the_command_line_in_two_processes(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    small = ("--ppo.steps", "12", "--ppo.heldout_every", "6", "--policy.model", str(model), "--run.folder")
    command = (*LAUNCH, "-m", "text2grad.cli", "train", "--engine", "trl", *VOWELS, *small, str(tmp_path / "run"))
    ended = started(*command, "--json")
    assert ended.returncode == 0, ended.stderr
    place = tmp_path / "run" / "ppo" / "text2grad"
    assert json.loads(ended.stdout.splitlines()[-1]) == {"steps": 12, "out": str(place / "policy")}
    rows = lines(place / "metrics.jsonl")
    assert rows[-1]["score"] > rows[0]["score"] and "heldout_greedy_vowels" in rows[-1]
    assert started(*command, "--ppo.rollouts", "3").returncode == EXIT_FAILED
