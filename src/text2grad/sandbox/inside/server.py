"""The warm server: it forks a solution process and a test process for each job, keeps the time, and reads the
verdict. One job at a time; it never runs a line of untrusted code itself.

Frames on standard input and output. First a setup frame `{tier, memory_mb, libraries, user, preload}` is answered
by `{"ready": true, "probes": {...}}` or `{"refused": why}`; then a job `{kind, solution, tests | cases, seconds,
coverage}` by an answer `{outcome, results, error, line}`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from text2grad.sandbox.inside import frames, jail, probes, rehearsal, solution_side, system, test_side

JOB_BYTES = 64 << 20
VERDICT_BYTES = 8 << 20
OUTPUT_BYTES = 1 << 20
SCRATCH_BYTES = 16 << 20
SCRATCH_ENTRIES = 256
_TICK_SECONDS = 0.05
_MOST_DYING = 8

_ENVIRONMENT = {"LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
_WARM = """
abc array ast bisect calendar cmath collections.abc concurrent.futures contextlib copy csv dataclasses datetime
decimal enum fractions functools hashlib heapq inspect io itertools json math numbers operator pathlib pickle queue
random re secrets statistics string struct textwrap threading time types typing unicodedata unittest uuid warnings
"""


def main() -> None:
    """Serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel_in, channel_out = os.dup(0), os.dup(1)
    try:
        server = Server(frames.receive(channel_in, JOB_BYTES))
        reply: dict[str, Any] = {"ready": True, "probes": server.prove() if server.protected else {}}
    except OSError as error:
        frames.send(channel_out, {"refused": f"{error.strerror or error}"})
        return
    frames.send(channel_out, reply)
    server.watched = channel_in
    with contextlib.suppress(frames.Broken):
        while True:
            frames.send(channel_out, server.answer(frames.receive(channel_in, JOB_BYTES)))


