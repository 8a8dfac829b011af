"""The processes of one job: forked, shut in, and ended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable

from codeverdict.inside import scratch
from codeverdict.inside.kernel import jail, system

_FORK_SECONDS = 2.0
_PROCESS_CLOCK = 2  # clock_getcpuclockid(3): the processor time of a process, by its number
RUNNING = -1
"""In place of a wait status: the process had not ended."""

Work = tuple[Callable[..., None], tuple[int, ...], int]
"""What a process of a job does with some descriptors, all that it may use; bytes of the longest
file it writes."""


class Job:
    """The processes of one job, in a prison and a new folder that outlast it."""

    def __init__(self, prison: jail.Jail, folder: scratch.Scratch, limits: jail.Limits) -> None:
        self._deadline = time.monotonic() + limits.wall
        self._jail, self._scratch, self._limits = prison, folder, limits
        self._processes: list[int] = []
        self._maps: list[int] = []

    def start(self, *works: Work) -> None:
        """Fork a process for each work, shut in before it begins.

        Raises:
            OSError: no folder or no process can be made.
        """
        self._scratch.renew()
        os.environ["TMPDIR"] = self._scratch.folder
        gate, rules, server = os.pipe(), self._jail.rules(self._scratch.folder), os.getpid()
        for work in works:
            self._processes.append(_forked(functools.partial(self._shut_in, work, gate, rules, server)))
        for process in self._processes:
            with contextlib.suppress(OSError):  # probed, never required: not every container shows it
                self._maps.append(os.open(f"/proc/{process}/maps", os.O_RDONLY | os.O_CLOEXEC))
        for descriptor in (*gate, *([rules] if rules >= 0 else [])):  # its end opens the gate
            os.close(descriptor)

    def _shut_in(self, work: Work, gate: tuple[int, int], rules: int, server: int) -> None:
        """Do the work after the server opened the list of what this process maps: later nobody
        may."""
        reader, writer = gate
        os.close(writer)
        os.read(reader, 1)
        do, keep, longest = work
        self._jail.enter(keep, self._scratch.folder, rules, self._limits, longest, server)
        do(*keep)

    def overrun(self) -> str:
        """What it has had too much of: `time` of the processor, of the `clock`, `files`; "" if
        nothing."""
        with contextlib.suppress(OSError):  # a process has ended
            solution, *tests = map(_processor_seconds, self._processes)
            # To send a call costs either side the same, so a loop of many calls is not charged for
            # sending them.
            if solution - sum(tests) > self._limits.seconds:
                return "time"
        if self._scratch.overfull(jail.FILE_BYTES * sum(map(self._scratch.nameless, self._maps))):
            return "files"
        return "clock" if time.monotonic() > self._deadline else ""

    def watched(self) -> int:
        """A descriptor that can be read once the last process, whose end is that of the job, has
        ended."""
        return os.pidfd_open(self._processes[-1])

    def end(self) -> list[int]:
        """Clear up; how each process ended by itself (wait status), RUNNING for what had to be
        killed."""
        statuses = []
        for process in self._processes:
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
            statuses.append(status if ended else RUNNING)
        while self._maps:
            os.close(self._maps.pop())
        self._scratch.empty()
        self._processes.clear()
        return statuses


def _processor_seconds(process: int) -> float:
    """Return the processor time that a process has used.

    Raises:
        OSError: it has ended.
    """
    return time.clock_gettime(~process << 3 | _PROCESS_CLOCK)


def _forked(work: Callable[[], None]) -> int:
    """Fork a process that does `work` and nothing after it; its number."""
    process = _fork_at_last(time.monotonic() + _FORK_SECONDS)
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def _fork_at_last(deadline: float) -> int:
    """Fork; where there are too many processes, those of a job that was killed may need a moment to
    end."""
    while True:
        try:
            return system.fork()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
