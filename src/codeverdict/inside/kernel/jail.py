"""Confine a process of a job irrevocably, before it runs any untrusted code."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import NamedTuple

from codeverdict.inside.kernel import landlock, seccomp, system

FILE_BYTES = 1 << 20
"""Maximum size of a file that a program writes, in bytes."""

_DESCRIPTORS = 64
_PROCESSES = 64
_MOST_DESCRIPTORS = 1024  # of a server, which opens a few dozen
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_READABLE = (
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
    "/etc/localtime",
)


class Limits(NamedTuple):
    """The limits of a process.

    `seconds`: processor time of the solution in addition to the tests' own. `wall`: wall-clock
    seconds of the job. `memory_mb`: memory of the process in MiB.
    """

    seconds: float
    wall: float
    memory_mb: int


class Jail:
    """The confinement that a server prepares once: readable paths, the filter and the user."""

    def __init__(self, protected: bool, user: int | None, libraries: list[str], inherited: tuple[int, ...]) -> None:
        """Prepare the confinement, which also lowers the limits of the server.

        Args:
            protected: confine processes with Landlock and seccomp.
            user: the user id of programs; None: the user of the server.
            libraries: folders that programs may read.
            inherited: descriptors that every process keeps.

        Raises:
            OSError: the protection is not available.
        """
        self._kept = inherited
        self._protected = protected
        self._user = user
        for name, value in _SAME_FOR_ALL:
            resource.setrlimit(name, (value, value))
        if user is not None:
            os.setgroups([])
        if protected:
            self._filter = seccomp.Filter()
            self._rules = landlock.Rules(_allowed(libraries), landlock.WRITE_RIGHTS)

    def limit_processes(self) -> None:
        """Limit the processes and threads of this server's programs; without effect for root."""
        resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))

    def rules(self, scratch: str) -> int:
        """Return a Landlock ruleset that allows writing in `scratch`; -1 without protection."""
        if not self._protected:
            return -1
        folder = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return self._rules.create(folder)
        finally:
            os.close(folder)

    def enter(
        self, keep: tuple[int, ...], scratch: str, rules: int, limits: Limits, longest: int, server: int = 0
    ) -> None:
        """Confine this process.

        Args:
            keep: the descriptors that it may use.
            scratch: the folder that it may write in; `rules` is the ruleset for that folder.
            longest: the maximum size of a file in bytes.
            server: the parent process, with which it is killed; 0: not needed.

        Raises:
            OSError: a part of the protection was refused; no untrusted code may run.
        """
        _close_all_but(sorted((*keep, *self._kept, rules)))
        seconds, memory = math.ceil(limits.wall) + 1, limits.memory_mb << 20
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest, longest))
        if self._user is not None:
            os.setresgid(self._user, self._user, self._user)
            os.setresuid(self._user, self._user, self._user)
        if server:
            _end_with(server)
        os.chdir(scratch)
        if self._protected:
            if self._user is None:  # otherwise the change of user has dropped them
                system.drop_capabilities()
            system.prctl(system.PR_SET_DUMPABLE, 0)
            system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
            landlock.restrict(rules)
            self._filter.install(os.getpid())


def _allowed(libraries: list[str]) -> Iterator[tuple[int, int]]:
    """Yield (descriptor, rights) of the paths that every program may use."""
    readable = [(path, landlock.READ_RIGHTS) for path in (*_READABLE, *libraries)]
    for path, rights in (*readable, *((path, landlock.DEVICE_RIGHTS) for path in _DEVICES)):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            yield descriptor, rights if os.path.isdir(path) else rights & landlock.DEVICE_RIGHTS


_SAME_FOR_ALL = (
    (resource.RLIMIT_NOFILE, _DESCRIPTORS),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_MEMLOCK, 0),
)


def _end_with(server: int) -> None:
    """Let the kernel kill this process when its parent ends; a later change of user undoes this."""
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # the parent has already ended
        os._exit(1)


def silence_streams() -> None:
    """Redirect stdin, stdout and stderr to /dev/null for this process and its children."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _close_all_but(descriptors: list[int]) -> None:
    low = 3
    for descriptor in descriptors:
        if low < descriptor:  # Python 3.11 closes everything for an empty range
            os.closerange(low, descriptor)
        low = max(low, descriptor + 1)
    os.closerange(low, _MOST_DESCRIPTORS)


def library_folders(site: list[str]) -> list[str]:
    """Return the folders of the standard library and of packages that programs may import."""
    folders = [os.path.realpath(path) for path in (*sys.path, *site) if path and os.path.isdir(path)]
    return sorted(set(folders))
