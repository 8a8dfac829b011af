"""What goes into a job and what comes out of it, outside the sandbox.

The program and its tests lie in memory files that only the processes read that the server forked for them, each its
own; results come back through a pipe. The server sees neither, and expected outputs of scripts never leave this
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from codeverdict.inside import frames
from codeverdict.inside.job import RUNNING
from codeverdict.inside.server import WARM
from codeverdict.launch import Server
from codeverdict.reading import TestFile
from codeverdict.results import Outcome, TestResult, Verdict, clean

SWALLOWED = "the program swallowed an exception of its tests"
WALL_TIMES = 5.0
"""Wall clock of a job, in limits of its processor time: on a busy machine a right program waits for its turn."""
VERDICT_BYTES = 8 << 20
OUTPUT_BYTES = 1 << 20
_ERROR_BYTES = 2000
_PIECE_BYTES = 1 << 16
_LOOK_SECONDS = 0.02
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w., \t]+)", re.MULTILINE)
_WORDS = re.compile(r"[, \t]+")


@dataclass(frozen=True)
class _Said:
    """The output of a job: its bytes, why reading stopped early (if it did), how its processes ended, what it said
    of its errors, and whether it used up its processor time."""

    data: bytes
    why: Outcome | None
    ends: tuple[int, ...]
    errors: bytes = b""
    late: bool = False


def judge_tests(
    server: Server, solution: str, tests: str, file: TestFile, seconds: float, how: dict[str, bool]
) -> Verdict:
    """Run `tests`, read as `file`, against a program; `how`: whether with coverage, and whether lenient.

    Raises:
        Dead: the server ended.
    """
    feeds = [frames.framed({"code": solution, "coverage": how["coverage"]}), file.frame(**how)]
    words = {"start": "tests", "seconds": seconds, "wall": WALL_TIMES * seconds}
    words["modules"] = _modules(solution, tests)
    said = _run(server, words, feeds, 1, VERDICT_BYTES, time.monotonic() + WALL_TIMES * seconds)
    return _judged(said, solution.count("\n") + 1, seconds)


def judge_script(server: Server, solution: str, cases: Sequence[tuple[str, str]], seconds: float) -> Verdict:
    """Run a program once for each (input, expected output), and compare here.

    Raises:
        Dead: the server ended.
    """
    results: list[TestResult] = []
    deadline = time.monotonic() + WALL_TIMES * seconds
    for number, (given, expected) in enumerate(cases, start=1):
        left = max(0.0, deadline - time.monotonic())
        words = {"start": "script", "seconds": seconds, "wall": left, "modules": _modules(solution)}
        feed = frames.framed({"code": solution, "given": given})
        said = _run(server, words, [feed], 2, OUTPUT_BYTES, deadline)
        result, outcome = _compared(said, f"case_{number}", given, expected, seconds)
        results.append(result)
        if outcome is not None:
            return Verdict(outcome, tuple(results), result.error)
    passed = bool(results) and all(result.passed for result in results)
    return Verdict("passed" if passed else "failed", tuple(results))


def _modules(*sources: str) -> list[str]:
    """Modules that these programs import and that a server may preload."""
    words = {word for text in sources for names in _IMPORTS.findall(text) for word in _WORDS.split(names)}
    return sorted(words & WARM)


def _run(
    server: Server, words: dict[str, Any], feeds: list[bytes], outputs: int, limit: int, deadline: float
) -> _Said:
    """Start a job, read its first output to the end, and have it ended. `feeds`: what its processes read.

    A script (two outputs) has until the deadline to end by itself; the second is what it says of its errors.
    """
    outward = [os.pipe() for _ in range(outputs)]
    theirs = [*map(_held, feeds), *(writer for _, writer in outward)]
    try:
        try:
            server.begin(words, tuple(theirs))
        finally:
            _close(theirs)
        data, why = _read(outward[0][0], limit, deadline)
        ends, filled, late = server.end(outputs > 1 and why is None, max(0.0, deadline - time.monotonic()))
        errors = b"".join(os.read(reader, _ERROR_BYTES) for reader, _ in outward[1:])
    finally:
        _close([reader for reader, _ in outward])
    return _Said(data, "crashed" if filled else "timeout" if late else why, ends, errors, late)


def _held(feed: bytes) -> int:
    """A descriptor of a file in memory that holds these bytes, to be read from its beginning."""
    made = os.memfd_create("job")
    os.write(made, feed)
    os.lseek(made, 0, os.SEEK_SET)
    return made


def _read(reader: int, limit: int, deadline: float) -> tuple[bytes, Outcome | None]:
    """Everything that comes until the writer at the other end ends, and why it was not waited for.

    What comes is not looked at at once: the end wakes this thread; else it reads every few milliseconds, or as it
    comes where there is much of it.
    """
    pieces, size = [], 0
    poll = select.poll()
    poll.register(reader, 0)
    os.set_blocking(reader, False)
    while (left := deadline - time.monotonic()) > 0:
        poll.poll(1000 * min(left, _LOOK_SECONDS))
        while (piece := _piece(reader)) is not None:
            pieces.append(piece)
            size += len(piece)
            if not piece:
                return b"".join(pieces), None
            if size > limit:
                return b"".join(pieces), "crashed"
            if len(piece) == _PIECE_BYTES:
                poll.modify(reader, select.POLLIN)
    return b"".join(pieces), "timeout"


def _piece(reader: int) -> bytes | None:
    """What a pipe holds now, b"" at its end, None if there is nothing."""
    try:
        return os.read(reader, _PIECE_BYTES)
    except BlockingIOError:
        return None


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


# What it comes to


def _judged(said: _Said, lines: int, seconds: float) -> Verdict:
    """The verdict in the frames of the test process: passed only if every collected test ran and passed."""
    collected, skipped, end, early = None, 0, None, False
    results: list[TestResult] = []
    try:
        for frame in _frames(said.data):
            collected = frame.get("collected", collected)
            skipped += "skipped" in frame
            early = early or frame.get("early") is True
            results += [_result(frame["result"], lines)] if "result" in frame else []
            end = frame.get("end", end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Verdict("crashed", tuple(results), "a verdict that cannot be read")
    found = tuple(results)
    if said.why or end is None:
        return Verdict(said.why or "crashed", found, _ended(said, seconds))
    outcome, error = end["outcome"], clean(end["error"])
    complete = collected == len(found) + skipped and len(found) > 0
    if outcome == "passed" and not (complete and all(result.passed for result in found)):
        return Verdict("crashed", found, "not every test was run")
    if outcome == "crashed":
        error = _death(said.ends) or error
    return Verdict(outcome, found, error, _line(end["line"], lines), early=early)


def _result(frame: dict[str, Any], lines: int) -> TestResult:
    """The result in one test's frame, with line numbers limited to those of the program."""
    texts = {name: clean(frame[name]) for name in ("error", "call", "got", "expected") if name in frame}
    ran = tuple(sorted({line for line in frame.get("lines", ()) if _line(line, lines)}))
    line, swallowed = _line(frame.get("line"), lines), tuple(map(int, frame["swallowed"]))
    if swallowed and frame["passed"] is True:
        texts["error"] = SWALLOWED
    passed = frame["passed"] is True and not swallowed
    return TestResult(clean(frame["name"]), passed, line=line, lines=ran, swallowed=swallowed, **texts)


