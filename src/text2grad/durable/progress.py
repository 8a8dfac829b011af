"""Report the progress of a run: a live bar on a terminal, elsewhere a line now and then, with the
time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

LINE_SECONDS = 30.0
"""Without a terminal, the seconds between two lines; the first and the last step always have
one."""


class ProgressLine:
    """The progress of `steps` steps called `title`, on stderr; `silent` shows nothing.

    A finished step is reported with some figures, a phase of an unfinished one (sampling, ...) by
    its name. The time left is computed from the steps of this process: a resumed run starts to
    count anew.
    """

    def __init__(self, title: str, steps: int, silent: bool = False) -> None:
        self.title = title
        self.steps = steps
        console = Console(file=sys.stderr)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, disable=silent or not console.is_terminal)
        self._task = self._bar.add_task(title, total=steps)
        self._silent = silent
        self._start = self._last_line = self._step_end = time.monotonic()
        self._done_here = 0
        self._shown = title

    def __enter__(self) -> ProgressLine:
        self._start = self._last_line = self._step_end = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def doing(self, step: int, phase: str) -> None:
        """Report that a phase of the step of this number, from 0, begins."""
        left = self._left(step)
        self._bar.update(self._task, completed=step, description=f"{self._shown} ({phase}){left}")
        if self._is_due():
            self._print(f"{self.title}: step {step + 1} of {self.steps}, {phase}{left}")

    def done(self, step: int, figures: str) -> None:
        """Report that the step of this number, from 0, is done."""
        self._done_here, self._step_end = self._done_here + 1, time.monotonic()
        self._shown, left = f"{self.title} {figures}", self._left(step + 1)
        self._bar.update(self._task, completed=step + 1, description=f"{self._shown}{left}")
        if self._done_here == 1 or step == self.steps - 1 or self._is_due():
            self._print(f"{self.title}: {step + 1}/{self.steps} {figures}{left}")

    def _is_due(self) -> bool:
        return time.monotonic() - self._last_line >= LINE_SECONDS

    def _left(self, done: int) -> str:
        """The time that the steps after the first `done` will take; empty until a step is done."""
        if not self._done_here or done >= self.steps:
            return ""
        seconds = (self._step_end - self._start) / self._done_here * (self.steps - done)
        return f", {in_words(max(0.0, seconds - (time.monotonic() - self._step_end)))} left"

    def _print(self, line: str) -> None:
        if self._bar.disable and not self._silent:
            self._last_line = time.monotonic()
            print(line, file=sys.stderr, flush=True)


class CountLine:
    """Progress of `total` equal pieces, on stderr: an occasional line for long work.

    Never a bar: the work may be part of something that has one.
    """

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._start = self._last_line = time.monotonic()

    def reached(self, count: float) -> None:
        """Report the number of finished pieces; an unfinished one counts by its share."""
        now = time.monotonic()
        if 0 < count < self.total and now - self._last_line >= LINE_SECONDS:
            left = in_words((now - self._start) / count * (self.total - count))
            self._last_line = now
            print(f"{self.title}: {count:.0f}/{self.total}, {left} left", file=sys.stderr, flush=True)


def counting(title: str) -> Callable[[int], Callable[[float], None]]:
    """Return a function from a number of pieces to a function that reports how many are done."""
    return lambda total: CountLine(title, total).reached


def in_words(seconds: float) -> str:
    """Return a rounded duration: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
