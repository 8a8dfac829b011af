"""Run each step once, and correct the estimated time of a run by its first updates."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from text2grad.config.estimate import LOAD_SECONDS, Estimate, minutes_in_words
from text2grad.errors import UserError
from text2grad.stages.improve.plan import OFFLINE
from text2grad.stages.run_folder import SFT, read_json, write_json

STATE = "improve.json"
TOLERANCE = 1 / 3
"""Relative change of the total time from which a corrected time is printed."""
MIN_UPDATES, MIN_SECONDS = 2, 5.0
"""Updates and seconds that a measurement needs; shorter ones are mostly noise."""
NOTEWORTHY_SECONDS = 60.0
"""Total times below are not corrected."""


class Steps:
    """The steps of a run, which are printed as commands; a finished step is not run again.

    `identity` is a digest of feedback and settings; `restart` removes what was trained before.

    Raises:
        UserError: the folder holds steps of another identity or of other commands, and `restart` is
            false.
    """

    def __init__(self, folder: Path, identity: str, restart: bool, expected: Estimate) -> None:
        self.file = folder / STATE
        self.state = {} if restart else read_state(folder)
        if self.state and self.state["identity"] != identity:
            problem = f"{folder} was made from another file, or with other settings"
            raise UserError(problem, "start over with --restart, or set another --run.folder")
        if not (self.state or restart) and (folder / SFT).exists():
            problem = f"{folder} has a policy that another command trained"
            raise UserError(problem, "set another --run.folder; --restart replaces it")
        if not self.state:
            self.file.unlink(missing_ok=True)  # an interrupted restart starts over again
            for old in (folder / SFT, folder / "ppo" / OFFLINE, *(folder / "evaluation").glob("*/")):
                shutil.rmtree(old, ignore_errors=True)
            self.state = {"identity": identity, "seconds": {}}
        self.forecast = Forecast(expected)

    def run(self, name: str, command: Sequence[str], work: Callable[[], object]) -> None:
        """Print the command of a step, and run the step unless it has finished before."""
        print(f"$ {shlex.join(['text2grad', *command])}", file=sys.stderr, flush=True)
        if name in self.state["seconds"]:
            print(f"  finished earlier, in {self.state['seconds'][name]:.0f} s", file=sys.stderr)
            self.forecast.finish(name, earlier=True)
            return
        started = time.perf_counter()
        work()
        self.state["seconds"][name] = round(time.perf_counter() - started, 1)
        self.save()
        self.forecast.finish(name)

    def save(self, **values: Any) -> None:
        """Write the state, with new values."""
        self.state |= values
        write_json(self.file, self.state)

    @property
    def minutes(self) -> float:
        """The time of all steps."""
        return float(sum(self.state["seconds"].values())) / 60


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of the steps in a run folder; a new run has an empty one."""
    file = folder / STATE
    return dict(read_json(file, "start over with --restart, or set another --run.folder")) if file.is_file() else {}


class Forecast:
    """The total time of a run: what has passed, and the estimate of the rest at the measured pace.

    The pace is the ratio of the measured to the estimated time of a step's updates. It covers a
    wrong estimate as well as a machine that has become busier.
    """

    def __init__(self, expected: Estimate) -> None:
        self._expected = expected
        self._stated = 60 * expected.minutes
        self._finished = 0.0  # estimated seconds of the steps that have ended
        self._started = time.perf_counter()

    def finish(self, step: str, earlier: bool = False) -> None:
        """Take a finished step into account, which may have ended in an earlier process."""
        seconds = self._expected.seconds.get(step, 0.0)
        self._finished += seconds
        if earlier:
            self._stated -= seconds

    def on_update(self, step: str) -> Callable[[int, dict[str, float]], None]:
        """Return a callback for each update of a training step, which corrects the total time."""
        times: list[float] = []
        expected = self._expected.update_seconds[step]

        def measure(number: int, metrics: dict[str, float]) -> None:
            times.append(time.perf_counter())
            updates, seconds = len(times) - 1, times[-1] - times[0]  # the first one also loads the model
            if updates >= MIN_UPDATES and seconds >= MIN_SECONDS:
                done = self._finished + LOAD_SECONDS + len(times) * expected
                self._correct(seconds / (updates * expected) * max(0.0, 60 * self._expected.minutes - done))

        return measure

    def _correct(self, remaining: float) -> None:
        """Print a total time that has changed; `remaining` is in seconds."""
        total = time.perf_counter() - self._started + remaining
        noteworthy = max(total, self._stated) >= NOTEWORTHY_SECONDS
        if noteworthy and abs(total - self._stated) > TOLERANCE * self._stated:
            self._stated = total
            words = f"about {minutes_in_words(total / 60)} in all, {minutes_in_words(remaining / 60)} left"
            print(f"time, corrected: {words}", file=sys.stderr, flush=True)
