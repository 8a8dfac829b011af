"""How far a training run is: a live bar on a terminal; elsewhere a plain line now and then, with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

LINE_SECONDS = 30.0
"""Where stderr is no terminal, at most one line in so many seconds, beside those of the first and the last step."""


class TimeLeft(ProgressColumn):
    """The time that is left, from all steps that were done.

    Rich's own looks at the last half minute, in which a slow step may not have moved at all.
    """

    def __init__(self, left: Callable[[int], str]) -> None:
        super().__init__()
        self._left = left

    def render(self, task: Task) -> Text:
        """In words; empty until a step is done."""
        return Text(self._left(int(task.completed)).removeprefix(", "))


class ProgressLine:
    """The progress of `steps` steps called `title`, on stderr; `silent` shows nothing.

    A step that is done is reported with some figures, a phase of one that is not (sampling, ...) by its name. What
    is left is told from the steps that were done here: a resumed run begins to count anew.
    """

    def __init__(self, title: str, steps: int, silent: bool = False) -> None:
        self.title = title
        self.steps = steps
        console = Console(file=sys.stderr)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft(self._left))
        self._bar = Progress(*columns, console=console) if console.is_terminal and not silent else None
        self._task = self._bar.add_task(title, total=steps) if self._bar else None
        self._silent = silent
        self._began = self._said = self._ended = time.monotonic()
        self._done_here = 0
        self._shown = title

    def __enter__(self) -> ProgressLine:
        self._began = self._said = self._ended = time.monotonic()
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def doing(self, step: int, phase: str) -> None:
        """A phase of the step of this number, from 0, begins."""
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step, description=f"{self._shown} ({phase})")
        elif self._due():
            self._say(f"{self.title}: step {step + 1} of {self.steps}, {phase}{self._left(step)}")

    def done(self, step: int, figures: str) -> None:
        """The step of this number, from 0, is done."""
        self._done_here, self._ended = self._done_here + 1, time.monotonic()
        self._shown = f"{self.title} {figures}"
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=step + 1, description=self._shown)
        elif self._done_here == 1 or step == self.steps - 1 or self._due():
            self._say(f"{self.title}: {step + 1}/{self.steps} {figures}{self._left(step + 1)}")

    def _due(self) -> bool:
        return time.monotonic() - self._said >= LINE_SECONDS

    def _left(self, done: int) -> str:
        """The time that the steps after the first `done` will take, as far as it is known."""
        if not self._done_here or done >= self.steps:
            return ""
        whole = (self._ended - self._began) / self._done_here * (self.steps - done)
        return f", {in_words(max(0.0, whole - (time.monotonic() - self._ended)))} left"

    def _say(self, line: str) -> None:
        if not self._silent:
            self._said = time.monotonic()
            print(line, file=sys.stderr, flush=True)


class CountLine:
    """How many of `total` equal pieces are done, on stderr: a line now and then, of what takes that long.

    Never a bar: it may be a part of something that has one.
    """

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._began = self._said = time.monotonic()

    def reached(self, count: float) -> None:
        """So many are done, a begun one by its share."""
        now = time.monotonic()
        if 0 < count < self.total and now - self._said >= LINE_SECONDS:
            left = in_words((now - self._began) / count * (self.total - count))
            self._said = now
            print(f"{self.title}: {count:.0f}/{self.total}, {left} left", file=sys.stderr, flush=True)


def counting(title: str) -> Callable[[int], Callable[[float], None]]:
    """What tells how far something is, of how many pieces it has."""
    return lambda total: CountLine(title, total).reached


def in_words(seconds: float) -> str:
    """A duration as people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
