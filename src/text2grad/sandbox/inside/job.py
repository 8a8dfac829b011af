"""The processes of one job: forked, shut in, and ended."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable

from text2grad.sandbox.inside import jail, system
from text2grad.sandbox.inside.scratch import Scratch

SCRATCH_BYTES = 16 << 20
SCRATCH_ENTRIES = 256
_MOST_DYING = 8

Work = tuple[Callable[[], None], tuple[int, ...]]
"""What a process of a job does, and the descriptors it may use for it."""


class Ground:
    """What all jobs of a server have in common: the jail, and a folder where there are no mounts for each job."""

    def __init__(self, prison: jail.Jail, namespaces: bool, user: int | None, kept: tuple[int, ...]) -> None:
        """Raises OSError where there is no folder to write in."""
        self.jail, self.namespaces, self.user, self.kept = prison, namespaces, user, kept
        self.scratch = None if namespaces else Scratch(user)
        self.folder = self.scratch.path if self.scratch else "/tmp"
        self.rules = prison.rules(self.folder) if self.scratch else -1
        self._dying: list[int] = []

    def reap(self, process: int) -> None:
        """Wait for a killed process; in namespaces not now: taking its mounts down takes milliseconds, and it has
        nothing left that a next job could meet."""
        if not self.namespaces:
            os.waitpid(process, 0)
            return
        self._dying.append(process)
        self._dying = [each for each in self._dying if not os.waitpid(each, os.WNOHANG)[0]]
        while len(self._dying) > _MOST_DYING:
            os.waitpid(self._dying.pop(0), 0)


class Job:
    """The processes of one job."""

    def __init__(self, ground: Ground, limits: jail.Limits, deadline: float | None = None) -> None:
        self.deadline = deadline or time.monotonic() + limits.seconds
        self._ground, self._limits = ground, limits
        self._processes: list[int] = []

    def start(self, *works: Work) -> None:
        """Fork a process for each work, shut in before it begins.

        Raises:
            OSError: there are no namespaces to be had.
        """
        if self._ground.namespaces:
            self._start_in_namespaces(works)
            return
        for work in works:
            self._processes.append(_forked(functools.partial(self._shut_in, work, self._ground.rules)))

    def _shut_in(self, work: Work, rules: int) -> None:
        ground, (do, keep) = self._ground, work
        if not ground.namespaces:
            system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        ground.jail.enter((*keep, *ground.kept), ground.folder, rules, self._limits)
        do()

    def _start_in_namespaces(self, works: tuple[Work, ...]) -> None:
        """A go-between makes the mounts of the job, and for each process a namespace of process numbers; it ends,
        and the processes, orphaned, become children of the server. Network and IPC are the box's, which has none;
        a network namespace for each job costs more than the job, and sockets are refused anyway."""
        reader, writer = os.pipe()
        between = _forked(lambda: self._between(works, writer))
        os.close(writer)
        numbers = b""
        while piece := os.read(reader, 1024):
            numbers += piece
        os.close(reader)
        os.waitpid(between, 0)
        *others, first = [int(number) for number in numbers.split()] or [0]
        self._processes += [first, *others] if first else []
        if len(self._processes) != len(works):
            raise OSError("the namespaces of a job were refused")

    def _between(self, works: tuple[Work, ...], writer: int) -> None:
        system.unshare(system.CLONE_NEWNS)
        owner = "" if self._ground.user is None else f",uid={self._ground.user},gid={self._ground.user}"
        options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_ENTRIES},mode=700{owner}"
        flags = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC
        system.mount("scratch", self._ground.folder, "tmpfs", flags, options)
        rules = self._ground.jail.rules(self._ground.folder)
        for work in works[1:]:
            os.waitpid(_forked(functools.partial(self._first_process, work, rules, writer)), 0)
        self._first_process(works[0], rules, writer)

    def _first_process(self, work: Work, rules: int, writer: int) -> None:
        """The first process of a namespace of its own: what else it started would end with it."""
        system.unshare(system.CLONE_NEWPID)
        process = _forked(lambda: self._shut_in(work, rules))
        os.write(writer, b"%d " % process)

    def filled_scratch(self) -> bool:
        """Whether more files lie there than a program may make (a scratch of its own sees to that itself)."""
        return self._ground.scratch is not None and self._ground.scratch.entries() > SCRATCH_ENTRIES

    def end(self, gently: bool = False) -> list[int]:
        """Kill what still runs, and clear up; how each process ended by itself (wait status)."""
        statuses = []
        for process in self._processes:
            ended, status = os.waitpid(process, 0 if gently else os.WNOHANG)
            if not ended:
                os.kill(process, signal.SIGKILL)
                self._ground.reap(process)
            statuses.append(status)
        if self._ground.scratch is not None and self._processes:
            self._ground.scratch.empty()
        self._processes.clear()
        return statuses


def _forked(work: Callable[[], None]) -> int:
    """Fork a process that does `work` and nothing after it; its number."""
    process = system.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)
