"""Trackers that receive a run's metrics besides `metrics.jsonl`: TensorBoard, trackio, W&B.

Their packages are optional and imported on demand. A resumed run appends to the TensorBoard log. In
trackio and W&B it is another run of the same group, named after the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from text2grad.errors import optional_packages

PROJECT = "text2grad"


class Logger(Protocol):
    """Receives the metrics of each step, and is closed when the run ends or stops."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `<folder>/tensorboard`; older events from step `first` on are purged."""

    def __init__(self, folder: Path, title: str, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=first)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush the events."""
        self._writer.close()


class TrackerRun:
    """A run of trackio or W&B, which share an interface."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send all metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def _trackio(folder: Path, title: str, first: int) -> TrackerRun:
    import trackio

    return TrackerRun(trackio.init(project=PROJECT, name=f"{title}, step {first}", group=str(folder)))


def _wandb(folder: Path, title: str, first: int) -> TrackerRun:
    import wandb

    return TrackerRun(
        wandb.init(project=PROJECT, name=f"{title}, step {first}", group=str(folder), dir=str(folder))
    )


LOGGERS: Mapping[str, Callable[[Path, str, int], Logger]] = {
    "tensorboard": TensorBoard,
    "trackio": _trackio,
    "wandb": _wandb,
}
"""Makers of loggers from a folder, a title and a first step, by the name in `run.loggers`."""


def open_loggers(names: Sequence[str], folder: Path, title: str, first: int) -> list[Logger]:
    """Open loggers by name for a run in `folder` whose next step is `first`.

    Raises:
        MissingPackageError: the package of a logger is not installed.
    """
    with optional_packages():
        return [LOGGERS[name](folder, title, first) for name in names]
