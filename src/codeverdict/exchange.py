"""What goes into a job and what comes out of it, outside the sandbox.

The program and its tests lie in memory files that only the processes read that the server forked
for them, each its own; the verdict comes back in another, the output of a script through a pipe.
The server sees neither, and expected outputs of scripts never leave this process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from codeverdict.inside import frames
from codeverdict.inside.job import RUNNING
from codeverdict.inside.server import WARM
from codeverdict.launch import Server
from codeverdict.reading import TestFile
from codeverdict.results import Outcome, TestResult, Verdict, clean

SWALLOWED = "the program swallowed an exception of its tests"
WALL_TIMES = 5.0
"""Wall clock of a job, in limits of its processor time: on a busy machine a right program waits for
its turn."""
OUTPUT_BYTES = 32 << 20
"""The most that a script may print, in bytes."""
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w., \t]+)", re.MULTILINE)
_WORDS = re.compile(r"[, \t]+")


class _Said(NamedTuple):
    """The output of a job, what it said of its errors, how its processes ended, and which limit it
    broke."""

    data: bytes
    errors: bytes
    ends: tuple[int, ...]
    broken: str

    def why(self) -> Outcome | None:
        """The outcome, if it broke a limit."""
        return None if not self.broken else "crashed" if self.broken == "files" else "timeout"


def judge_tests(
    server: Server, solution: str, tests: str, file: TestFile, seconds: float, how: dict[str, bool]
) -> Verdict:
    """Run `tests`, read as `file`, against a program; `how`: whether with coverage, and whether
    lenient.

    Raises:
        Dead: the server ended.
    """
    key = os.urandom(frames.KEY_BYTES)
    files = [frames.held({"code": solution, "coverage": how["coverage"]}), file.frame(**how), key]
    words = {"start": "tests", "seconds": seconds, "wall": WALL_TIMES * seconds}
    words["modules"] = _modules(solution, tests)
    said = _run(server, words, files)
    return _judged(said, frames.Seal(key), solution.count("\n") + 1, seconds)


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
        contents = [frames.held({"code": solution}), given.encode("utf-8", "surrogatepass"), b""]
        with _Printed() as printed:
            said = _run(server, words, contents, printed.writer)
        said = said._replace(data=bytes(printed.data), errors=said.data)
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


def _run(server: Server, words: dict[str, Any], contents: list[bytes], *more: int) -> _Said:
    """Have a job done. `contents`: those of the files that its processes get; the last file is read
    at the end. They get `more` descriptors too."""
    files = [os.memfd_create("job") for _ in contents]
    try:
        for file, content in zip(files, contents, strict=True):
            os.write(file, content)
            os.lseek(file, 0, os.SEEK_SET)
        ends, broken = server.run(words, (*files, *more), words["wall"])
        data = os.pread(files[-1], os.fstat(files[-1]).st_size, 0)
    finally:
        for file in files:
            os.close(file)
    return _Said(data, b"", ends, broken)


class _Printed:
    """The output of a script, read from a pipe while it runs: a file may not be that long."""

    def __enter__(self) -> _Printed:
        self._reader, self.writer = os.pipe()
        self.data = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def _read(self) -> None:
        with open(self._reader, "rb", buffering=0) as pipe:  # closed at the limit: printing more is an error
            while len(self.data) <= OUTPUT_BYTES and (piece := pipe.read(1 << 16)):
                self.data += piece

    def __exit__(self, error: object, *_: object) -> None:
        os.close(self.writer)
        if error is None:  # its processes have ended
            self._thread.join()


# What it comes to


def _judged(said: _Said, seal: frames.Seal, lines: int, seconds: float) -> Verdict:
    """The verdict in the frames of the test process: passed only if every collected test ran and
    passed."""
    collected, skipped, end, early = None, 0, None, False
    results: list[TestResult] = []
    try:
        for line in said.data.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # its writer was ended
                break
            frame = seal.message(line)
            collected = frame.get("collected", collected)
            skipped += "skipped" in frame
            early = early or frame.get("early") is True
            results += [_result(frame["result"], lines)] if "result" in frame else []
            end = frame.get("end", end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Verdict("crashed", tuple(results), "a verdict that cannot be read")
    found = tuple(results)
    if said.broken or end is None:
        return Verdict(said.why() or "crashed", found, _ended(said, seconds))
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


def _compared(
    said: _Said, name: str, given: str, expected: str, seconds: float
) -> tuple[TestResult, Outcome | None]:
    """One case of a script; and the outcome of the whole job, if it ends here."""
    if why := said.why():
        return TestResult(name, False, _ended(said, seconds)), why
    if death := _death(said.ends):
        return TestResult(name, False, death), "crashed"
    if len(said.data) > OUTPUT_BYTES:
        return TestResult(name, False, f"more than {OUTPUT_BYTES} bytes of output"), None
    output = said.data.decode("utf-8", "replace")
    if error := clean(said.errors.decode("utf-8", "replace")) or _left_with(said.ends):
        return TestResult(name, False, error), None
    if _lines(output) == _lines(clean(expected)):
        return TestResult(name, True), None
    call, got = f"input {clean(given[:200])!r}", repr(output[:300])
    return TestResult(name, False, "other output", call=call, got=got, expected=clean(expected[:300])), None


def _ended(said: _Said, seconds: float) -> str:
    if said.broken == "time":
        return f"more than {seconds:g} s of processor time"
    if said.broken == "clock":
        return f"no verdict within {WALL_TIMES * seconds:g} s"
    if said.broken:
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
