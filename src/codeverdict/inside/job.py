"""The processes of one job: forked, shut in, and ended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable

from codeverdict.inside import jail, scratch, system

_MOST_DYING = 8
_FORK_SECONDS = 2.0
_PROCESS_CLOCK = 2  # clock_getcpuclockid(3): the processor time of a process, by its number
RUNNING = -1
"""In place of a wait status: the process had not ended."""

Work = tuple[Callable[[], None], tuple[int, ...], int]
"""What a process of a job does, the descriptors it may use for it, and how long a file it may write, in bytes."""


class Ground:
    """What all jobs of a server have in common: the jail, and where they have no mounts the server's own folder."""

    def __init__(
        self, prison: jail.Jail, namespaces: bool, user: int | None, kept: tuple[int, ...], libraries: list[str]
    ) -> None:
        """Raises OSError if no folder can be made to write in. A mount over /tmp would hide libraries below it."""
        self.jail, self.namespaces, self.user, self.kept = prison, namespaces, user, kept
        self.scratch = None if namespaces else scratch.Scratch(user)
        hides = any(each.startswith("/tmp/") for each in libraries)
        self.folder = self.scratch.folder if self.scratch else "/scratch" if hides else "/tmp"
        if namespaces or user is not None:  # counts nothing else: a user, or a user namespace, of our own
            prison.limit_processes()
        self.gate = os.pipe() if self.scratch else (-1, -1)
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

    def __init__(self, ground: Ground, limits: jail.Limits) -> None:
        self._deadline = time.monotonic() + limits.wall
        self._ground, self._limits = ground, limits
        self._processes: list[int] = []
        self._maps: list[int] = []

    def start(self, *works: Work) -> None:
        """Fork a process for each work, shut in before it begins.

        Raises:
            OSError: there are no namespaces to be had.
        """
        if self._ground.scratch is None:
            self._start_in_namespaces(works)
            return
        own, server = self._ground.scratch, os.getpid()
        own.renew()
        os.environ["TMPDIR"] = folder = own.folder
        rules = self._ground.jail.rules(folder)
        for work in works:
            self._processes.append(_forked(functools.partial(self._in_folder, work, folder, rules, server)))
        if rules >= 0:
            os.close(rules)
        for process in self._processes:
            with contextlib.suppress(OSError):  # probed, never required: not every container shows it
                self._maps.append(os.open(f"/proc/{process}/maps", os.O_RDONLY | os.O_CLOEXEC))
        os.write(self._ground.gate[1], b"." * len(works))

    def _in_folder(self, work: Work, folder: str, rules: int, server: int) -> None:
        """Do the work after the server opened the list of what this process maps: later nobody may."""
        reader, writer = self._ground.gate
        os.close(writer)  # else the end of the server would not be seen here
        os.read(reader, 1)
        self._shut_in(work, folder, rules, server)

    def _shut_in(self, work: Work, folder: str, rules: int, server: int = 0) -> None:
        do, keep, longest = work
        self._ground.jail.enter((*keep, *self._ground.kept), folder, rules, self._limits, longest, server)
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
        options = f"size={scratch.BYTES},nr_inodes={scratch.ENTRIES},mode=700{owner}"
        flags = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC
        system.mount("scratch", self._ground.folder, "tmpfs", flags, options)
        rules = self._ground.jail.rules(self._ground.folder)
        for work in works[1:]:
            os.waitpid(_forked(functools.partial(self._first_process, work, rules, writer)), 0)
        self._first_process(works[0], rules, writer)

    def _first_process(self, work: Work, rules: int, writer: int) -> None:
        """The first process of a namespace of its own: what else it started would end with it."""
        system.unshare(system.CLONE_NEWPID)
        process = _forked(lambda: self._shut_in(work, self._ground.folder, rules))
        os.write(writer, b"%d " % process)

    def overrun(self) -> str:
        """What it has had too much of: `time` of the processor, of the `clock`, `files`; "" if nothing."""
        with contextlib.suppress(OSError):  # the first process, the solution's, has ended
            if time.clock_gettime(~self._processes[0] << 3 | _PROCESS_CLOCK) > self._limits.seconds:
                return "time"
        own = self._ground.scratch  # mounts of its own see to that themselves
        if own is not None and own.overfull(jail.FILE_BYTES * sum(map(own.nameless, self._maps))):
            return "files"
        return "clock" if time.monotonic() > self._deadline else ""

    def watched(self) -> int:
        """A descriptor that can be read once the last process, whose end is that of the job, has ended."""
        return os.pidfd_open(self._processes[-1])

    def end(self) -> list[int]:
        """Clear up; how each process ended by itself (wait status), RUNNING for what had to be killed."""
        statuses = []
        for process in self._processes:
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                os.kill(process, signal.SIGKILL)
                self._ground.reap(process)
            statuses.append(status if ended else RUNNING)
        while self._maps:
            os.close(self._maps.pop())
        if self._ground.scratch is not None:
            self._ground.scratch.empty()
        self._processes.clear()
        return statuses


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
    """Fork; where there are too many processes, those of a job that was killed may need a moment to end."""
    while True:
        try:
            return system.fork()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
