"""The warm server, which forks and ends the processes of jobs.

The server never runs or reads untrusted code, because every process of later jobs inherits its
memory.

Packets (frames.py): first `{tier, memory_mb, libraries, user, preload}`, answered by
`{"ready": true, "probes": {...}}` or `{"refused": reason}`. Then for each job
`{"start": "tests" | "script", seconds, wall, modules}` with the files it reads and writes, answered
by `{"ends": [wait status, ...], "broken": exceeded limit}`.
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
_THRESHOLD = 20_000  # with Python's 700 every job would collect garbage several times

_ENVIRONMENT = {"LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
_WARM = (
    "array asyncio bisect calendar cmath collections.abc concurrent.futures copy csv dataclasses datetime "
    "decimal enum fractions hashlib heapq inspect numbers pathlib pickle pprint queue random secrets "
    "statistics string struct tempfile textwrap threading traceback unicodedata unittest unittest.mock "
    "uuid warnings"
)
WARM = frozenset(_WARM.split())
"""Modules of the standard library that the server imports once a job names them.

They are not imported earlier, because a fork takes longer the more memory the server has.
"""


def main() -> None:
    """Serve jobs until the caller closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = frames.Channel(os.dup(0))
    del sys.argv[1:]  # the arguments of the server
    jail.silence_streams()
    setup, _ = channel.receive()
    try:
        server = Server(setup, channel)
        reply: dict[str, Any] = {"ready": True, "probes": server.prove() if server.protected else {}}
    except (OSError, ImportError) as error:  # pytest must be installed with the package
        channel.send({"refused": f"{getattr(error, 'strerror', None) or error}"})
        return
    with contextlib.suppress(frames.Closed):
        channel.send(reply)
        while True:
            server.serve(*channel.receive())
    server.close()


class Server:
    """The state that stays warm between jobs."""

    def __init__(self, setup: dict[str, Any], channel: frames.Channel) -> None:
        self._channel = channel
        self._cold = set(WARM)
        self.protected = setup["tier"] != "none"
        self._memory_mb = int(setup["memory_mb"])
        self._warm_up(setup["libraries"], setup["preload"])
        libraries = jail.library_folders([])
        user = setup["user"]
        self._jail = jail.Jail(self.protected, user, libraries, _open_closed_libraries(user, libraries))
        if user is not None or setup["tier"] == "namespaces":  # a separate user or user namespace
            self._jail.limit_processes()
        self._scratch = Scratch(user)
        for name in set(os.environ) - _ENVIRONMENT:
            del os.environ[name]
        self._suite: Any = None
        if "pytest" in setup["preload"]:
            from codeverdict.inside import suite

            self._suite = functools.partial(suite.Suite, suite.session())
        _freeze_garbage()

    def close(self) -> None:
        """Remove the folder of the server."""
        self._scratch.remove()

    def _warm_up(self, libraries: list[str], preload: list[str]) -> None:
        sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "codeverdict"))]
        sys.path += [path for path in libraries if path not in sys.path]
        for name in preload:
            __import__(name)
        for name in ("exit", "quit"):  # normally defined by the module site, which is not loaded
            setattr(builtins, name, Quitter(name, "Ctrl-D (i.e. EOF)"))

    def _warm_up_with(self, modules: list[str]) -> None:
        """Import modules that a job will import, so that this happens only once."""
        new_modules = self._cold.intersection(modules)
        for name in sorted(new_modules):
            with contextlib.suppress(ImportError):
                __import__(name)
        if new_modules:
            self._cold -= new_modules
            _freeze_garbage()

    def prove(self) -> dict[str, bool]:
        """Try to escape from inside, and return for each attempt if it was blocked."""
        reader, writer = os.pipe()
        job = Job(self._jail, self._scratch, jail.Limits(5.0, 5.0, self._memory_mb))
        try:
            job.start((functools.partial(probes.report, os.getpid()), (writer,), jail.FILE_BYTES))
            os.close(writer)
            with open(reader, "rb") as pipe:
                probed: dict[str, bool] = frames.receive(pipe)
        except frames.Broken as error:
            raise OSError("a process cannot be confined") from error
        finally:
            job.end()
        return probed

    def serve(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Run one job until it ends or its caller is gone."""
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
        """Enforce the limits until the job or its caller ends; return the exceeded limit."""
        poll, ended = select.poll(), job.watched()
        poll.register(ended, select.POLLIN)
        poll.register(self._channel.descriptor, select.POLLIN)
        broken = ""
        while not broken and not poll.poll(_TICK_MS):
            broken = job.overrun()
        os.close(ended)
        return broken


def _freeze_garbage() -> None:
    """Exclude existing objects from garbage collection, which would copy their memory in a job."""
    gc.set_threshold(_THRESHOLD)
    gc.collect()
    gc.freeze()


def _open_closed_libraries(user: int | None, libraries: list[str]) -> tuple[int, ...]:
    """Open the libraries in folders that the programs' user cannot enter; return the descriptors.

    The import system then finds them at `/proc/self/fd/N`, which works regardless of the
    permissions of the folders above.
    """
    closed = [folder for folder in libraries if user is not None and not _may_enter(folder, user)]
    opened = {folder: os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in closed}

    def renamed(path: str) -> str:
        real = os.path.realpath(path)
        above = next((folder for folder in closed if f"{real}/".startswith(f"{folder}/")), None)
        return path if above is None else f"/proc/self/fd/{opened[above]}{real[len(above) :]}"

    sys.path[:] = map(renamed, sys.path)
    for module in list(sys.modules.values()) if closed else ():
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = map(renamed, folders)
    sys.path_importer_cache.clear()
    return tuple(opened.values())


def _may_enter(folder: str, user: int) -> bool:
    """Return True if a user may enter a folder and all folders above it."""
    above = [folder]
    while above[-1] != "/":
        above.append(os.path.dirname(above[-1]))
    statuses = map(os.stat, above)
    return all(status.st_uid == user or status.st_mode & 0o001 for status in statuses)
