"""Progress with the remaining time: a live bar on a terminal, otherwise occasional lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

LINE_SECONDS = 30.0
"""Seconds between lines without a terminal; the first and the last step always print one."""


class ProgressLine:
    """Reports the steps of a run on stderr; nothing if `silent`.

    A finished step is shown with its figures, an unfinished one with the name of its phase
    (sampling, ...). The remaining time is estimated from the steps of this process, so a resumed
    run starts a new estimate.
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
        self._steps_here = 0
        self._description = title

    def __enter__(self) -> ProgressLine:
        self._start = self._last_line = self._step_end = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin_phase(self, step: int, phase: str) -> None:
        """Report that a phase of step `step` (from 0) begins."""
        remaining = self._remaining_time(step)
        self._bar.update(self._task, completed=step, description=f"{self._description} ({phase}){remaining}")
        if self._is_due():
            self._print(f"{self.title}: step {step + 1} of {self.steps}, {phase}{remaining}")

    def finish_step(self, step: int, figures: str) -> None:
        """Report that step `step` (from 0) is finished."""
        self._steps_here += 1
        self._step_end = time.monotonic()
        self._description = f"{self.title} {figures}"
        remaining = self._remaining_time(step + 1)
        self._bar.update(self._task, completed=step + 1, description=f"{self._description}{remaining}")
        if self._steps_here == 1 or step == self.steps - 1 or self._is_due():
            self._print(f"{self.title}: {step + 1}/{self.steps} {figures}{remaining}")

    def _is_due(self) -> bool:
        return time.monotonic() - self._last_line >= LINE_SECONDS

    def _remaining_time(self, finished: int) -> str:
        """Return the estimated time for the steps after `finished`; empty before the first step."""
        if not self._steps_here or finished >= self.steps:
            return ""
        seconds = (self._step_end - self._start) / self._steps_here * (self.steps - finished)
        return f", {format_duration(max(0.0, seconds - (time.monotonic() - self._step_end)))} left"

    def _print(self, line: str) -> None:
        if self._bar.disable and not self._silent:
            self._last_line = time.monotonic()
            print(line, file=sys.stderr, flush=True)


class CountLine:
    """Prints an occasional line on stderr about `total` equal pieces of work.

    It shows no bar, because the work may be part of a step that has one.
    """

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._start = self._last_line = time.monotonic()

    def update(self, count: float) -> None:
        """Report the number of finished pieces, including fractions of unfinished ones."""
        now = time.monotonic()
        if 0 < count < self.total and now - self._last_line >= LINE_SECONDS:
            remaining = format_duration((now - self._start) / count * (self.total - count))
            self._last_line = now
            print(f"{self.title}: {count:.0f}/{self.total}, {remaining} left", file=sys.stderr, flush=True)


def progress_reporter(title: str) -> Callable[[int], Callable[[float], None]]:
    """Return a function that takes a total and returns `CountLine.update` for it."""
    return lambda total: CountLine(title, total).update


def format_duration(seconds: float) -> str:
    """Return a rounded duration, such as 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
