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
from text2grad.durable.checkpoint import find_damage, newest_checkpoint, remove_checkpoints, write_checkpoint
from text2grad.durable.guard import lock_folder
from text2grad.durable.state import Randomness
from text2grad.policy.files import manifest


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
    newest = newest_checkpoint(tmp_path / "deep" / "c")
    assert newest is not None and newest.step == 7
    assert newest.state == {"step": 7, "rate": 7.1}
    assert torch.equal(newest.tensors["w"], torch.full((3, 5), 7.0))
    assert newest.tensors["n"].shape == () and newest.tensors["h"].dtype == torch.bfloat16
    assert names(newest.path) == ["manifest.json", "state.json", "tensors.safetensors"]  # and no pickle


def test_the_newest_two_up_to_the_one_just_written_stay(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is newest_checkpoint(tmp_path / "nowhere") is None
    for step in (8, 9, 10):
        write(tmp_path, step)
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-9"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest.step == 10
    write(tmp_path, 9)  # of a run that went back
    assert names(tmp_path) == ["checkpoint-9"]
    (tmp_path / "checkpoint-x").mkdir()
    (tmp_path / "checkpoint-3.partial").mkdir()
    remove_checkpoints(tmp_path)
    remove_checkpoints(tmp_path / "nowhere")
    assert names(tmp_path) == ["checkpoint-x"]


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json", "manifest.json"])
def test_damage_is_named_and_the_one_before_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(tmp_path, 1)
    content = (write(tmp_path, 2) / name).read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    for damaged in (flipped, content[:-3], content + b"x", None):
        path = write(tmp_path, 2) / name
        path.unlink() if damaged is None else path.write_bytes(damaged)
        newest = newest_checkpoint(tmp_path)
        assert newest is not None and newest.step == 1
        assert name in capsys.readouterr().err


def test_a_write_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 2)
    assert names(tmp_path) == ["checkpoint-1"]
    assert find_damage(tmp_path / "checkpoint-1") == ""


def calls() -> Iterator[tuple[Any, str]]:
    """Everything a checkpoint's writing asks of the disk."""
    yield from ((os, name) for name in ("fsync", "open", "close", "replace", "mkdir", "rmdir", "unlink", "write"))
    yield from ((module, name) for name in ("save_file", "write_manifest", "sync"))
    yield manifest, "sha256"
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
        newest = newest_checkpoint(folder)
        assert newest is not None and torch.equal(newest.tensors["w"], torch.full((3, 5), float(newest.step)))
        steps.append(newest.step)
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
    now = Randomness.capture()
    saved = json.loads(json.dumps(now.numbers()))
    first = draw()
    assert draw() != first
    Randomness.restore(now.tensors(), saved)
    assert draw() == first


def test_a_lock_is_given_back_and_dies_with_its_owner(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_folder(tmp_path / "run"):
            assert (tmp_path / "run" / "run.lock").read_text() == f"{os.getpid()}\n"
        assert names(tmp_path / "run") == []
