"""Metrics in other places than metrics.jsonl: the packages are stood in for, as they are not
installed here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from text2grad.config.sections import RunSettings
from text2grad.durable.log import RunLog
from text2grad.durable.loggers import LOGGERS
from text2grad.errors import MissingPackageError


class Recorder:
    """Stands in for a run of trackio or W&B, and for TensorBoard's writer."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self.options = {"given": given, **options}
        self.rows: list[Any] = []
        self.closed = False

    def log(self, values: dict[str, float], step: int) -> None:
        self.rows.append((step, values))

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.rows.append((step, {name: value}))

    def finish(self) -> None:
        self.closed = True

    close = finish


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """The stand-ins that were opened, in their order."""
    opened: list[Recorder] = []

    def opening(*given: Any, **options: Any) -> Recorder:
        opened.append(Recorder(*given, **options))
        return opened[-1]

    for name, function in (("trackio", "init"), ("wandb", "init"), ("torch.utils.tensorboard", "SummaryWriter")):
        module = ModuleType(name)
        setattr(module, function, opening)
        monkeypatch.setitem(sys.modules, name, module)
    return opened


def test_loggers_get_the_metrics_of_every_step_and_are_closed_with_the_run(
    tmp_path: Path, made: list[Recorder]
) -> None:
    with RunLog(tmp_path, "ppo", 9) as log:
        log.open_loggers(list(LOGGERS), first=5)
        log.metrics(5, {"loss": 1.0})
        log.metrics(6, {"loss": 0.5})
        assert not any(each.closed for each in made)
    for recorder in made:
        assert recorder.rows == [(5, {"loss": 1.0}), (6, {"loss": 0.5})] and recorder.closed
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    board, trackio, wandb = (each.options for each in made)
    assert board == {"given": (str(tmp_path / "tensorboard"),), "purge_step": 5}
    assert trackio == {"given": (), "project": "text2grad", "name": "ppo, step 5", "group": str(tmp_path)}
    assert wandb == {**trackio, "dir": str(tmp_path)}


def test_only_the_first_process_opens_any_of_those_the_setting_lists(tmp_path: Path, made: list[Recorder]) -> None:
    with RunLog(tmp_path, "ppo", 9, silent=True) as log:
        log.open_loggers(["wandb"], first=0)
        log.metrics(0, {"loss": 1.0})
    assert made == []
    allowed = RunSettings.model_fields["loggers"].annotation
    assert set(get_args(get_args(allowed)[0])) == set(LOGGERS)


def test_a_package_that_is_missing_is_one_line_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    for name in LOGGERS:
        monkeypatch.setitem(sys.modules, name, None)
        with RunLog(tmp_path, "ppo", 9) as log, pytest.raises(MissingPackageError, match=rf"text2grad\[{name}\]"):
            log.open_loggers([name], first=0)
