"""The warm server: it forks the processes of a job, and ends them. It never runs a line of
untrusted code, and it never sees one: what it holds in memory, every process of every later job
inherits.

Packets (frames.py): first `{tier, memory_mb, libraries, user, preload}`, answered by
`{"ready": true, "probes": {...}}` or `{"refused": why}`; then for each job
`{"start": "tests" | "script", seconds, wall, modules}` with the files it reads and writes, answered
by `{"ends": [wait status, ...], "broken": what it had too much of}`.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import os
import select
import signal
import sys
from _sitebuiltins import Quitter
from typing import Any

from codeverdict.inside import frames, probes, solution_side, test_side
from codeverdict.inside.job import Job
from codeverdict.inside.kernel import jail
from codeverdict.inside.scratch import Scratch

_TICK_MS = 50
_VERDICT_BYTES = 8 << 20
_THRESHOLD = 20_000  # Python's 700 has every job look for garbage several times

_ENVIRONMENT = {"LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
_WARM = (
    "array asyncio bisect calendar cmath collections.abc concurrent.futures copy csv dataclasses datetime "
    "decimal enum fractions hashlib heapq inspect numbers pathlib pickle pprint queue random secrets "
    "statistics string struct tempfile textwrap threading traceback unicodedata unittest unittest.mock "
    "uuid warnings"
)
WARM = frozenset(_WARM.split())
"""Modules of the standard library that the server imports when a job first names one, for that job
and all later ones. Not before: a fork takes the longer the more memory the server has."""


def main() -> None:
    """Serve until the other side closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = frames.Channel(os.dup(0))
    del sys.argv[1:]  # ours
    jail.silence_streams()
    setup, _ = channel.receive()
    try:
        server = Server(setup, channel)
        reply: dict[str, Any] = {"ready": True, "probes": server.prove() if server.protected else {}}
    except (OSError, ImportError) as error:  # pytest has to be installed beside the package
        channel.send({"refused": f"{getattr(error, 'strerror', None) or error}"})
        return
    with contextlib.suppress(frames.Closed):
        channel.send(reply)
        while True:
            server.serve(*channel.receive())
    server.close()


class Server:
    """What stays warm between jobs."""

    def __init__(self, setup: dict[str, Any], channel: frames.Channel) -> None:
        self._channel = channel
        self._cold = set(WARM)
        self.protected = setup["tier"] != "none"
        self._memory_mb = int(setup["memory_mb"])
        self._warm_up(setup["libraries"], setup["preload"])
        libraries = jail.library_folders([])
        user = setup["user"]
        self._jail = jail.Jail(self.protected, user, libraries, _opened_for(user, libraries))
        if user is not None or setup["tier"] == "namespaces":  # a user, or a user namespace, of our own
            self._jail.limit_processes()
        self._scratch = Scratch(user)
        for name in set(os.environ) - _ENVIRONMENT:
            del os.environ[name]
        self._suite: Any = None
        if "pytest" in setup["preload"]:
            from codeverdict.inside import suite

            self._suite = functools.partial(suite.Suite, suite.session())
        _settle()

    def close(self) -> None:
        """Remove the server's folder."""
        self._scratch.remove()

    def _warm_up(self, libraries: list[str], preload: list[str]) -> None:
        sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "codeverdict"))]
        sys.path += [path for path in libraries if path not in sys.path]
        for name in preload:
            __import__(name)
        for name in ("exit", "quit"):  # of the module site, which is left out
            setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))

    def _warm_up_with(self, modules: list[str]) -> None:
        """Import what a job is about to import, so that it happens once."""
        wanted = self._cold.intersection(modules)
        for name in sorted(wanted):
            with contextlib.suppress(ImportError):
                __import__(name)
        if wanted:
            self._cold -= wanted
            _settle()

    def prove(self) -> dict[str, bool]:
        """Try to escape from inside. Returns what was tried and whether it was blocked."""
        reader, writer = os.pipe()
        job = Job(self._jail, self._scratch, jail.Limits(5.0, 5.0, self._memory_mb))
        try:
            job.start((functools.partial(probes.report, os.getpid()), (writer,), jail.FILE_BYTES))
            os.close(writer)
            with open(reader, "rb") as pipe:
                found: dict[str, bool] = frames.receive(pipe)
        except frames.Broken as error:
            raise OSError("a process cannot be shut in") from error
        finally:
            job.end()
        return found

    def serve(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Run one job until its caller has the verdict or is gone."""
        self._warm_up_with(request["modules"])
        limits = jail.Limits(float(request["seconds"]), float(request["wall"]), self._memory_mb)
        job, broken = Job(self._jail, self._scratch, limits), ""
        try:
            self._begin(job, request["start"], descriptors)
            broken = self._watch(job)
        finally:
            ends = job.end()
        self._channel.send({"ends": ends, "broken": broken})

    def _begin(self, job: Job, kind: str, descriptors: list[int]) -> None:
        pipes = [*os.pipe(), *os.pipe()] if kind == "tests" else []
        if kind == "script":
            job.start((solution_side.script, tuple(descriptors), jail.FILE_BYTES))
        else:
            code, tests, verdict = descriptors
            read_s, write_t, read_t, write_s = pipes
            judge = functools.partial(test_side.judge, self._suite)
            job.start(
                (solution_side.serve, (code, read_s, write_s), jail.FILE_BYTES),
                (judge, (tests, read_t, write_t, verdict), _VERDICT_BYTES),
            )
        for descriptor in (*pipes, *descriptors):
            os.close(descriptor)

    def _watch(self, job: Job) -> str:
        """Enforce the limits of a job until it ends, or its caller does; which it broke."""
        poll, ended = select.poll(), job.watched()
        poll.register(ended, select.POLLIN)
        poll.register(self._channel.descriptor, select.POLLIN)
        broken = ""
        while not broken and not poll.poll(_TICK_MS):
            broken = job.overrun()
        os.close(ended)
        return broken


def _settle() -> None:
    """Have the collector leave out what is there now: a job that looked at it would copy its
    memory."""
    gc.set_threshold(_THRESHOLD)
    gc.collect()
    gc.freeze()


def _opened_for(user: int | None, libraries: list[str]) -> tuple[int, ...]:
    """Descriptors of the libraries in folders that are closed to the user programs run as, to be
    kept open.

    The import system looks for them there from now on: an open descriptor leads to its folder,
    whatever lies above (`/proc/self/fd/N`).
    """
    closed = [each for each in libraries if user is not None and not _may_enter(each, user)]
    opened = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in closed}

    def renamed(path: str) -> str:
        real = os.path.realpath(path)
        above = next((each for each in closed if f"{real}/".startswith(f"{each}/")), None)
        return path if above is None else f"/proc/self/fd/{opened[above]}{real[len(above) :]}"

    sys.path[:] = map(renamed, sys.path)
    for module in list(sys.modules.values()) if closed else ():
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = map(renamed, folders)
    sys.path_importer_cache.clear()
    return tuple(opened.values())


def _may_enter(folder: str, user: int) -> bool:
    """Whether a user may go through a folder, and through those above it."""
    above = [folder]
    while above[-1] != "/":
        above.append(os.path.dirname(above[-1]))
    found = map(os.stat, above)
    return all(each.st_uid == user or each.st_mode & 0o001 for each in found)
