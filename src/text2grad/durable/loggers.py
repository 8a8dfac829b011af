"""Other places for the metrics of a run than its `metrics.jsonl`: TensorBoard, trackio, Weights &
Biases.

Their packages are optional and imported on demand. Resumed runs append to the TensorBoard log; in
trackio and W&B they are another run of the same group, named by the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from text2grad.errors import optional_packages

PROJECT = "text2grad"


class Logger(Protocol):
    """Takes the metrics of one step after the other, and is closed when the run ends or stops."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `<folder>/tensorboard`; what an earlier start wrote from `first` on is
    discarded."""

    def __init__(self, folder: Path, title: str, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=first)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar for each metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class TrackerRun:
    """A run of trackio or W&B, which are spoken to alike."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """All metrics of a step at once."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send what is left."""
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
"""(the run's folder, its title, its first step) -> a logger, by its name in `run.loggers`."""


def open_loggers(names: Sequence[str], folder: Path, title: str, first: int) -> list[Logger]:
    """The loggers of these names for a run in `folder` whose next step is `first`.

    Raises:
        MissingPackageError: the package of one is not installed.
    """
    with optional_packages():
        return [LOGGERS[name](folder, title, first) for name in names]
