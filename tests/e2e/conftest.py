"""The real command line in this process, and a small run to build on or to do harm to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import TOY, Command, Ended

from text2grad.cli import main


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
