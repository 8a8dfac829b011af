"""The real command line in this process, and a small run to build on or to do harm to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from text2grad.cli import main

TOY = (
    *("--task.name", "toy_task:ToyTask", "--run.threads", "1"),
    *("--tiny.vocabulary", "320", "--tiny.hidden", "32", "--tiny.layers", "2", "--tiny.heads", "2"),
    *("--tiny.feed_forward", "64", "--generation.max_new_tokens", "24"),
    *("--sft.epochs", "40", "--sft.batch_size", "12", "--sft.lr", "1e-2", "--ppo.samples_written", "2"),
    *("--ppo.steps", "2", "--ppo.rollouts", "8", "--ppo.value_warmup", "0", "--ppo.max_failed", "1"),
    *("--reward_model.training.epochs", "4", "--reward_model.generation.max_new_tokens", "24"),
    *("--evaluate.limit", "3", "--evaluate.samples", "2"),
)
"""Overrides of the `demo` preset: a smaller model on a smaller task."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and what it said."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("sft", "--run.folder", ...)`: what the program `text2grad` does with these words."""

    def call(*words: str | Path) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ended(int(left.value.code or 0), out, err)

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every stage done. Look at it; take `run` to change something."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    stages = (["sft"], ["annotate"], ["train-reward"], ["train"], ["evaluate", "sft"], ["evaluate"])
    for words in stages:
        with pytest.raises(SystemExit) as left:
            main([*words, "--run.folder", str(folder), *TOY])
        assert not left.value.code, words
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
