"""Correct the estimated time of a run by the time of its first updates."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from text2grad.config.estimate import LOAD_SECONDS, Estimate, minutes_in_words

TOLERANCE = 1 / 3
"""Relative change of the total time from which a corrected time is printed."""
MIN_UPDATES, MIN_SECONDS = 2, 5.0
"""Updates and seconds that a measurement needs; shorter ones are mostly noise."""
NOTEWORTHY_SECONDS = 60.0
"""Total times below are not corrected."""


class Forecast:
    """The total time of a run: what has passed, and the estimate of the rest at the measured pace.

    The pace is the latest ratio of measured to estimated time, of updates or of a finished step.
    It covers a wrong estimate as well as a machine that has become busier.
    """

    def __init__(self, expected: Estimate) -> None:
        self._expected = expected
        self._stated = 60 * expected.minutes
        self._finished = 0.0  # estimated seconds of the steps that have ended
        self._pace = 1.0
        self._started = time.perf_counter()

    def skip(self, step: str) -> None:
        """Leave out a step that ended in an earlier process."""
        seconds = self._expected.seconds.get(step, 0.0)
        self._finished += seconds
        self._stated -= seconds

    def finish(self, step: str, seconds: float) -> None:
        """Take the time of a finished step into account."""
        expected = self._expected.seconds.get(step, 0.0)
        self._finished += expected
        if expected and seconds >= MIN_SECONDS:
            self._pace = seconds / expected
        self._correct(self._finished)

    def on_update(self, step: str) -> Callable[[int, dict[str, float]], None]:
        """Return a callback for each update of a training step, which measures the pace."""
        times: list[float] = []
        expected = self._expected.update_seconds[step]

        def measure(number: int, metrics: dict[str, float]) -> None:
            times.append(time.perf_counter())
            updates, seconds = len(times) - 1, times[-1] - times[0]  # the first one also loads the model
            if updates >= MIN_UPDATES and seconds >= MIN_SECONDS:
                self._pace = seconds / (updates * expected)
                self._correct(self._finished + LOAD_SECONDS + len(times) * expected)

        return measure

    def _correct(self, done: float) -> None:
        """Print a total time that has changed; `done` are estimated seconds of finished work."""
        remaining = self._pace * max(0.0, 60 * self._expected.minutes - done)
        total = time.perf_counter() - self._started + remaining
        noteworthy = max(total, self._stated) >= NOTEWORTHY_SECONDS
        if noteworthy and abs(total - self._stated) > TOLERANCE * self._stated:
            self._stated = total
            words = f"about {minutes_in_words(total / 60)} in all, {minutes_in_words(remaining / 60)} left"
            print(f"time, corrected: {words}", file=sys.stderr, flush=True)
