"""Checkpoints on disk: whole or not there, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from text2grad.durable import checkpoint as module
from text2grad.durable.checkpoint import damage_of, newest_checkpoint, remove_checkpoints, write_checkpoint
from text2grad.durable.guard import only_run_in
from text2grad.durable.state import Randomness


def write(parent: Path, step: int) -> Path:
    tensors = {
        "w": torch.full((3, 5), float(step)),
        "n": torch.tensor(step),
        "h": torch.ones(2, dtype=torch.bfloat16),
    }
    return write_checkpoint(parent, step, tensors, {"step": step, "rate": 0.1 + step})


def names(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "c", 7)
    found = newest_checkpoint(tmp_path / "deep" / "c")
    assert found is not None and found.step == 7
    assert found.state == {"step": 7, "rate": 7.1}
    assert torch.equal(found.tensors["w"], torch.full((3, 5), 7.0))
    assert found.tensors["n"].shape == () and found.tensors["h"].dtype == torch.bfloat16
    assert names(found.path) == ["manifest.json", "state.json", "tensors.safetensors"]  # and no pickle


def test_the_newest_by_number_and_the_last_two_stay(tmp_path: Path) -> None:
    for step in (8, 9, 10):
        write(tmp_path, step)
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-9"]
    found = newest_checkpoint(tmp_path)
    assert found is not None and found.step == 10


def test_later_ones_of_a_run_that_went_back_are_removed(tmp_path: Path) -> None:
    for step in (8, 9):
        write(tmp_path, step)
    (tmp_path / "checkpoint-9" / "state.json").unlink()
    write(tmp_path, 8)
    assert names(tmp_path) == ["checkpoint-8"]


def test_there_may_be_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-3.partial").mkdir()
    assert newest_checkpoint(tmp_path) is newest_checkpoint(tmp_path / "nowhere") is None
    remove_checkpoints(tmp_path)
    remove_checkpoints(tmp_path / "nowhere")
    assert names(tmp_path) == ["checkpoint-x"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def grow(path: Path) -> None:
    with path.open("ab") as handle:
        handle.write(b"x")


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("harm", [flip, cut, grow, Path.unlink])
def test_damage_is_named_and_the_one_before_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Any, name: str
) -> None:
    write(tmp_path, 1)
    harm(write(tmp_path, 2) / name)
    found = newest_checkpoint(tmp_path)
    assert found is not None and found.step == 1
    assert name in capsys.readouterr().err


def test_a_write_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 2)
    assert names(tmp_path) == ["checkpoint-1"]
    assert damage_of(tmp_path / "checkpoint-1") == ""


def calls() -> Iterator[tuple[Any, str]]:
    """Everything a checkpoint's writing asks of the disk."""
    yield from ((os, name) for name in ("fsync", "open", "close", "replace", "mkdir", "rmdir", "unlink", "write"))
    yield from ((module, name) for name in ("save_file", "sha256", "sync"))
    yield from ((Path, name) for name in ("write_text", "mkdir", "stat", "glob", "is_dir"))
    yield shutil, "rmtree"


def killed_at(point: int, folder: Path) -> bool:
    """Write checkpoint 3 in a process that is killed before its n-th call; whether it was."""
    child = os.fork()
    if child == 0:
        left = [point]

        def deadly(act: Any) -> Any:
            def call(*words: Any, **options: Any) -> Any:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return act(*words, **options)

            return call

        for place, name in calls():
            setattr(place, name, deadly(getattr(place, name)))
        write(folder, 3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_killed_at_every_point_of_a_save_a_whole_checkpoint_is_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    killed, steps = 0, []
    while True:
        folder = tmp_path / str(killed)
        for step in (1, 2):
            write(folder, step)
        dead = killed_at(killed, folder)
        found = newest_checkpoint(folder)
        assert found is not None and torch.equal(found.tensors["w"], torch.full((3, 5), float(found.step)))
        steps.append(found.step)
        write(folder, 4)  # nothing that was left stands in the way
        assert "checkpoint-4" in names(folder) and not any(name.endswith(".partial") for name in names(folder))
        if not dead:
            break
        killed += 1
    assert killed >= 30
    assert steps == sorted(steps) and set(steps) == {2, 3}
    assert "damaged" not in capfd.readouterr().err


def test_the_generators_go_on_where_they_were() -> None:
    def draw() -> tuple[Any, ...]:
        return torch.randn(3).tolist(), np.random.normal(size=3).tolist(), __import__("random").gauss(0, 1)

    draw()  # an odd number of normal draws leaves one in reserve
    now = Randomness.now()
    saved = json.loads(json.dumps(now.numbers()))
    first = draw()
    assert draw() != first
    Randomness.restore(now.tensors(), saved)
    assert draw() == first


def test_a_lock_is_given_back_and_dies_with_its_owner(tmp_path: Path) -> None:
    for _ in range(2):
        with only_run_in(tmp_path / "run"):
            assert (tmp_path / "run" / "run.lock").read_text() == f"{os.getpid()}\n"
        assert names(tmp_path / "run") == []
