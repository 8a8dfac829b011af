"""The real command with Ray Train: one of two workers is killed, and the policy is that of an undisturbed run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import dying_task
import pytest
from processes import run_in
from safetensors.torch import load_file
from scenes import train_by_config

from text2grad.cli import main
from text2grad.durable.guard import only_run_in
from tiny_runs import tiny_model

HERE = Path(__file__).parent
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'text2grad[ray]'"
)
SETTINGS = [*dying_task.SETTINGS, "--ppo.steps", "6", "--run.checkpoint_every", "2", "--ppo.value_warmup", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@needs_ray
@pytest.mark.nightly
def test_a_killed_worker_changes_nothing(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "ray" / "ppo" / "x"
    words = ("--policy.model", str(model), *SETTINGS)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "DIE_IN": str(place),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "text2grad.cli", "train", "--name", "x", "--launcher", "ray", "--workers", "2"]
    done = subprocess.run(
        [*command, "--json", "--run.folder", str(tmp_path / "ray"), *words],
        env=environment, capture_output=True, text=True, timeout=540, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert (place / "killed").exists()
    assert "x: resumes after step" in done.stderr + done.stdout
    assert '"workers": 2' in done.stdout.splitlines()[-1]

    undisturbed = run_in(2, train_by_config, tmp_path, ("--run.folder", str(tmp_path / "straight"), *words))
    assert undisturbed == [2, 2]
    other = tmp_path / "straight" / "ppo" / "x" / "policy"
    assert (place / "policy" / "model.safetensors").is_file()
    for path in (place / "policy").glob("*.safetensors"):
        mine, theirs = load_file(path), load_file(other / path.name)
        assert mine.keys() == theirs.keys()
        assert all(mine[name].equal(theirs[name]) for name in mine), path.name
    assert not (place / "checkpoints").exists()


@needs_ray
def test_restart_leaves_a_run_alone_that_another_process_trains(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run" / "ppo" / "x"
    (place / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    words = [
        "--launcher",
        "ray",
        "--workers",
        "2",
        "--restart",
        "--name",
        "x",
        "--run.folder",
        str(tmp_path / "run"),
    ]
    with only_run_in(place), pytest.raises(SystemExit) as left:
        main(["train", *words, "--policy.model", str(model), *SETTINGS])
    assert left.value.code == 1
    assert "another run is training in" in capsys.readouterr().err
    assert (place / "checkpoints" / "checkpoint-2").is_dir()


def test_ray_that_is_not_installed_is_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as left:
        main(["train", "--launcher", "ray", "--run.folder", str(tmp_path), "--policy.model", str(model)])
    assert left.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("error: --launcher ray needs Ray Train (") and "pip install 'text2grad[ray]'" in told
    assert len(told.splitlines()) == 1


def test_workers_without_ray_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["train", "--workers", "2"])
    assert left.value.code == 2
    assert "torchrun --nproc_per_node N" in capsys.readouterr().err