class Server:
    """What stays warm between jobs."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.watched = -1
        self._dying: list[int] = []
        self.namespaces = setup["tier"] == "namespaces"
        self.protected = setup["tier"] != "none"
        self._memory_mb = int(setup["memory_mb"])
        self._warm_up(setup["libraries"], setup["preload"])
        libraries = jail.library_folders([])
        self.kept = _reachable(libraries, setup["user"])
        self.jail = jail.Jail(self.protected, setup["user"], libraries)
        self.user = setup["user"]
        if self.namespaces:
            system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        for name in set(os.environ) - _ENVIRONMENT:
            del os.environ[name]
        rehearsal.rehearse()
        gc.collect()
        gc.freeze()

    def _warm_up(self, libraries: list[str], preload: list[str]) -> None:
        sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "text2grad"))]
        sys.path += [path for path in libraries if path not in sys.path]
        for name in [*_WARM.split(), *preload]:
            with contextlib.suppress(ImportError):
                __import__(name)

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

    def prove(self) -> dict[str, bool]:
        """Try to get out, from inside; what was tried and whether it was held."""
        reader, writer = os.pipe()
        server = os.getpid()
        job = _Job(self, jail.Limits(5.0, self._memory_mb))
        try:
            job.start((lambda: probes.report(writer, server), (writer,)))
            os.close(writer)
            found: dict[str, bool] = frames.receive(reader)
        except frames.Broken as error:
            raise OSError("a process cannot be shut in") from error
        finally:
            job.end()
            os.close(reader)
        return found

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one job; whatever it does, there is exactly one answer."""
        limits = jail.Limits(float(request["seconds"]), self._memory_mb)
        if request["kind"] == "io":
            return self._programs(request, limits)
        return self._tests(request, limits)

    def _tests(self, request: dict[str, Any], limits: jail.Limits) -> dict[str, Any]:
        job = _Job(self, limits)
        to_solution, from_tests = os.pipe(), os.pipe()
        verdict = os.pipe()
        code, tests, coverage = request["solution"], request["tests"], bool(request["coverage"])
        read_s, write_t = to_solution
        read_t, write_s = from_tests
        try:
            job.start(
                (lambda: solution_side.serve(read_s, write_s, code, coverage), (read_s, write_s)),
                (
                    lambda: test_side.judge(read_t, write_t, verdict[1], tests, coverage),
                    (read_t, write_t, verdict[1]),
                ),
            )
            for descriptor in (*to_solution, *from_tests, verdict[1]):
                os.close(descriptor)
            data, why = self._read(verdict[0], job, VERDICT_BYTES)
        finally:
            os.close(verdict[0])
            ends = job.end()
        return _judged(data, why, ends, limits)

    def _programs(self, request: dict[str, Any], limits: jail.Limits) -> dict[str, Any]:
        """Run a script once for each (input, expected output); compare here, where no program runs."""
        results: list[dict[str, Any]] = []
        deadline = time.monotonic() + limits.seconds
        for number, (given, expected) in enumerate(request["cases"], start=1):
            result, outcome = self._one_program(request["solution"], given, expected, limits, deadline)
            results.append({"name": f"case_{number}", **result})
            if outcome:
                return {"outcome": outcome, "results": results, "error": result["error"], "line": None}
        if not results:
            return {"outcome": "no_tests", "results": [], "error": "no cases", "line": None}
        passed = all(result["passed"] for result in results)
        return {"outcome": "passed" if passed else "failed", "results": results, "error": "", "line": None}

    def _one_program(
        self, code: str, given: str, expected: str, limits: jail.Limits, deadline: float
    ) -> tuple[dict[str, Any], str]:
        job = _Job(self, limits, deadline)
        reader, writer = os.pipe()
        error_reader, error_writer = os.pipe()
        try:
            job.start((lambda: _script(code, given, writer, error_writer), (writer, error_writer)))
            os.close(writer)
            os.close(error_writer)
            data, why = self._read(reader, job, OUTPUT_BYTES)
            ends = job.end(gently=not why)
            said = os.read(error_reader, 2000).decode("utf-8", "replace")
        finally:
            os.close(reader)
            os.close(error_reader)
            job.end()
        if why:
            return {"passed": False, "error": _words(why, limits)}, why
        if ends and (death := _death(ends[0])):
            return {"passed": False, "error": death}, "crashed"
        output = data.decode("utf-8", "replace")
        if said:
            return {"passed": False, "error": said}, ""
        same = _lines(output) == _lines(expected)
        shown = (
            {}
            if same
            else {"call": f"input {given[:200]!r}", "got": repr(output[:300]), "expected": expected[:300]}
        )
        return {"passed": same, "error": "" if same else "other output", **shown}, ""

    def _read(self, descriptor: int, job: _Job, limit: int) -> tuple[bytes, str]:
        """Everything until the writer ends; and why it was not waited for, if so."""
        pieces, size = [], 0
        while True:
            left = job.deadline - time.monotonic()
            ready, _, _ = select.select([descriptor, self.watched], [], [], max(0.0, min(left, _TICK_SECONDS)))
            if self.watched in ready:
                job.end()
                os._exit(0)  # whoever asked is gone
            if descriptor in ready:
                piece = os.read(descriptor, 1 << 16)
                pieces.append(piece)
                size += len(piece)
                if not piece:
                    return b"".join(pieces), ""
                if size > limit:
                    return b"".join(pieces), "crashed"
            elif left <= 0:
                return b"".join(pieces), "timeout"
            elif job.filled_scratch():
                return b"".join(pieces), "crashed"


Work = tuple[Callable[[], None], tuple[int, ...]]
"""What a process of a job does, and the descriptors it may use for it."""


class _Job:
    """The processes of one job and the folder they may write in."""

    def __init__(self, server: Server, limits: jail.Limits, deadline: float | None = None) -> None:
        self.deadline = deadline or time.monotonic() + limits.seconds
        self._server, self._limits = server, limits
        self._processes: list[int] = []
        self._scratch = "" if server.namespaces else tempfile.mkdtemp(prefix=f"text2grad-{os.getpid()}-")
        if self._scratch and server.user is not None:
            os.chown(self._scratch, server.user, server.user)

    def start(self, *works: Work) -> None:
        """Fork a process for each work, shut in before it begins."""
        if self._server.namespaces:
            self._start_in_namespaces(works)
            return
        rules = self._server.jail.rules(self._scratch)
        for work in works:
            self._processes.append(_forked(functools.partial(self._shut_in, work, rules)))
        if rules >= 0:
            os.close(rules)

    def _shut_in(self, work: Work, rules: int) -> None:
        if self._scratch:
            system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        do, keep = work
        self._server.jail.enter((*keep, *self._server.kept), self._scratch or "/tmp", rules, self._limits)
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
        owner = "" if self._server.user is None else f",uid={self._server.user},gid={self._server.user}"
        options = f"size={SCRATCH_BYTES},nr_inodes={SCRATCH_ENTRIES},mode=700{owner}"
        system.mount("scratch", "/tmp", "tmpfs", system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC, options)
        rules = self._server.jail.rules("/tmp")
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
        return bool(self._scratch) and len(os.listdir(self._scratch)) > SCRATCH_ENTRIES

    def end(self, gently: bool = False) -> list[int]:
        """Kill what still runs, and clear up; how each process ended by itself (wait status)."""
        statuses = []
        for process in self._processes:
            ended, status = os.waitpid(process, 0 if gently else os.WNOHANG)
            if not ended:
                os.kill(process, signal.SIGKILL)
                self._server.reap(process)
            statuses.append(status)
        self._processes.clear()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = ""
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


