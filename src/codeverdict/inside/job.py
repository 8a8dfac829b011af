"""Fork, confine and end the processes of one job."""

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
"""Replaces the wait status of a process that had not ended."""

Work = tuple[Callable[..., None], tuple[int, ...], int]
"""A function of a job's process, the only descriptors it may use, and its maximum file size."""


class Job:
    """The processes of one job; the jail and the scratch folder are reused for other jobs."""

    def __init__(self, prison: jail.Jail, folder: scratch.Scratch, limits: jail.Limits) -> None:
        self._deadline = time.monotonic() + limits.wall
        self._jail, self._scratch, self._limits = prison, folder, limits
        self._processes: list[int] = []
        self._maps: list[int] = []

    def start(self, *works: Work) -> None:
        """Fork a process for each work and confine it before it starts.

        Raises:
            OSError: a folder or a process cannot be created.
        """
        self._scratch.renew()
        os.environ["TMPDIR"] = self._scratch.folder
        gate, rules, server = os.pipe(), self._jail.rules(self._scratch.folder), os.getpid()
        for work in works:
            self._processes.append(_forked(functools.partial(self._shut_in, work, gate, rules, server)))
        for process in self._processes:
            with contextlib.suppress(OSError):  # probed, never required: not every container shows it
                self._maps.append(os.open(f"/proc/{process}/maps", os.O_RDONLY | os.O_CLOEXEC))
        for descriptor in (*gate, *([rules] if rules >= 0 else [])):  # closing the writer opens the gate
            os.close(descriptor)

    def _shut_in(self, work: Work, gate: tuple[int, int], rules: int, server: int) -> None:
        """Do the work once the server has opened this process's maps, which it cannot do later."""
        reader, writer = gate
        os.close(writer)
        os.read(reader, 1)
        do, keep, longest = work
        self._jail.enter(keep, self._scratch.folder, rules, self._limits, longest, server)
        do(*keep)

    def overrun(self) -> str:
        """Return the exceeded limit: `time` (processor), `clock`, `files`, or an empty text."""
        with contextlib.suppress(OSError):  # a process has ended
            solution, *tests = map(_processor_seconds, self._processes)
            # Sending a call costs both sides the same, so that a loop of many calls is not charged
            # for sending them.
            if solution - sum(tests) > self._limits.seconds:
                return "time"
        if self._scratch.overfull(jail.FILE_BYTES * sum(map(self._scratch.nameless, self._maps))):
            return "files"
        return "clock" if time.monotonic() > self._deadline else ""

    def watched(self) -> int:
        """Return a descriptor that becomes readable when the last process, and so the job, ends."""
        return os.pidfd_open(self._processes[-1])

    def end(self) -> list[int]:
        """Kill running processes, clean up, and return the wait statuses (RUNNING if killed)."""
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
    """Fork a process that does `work` and exits; return its id."""
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
    """Fork, and retry while killed processes of another job take a moment to end."""
    while True:
        try:
            return system.fork()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
