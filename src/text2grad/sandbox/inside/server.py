"""The warm server: it forks a solution process and a test process for each job, keeps the time, and reads the
verdict. One job at a time; it never runs a line of untrusted code itself.

Frames on standard input and output. First a setup frame `{tier, memory_mb, libraries, user, preload}` is answered
by `{"ready": true, "probes": {...}}` or `{"refused": why}`; then a job `{kind, solution, tests | cases, seconds,
coverage}` by an answer `{outcome, results, error, line}`.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from typing import Any

from text2grad.sandbox.inside import frames, jail, plug, probes, rehearsal, solution_side, system, test_side
from text2grad.sandbox.inside.job import Ground, Job

JOB_BYTES = 64 << 20
VERDICT_BYTES = 8 << 20
OUTPUT_BYTES = 1 << 20
_TICK_SECONDS = 0.05

_ENVIRONMENT = {"LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
_WARM = (
    "array asyncio bisect calendar cmath collections.abc concurrent.futures copy csv dataclasses datetime "
    "decimal enum fractions hashlib heapq inspect numbers pathlib pickle pprint queue random secrets "
    "statistics string struct tempfile textwrap threading traceback unicodedata unittest unittest.mock "
    "uuid warnings"
)
"""Modules of the standard library that the server imports when a job first names one, for that job and all later
ones. Not before: a fork takes the longer the more memory the server has."""
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w., \t]+)", re.MULTILINE)
_WORDS = re.compile(r"[, \t]+")


def main() -> None:
    """Serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel_in, channel_out = os.dup(0), os.dup(1)
    jail.silence_streams()
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
    server.close()


class Server:
    """What stays warm between jobs."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.watched = -1
        self._cold = set(_WARM.split())
        self.protected = setup["tier"] != "none"
        self._memory_mb = int(setup["memory_mb"])
        self._warm_up(setup["libraries"], setup["preload"])
        libraries = jail.library_folders([])
        kept = _reachable(libraries, setup["user"])
        prison = jail.Jail(self.protected, setup["user"], libraries)
        namespaces = setup["tier"] == "namespaces"
        self._ground = Ground(prison, namespaces, setup["user"], kept)
        if namespaces:
            system.prctl(system.PR_SET_CHILD_SUBREAPER, 1)
        for name in set(os.environ) - _ENVIRONMENT:
            del os.environ[name]
        os.environ["TMPDIR"] = self._ground.folder
        rehearsal.rehearse()
        plug.plug()

    def close(self) -> None:
        """Leave no folder behind."""
        if self._ground.scratch is not None:
            self._ground.scratch.remove()

    def _warm_up(self, libraries: list[str], preload: list[str]) -> None:
        sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "text2grad"))]
        sys.path += [path for path in libraries if path not in sys.path]
        for name in preload:
            with contextlib.suppress(ImportError):
                __import__(name)

    def _warm_up_for(self, *sources: str) -> None:
        """Import what these programs are about to, so that it is done once."""
        words = {word for text in sources for names in _IMPORTS.findall(text) for word in _WORDS.split(names)}
        wanted = words & self._cold
        for name in wanted:
            with contextlib.suppress(ImportError):
                __import__(name)
        if wanted:
            self._cold -= wanted
            plug.plug()

    def prove(self) -> dict[str, bool]:
        """Try to get out, from inside; what was tried and whether it was held."""
        reader, writer = os.pipe()
        server = os.getpid()
        job = Job(self._ground, jail.Limits(5.0, self._memory_mb))
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
        self._warm_up_for(request["solution"], request["tests"])
        if request["kind"] == "io":
            return self._programs(request, limits)
        return self._tests(request, limits)

    def _tests(self, request: dict[str, Any], limits: jail.Limits) -> dict[str, Any]:
        job = Job(self._ground, limits)
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
        job = Job(self._ground, limits, deadline)
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

    def _read(self, descriptor: int, job: Job, limit: int) -> tuple[bytes, str]:
        """Everything until the writer ends; and why it was not waited for, if so."""
        pieces, size = [], 0
        while True:
            left = job.deadline - time.monotonic()
            ready, _, _ = select.select([descriptor, self.watched], [], [], max(0.0, min(left, _TICK_SECONDS)))
            if self.watched in ready:
                job.end()
                self.close()
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