def _script(code: str, given: str, writer: int, errors: int) -> None:
    os.dup2(writer, 1)
    os.close(writer)
    try:
        solution_side.run_program(code, given)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            os.write(errors, f"SystemExit: {stop.code}"[:2000].encode())
    except BaseException as error:
        os.write(errors, test_side.describe(error).encode("utf-8", "replace"))


def _judged(data: bytes, why: str, ends: list[int], limits: jail.Limits) -> dict[str, Any]:
    """The answer in the frames of the test process, checked: passed only if every collected test ran and passed."""
    collected, skipped, end = None, 0, None
    results: list[dict[str, Any]] = []
    for frame in _frames(data):
        collected = frame.get("collected", collected)
        skipped += "skipped" in frame
        results += [frame["result"]] if "result" in frame else []
        end = frame.get("end", end)
    if why or end is None:
        outcome = why or "crashed"
        return {"outcome": outcome, "results": results, "error": _ended(why, ends, limits), "line": None}
    complete = collected == len(results) + skipped and len(results) > 0
    if end["outcome"] == "passed" and not (complete and all(result["passed"] for result in results)):
        return {"outcome": "crashed", "results": results, "error": "not every test was run", "line": None}
    if end["outcome"] == "crashed" and (death := _death(ends[0])):
        end["error"] = death
    return {**end, "results": results}


def _frames(data: bytes) -> list[dict[str, Any]]:
    import json

    found, at = [], 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            break
        found.append(json.loads(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def _ended(why: str, ends: list[int], limits: jail.Limits) -> str:
    if why:
        return _words(why, limits)
    deaths = [death for death in map(_death, ends) if death]
    return deaths[0] if deaths else "the program ended its process before a verdict"


def _words(why: str, limits: jail.Limits) -> str:
    if why == "timeout":
        return f"no verdict within {limits.seconds:g} s"
    return "more output or files than a program may make"


def _death(status: int) -> str:
    """What a signal that nobody here sent says about how a process ended."""
    if not os.WIFSIGNALED(status):
        return ""
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL:
        return "the program was killed: out of memory or processor time"
    if number == signal.SIGXCPU:
        return "the program used up its processor time"
    return f"the program was ended by {signal.Signals(number).name}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _reachable(libraries: list[str], user: int | None) -> tuple[int, ...]:
    """Make libraries readable for the user programs run as, where folders above them are closed to it.

    An open descriptor of a folder leads to it whatever lies above: `/proc/self/fd/N`. The descriptors to keep.
    """
    if user is None:
        return ()
    kept = []
    for folder in libraries:
        if _may_enter(folder, user):
            continue
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        kept.append(descriptor)
        _rename_folder(folder, f"/proc/self/fd/{descriptor}")
    return tuple(kept)


def _may_enter(folder: str, user: int) -> bool:
    while True:
        status = os.stat(folder)
        if status.st_uid != user and not status.st_mode & 0o001:
            return False
        if folder == "/":
            return True
        folder = os.path.dirname(folder)


def _rename_folder(old: str, new: str) -> None:
    """Have the import system look in `new` for what it knows as `old`."""

    def renamed(path: str) -> str:
        real = os.path.realpath(path)
        return new + real[len(old) :] if real == old or real.startswith(old + "/") else path

    sys.path[:] = map(renamed, sys.path)
    for module in list(sys.modules.values()):
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = map(renamed, folders)
    sys.path_importer_cache.clear()
