from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from annotating import Job, job_in
from human_data import corrected_file, reviews_file, small_config
from human_run import Trained, train_all
from text2grad.config import Config
from text2grad.stages.intake import run_import


@pytest.fixture
def job(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """`annotate` in `tmp_path`."""
    with job_in(tmp_path, capsys, monkeypatch) as made:
        yield made


@pytest.fixture(scope="session")
def imported_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of people's feedback, and a run that has imported both. Do not write
    to it."""
    folder = tmp_path_factory.mktemp("imported")
    config = small_config(folder / "run")
    run_import(config, corrected_file(folder / "dev_feedback.jsonl"), "auto", None)
    run_import(config, reviews_file(folder / "reviews.jsonl"), "csv", None)
    return folder


@pytest.fixture
def imported(imported_folder: Path, tmp_path: Path) -> Config:
    """The configuration of a copy of that run, in `tmp_path` beside the two files."""
    shutil.copytree(imported_folder, tmp_path, dirs_exist_ok=True)
    return small_config(tmp_path / "run")


@pytest.fixture(scope="session")
def trained(imported_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run on that feedback with every stage done. Do not write to it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    shutil.copytree(imported_folder / "run", folder)
    return train_all(small_config(folder))