def _line(line: Any, lines: int) -> int | None:
    return line if type(line) is int and 1 <= line <= lines else None


def _frames(data: bytes) -> Iterator[dict[str, Any]]:
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            break
        yield json.loads(data[at + 4 : at + 4 + size])
        at += 4 + size


def _compared(
    said: _Said, name: str, given: str, expected: str, seconds: float
) -> tuple[TestResult, Outcome | None]:
    """One case of a script; and the outcome of the whole job, if it ends here."""
    why = said.why or ("timeout" if RUNNING in said.ends else None)
    if why:
        return TestResult(name, False, _ended(_Said(b"", why, said.ends, late=said.late), seconds)), why
    if death := _death(said.ends):
        return TestResult(name, False, death), "crashed"
    output = said.data.decode("utf-8", "replace")
    if error := clean(said.errors.decode("utf-8", "replace")) or _left_with(said.ends):
        return TestResult(name, False, error), None
    if _lines(output) == _lines(clean(expected)):
        return TestResult(name, True), None
    call, got = f"input {clean(given[:200])!r}", repr(output[:300])
    return TestResult(name, False, "other output", call=call, got=got, expected=clean(expected[:300])), None


def _ended(said: _Said, seconds: float) -> str:
    if said.late:
        return f"more than {seconds:g} s of processor time"
    if said.why == "timeout":
        return f"no verdict within {WALL_TIMES * seconds:g} s"
    if said.why:
        return "more output or files than a program may make"
    return _death(said.ends) or "the program ended its process before a verdict"


def _death(ends: Sequence[int]) -> str:
    """How a process was ended by a signal that did not come from here."""
    for status in ends:
        if status == RUNNING or not os.WIFSIGNALED(status):
            continue
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            return "the program was killed: out of memory or processor time"
        if number == signal.SIGXCPU:
            return "the program used up its processor time"
        with contextlib.suppress(ValueError):
            return f"the program was ended by {signal.Signals(number).name}"
        return f"the program was ended by signal {number}"
    return ""


def _left_with(ends: Sequence[int]) -> str:
    codes = [os.waitstatus_to_exitcode(status) for status in ends]
    return f"the program ended with exit code {codes[0]}" if any(codes) else ""


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
