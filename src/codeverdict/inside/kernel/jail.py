"""How a process of a job is shut in, once and for good, before it sees a line of untrusted code."""

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
"""The longest file a program may write, in bytes."""

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
    """The limits of one process: seconds of processor time (the solution's, beyond its tests') and
    of the wall clock (the whole job), and MiB of memory."""

    seconds: float
    wall: float
    memory_mb: int


class Jail:
    """What a server prepares once: descriptors of what may be read, the filter, the user programs
    run as."""

    def __init__(self, protected: bool, user: int | None, libraries: list[str], kept: tuple[int, ...]) -> None:
        """Raises OSError where the protection is not available; the server's own limits are lowered
        too. Every process has the descriptors `kept`."""
        self._kept = kept
        self._protected = protected
        self._user = user
        for name, value in _SAME_FOR_ALL:
            resource.setrlimit(name, (value, value))
        if user is not None:
            os.setgroups([])
        if protected:
            self._filter = seccomp.Filter()
            self._rules = landlock.Rules(_allowed(libraries), landlock.WRITE)

    def limit_processes(self) -> None:
        """Lower how many processes and threads the programs of this server may have; without effect
        for root."""
        resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))

    def rules(self, scratch: str) -> int:
        """A descriptor of the rules of one job, which may write in the folder `scratch`; -1 without
        protection."""
        if not self._protected:
            return -1
        own = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return self._rules.made(own)
        finally:
            os.close(own)

    def enter(
        self, keep: tuple[int, ...], scratch: str, rules: int, limits: Limits, longest: int, server: int = 0
    ) -> None:
        """Shut this process in: it may use the descriptors `keep`, and write files of `longest`
        bytes in `scratch`.

        It is killed when its parent, the process `server`, ends (0: what else ends with it sees to
        that).

        Raises:
            OSError: a part of the protection was refused; nothing untrusted must run.
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
            if self._user is None:  # else they went with the user
                system.drop_capabilities()
            system.prctl(system.PR_SET_DUMPABLE, 0)
            system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
            landlock.restrict(rules)
            self._filter.install(os.getpid())


def _allowed(libraries: list[str]) -> Iterator[tuple[int, int]]:
    """Descriptors of what every program may use, with the rights it has there."""
    wanted = [(path, landlock.READ) for path in (*_READABLE, *libraries)]
    for path, rights in (*wanted, *((path, landlock.DEVICE) for path in _DEVICES)):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            yield descriptor, rights if os.path.isdir(path) else rights & landlock.DEVICE


_SAME_FOR_ALL = (
    (resource.RLIMIT_NOFILE, _DESCRIPTORS),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_MEMLOCK, 0),
)


def _end_with(server: int) -> None:
    """Have the kernel kill this process when its parent ends. After the change of user, which
    undoes it."""
    system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:  # it ended before
        os._exit(1)


def silence_streams() -> None:
    """Point standard input, output and error nowhere, for this process and those it forks."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _close_all_but(kept: list[int]) -> None:
    low = 3
    for descriptor in kept:
        if low < descriptor:  # Python 3.11 takes an empty range for all of them
            os.closerange(low, descriptor)
        low = max(low, descriptor + 1)
    os.closerange(low, _MOST_DESCRIPTORS)


def library_folders(site: list[str]) -> list[str]:
    """Folders that hold the standard library and the packages that programs may import."""
    found = [os.path.realpath(path) for path in (*sys.path, *site) if path and os.path.isdir(path)]
    return sorted(set(found))
