"""Exchange the input and output of a job, outside the sandbox.

The program and its tests are in separate memory files, read only by the processes that the server
forks for them. The verdict returns in another file, the output of a script through a pipe. The
server sees neither, and the expected outputs of scripts never leave this process.
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
"""Wall-clock limit of a job as a multiple of its processor time, for busy machines."""
OUTPUT_BYTES = 32 << 20
"""Maximum output of a script in bytes."""
_IMPORTS = re.compile(r"^[ \t]*(?:import|from)[ \t]+([\w., \t]+)", re.MULTILINE)
_WORDS = re.compile(r"[, \t]+")


class _JobOutput(NamedTuple):
    """The output and errors of a job, wait statuses of its processes, and the exceeded limit."""

    data: bytes
    errors: bytes
    ends: tuple[int, ...]
    broken: str

    def limit_outcome(self) -> Outcome | None:
        """Return the outcome of an exceeded limit, or None."""
        return None if not self.broken else "crashed" if self.broken == "files" else "timeout"


def judge_tests(
    server: Server, solution: str, tests: str, file: TestFile, seconds: float, options: dict[str, bool]
) -> Verdict:
    """Run `tests`, analysed as `file`, against a program.

    `options` are the flags `coverage` and `lenient`; `seconds` is processor time.

    Raises:
        Dead: the server ended.
    """
    key = os.urandom(frames.KEY_BYTES)
    files = [frames.held({"code": solution, "coverage": options["coverage"]}), file.frame(**options), key]
    words = {"start": "tests", "seconds": seconds, "wall": WALL_TIMES * seconds}
    words["modules"] = _modules(solution, tests)
    output = _run(server, words, files)
    return _parse_verdict(output, frames.Seal(key), solution.count("\n") + 1, seconds)


def judge_script(server: Server, solution: str, cases: Sequence[tuple[str, str]], seconds: float) -> Verdict:
    """Run a script once per (stdin, expected output) pair, and compare the output here.

    Raises:
        Dead: the server ended.
    """
    results: list[TestResult] = []
    deadline = time.monotonic() + WALL_TIMES * seconds
    for number, (stdin, expected) in enumerate(cases, start=1):
        remaining = max(0.0, deadline - time.monotonic())
        words = {"start": "script", "seconds": seconds, "wall": remaining, "modules": _modules(solution)}
        contents = [frames.held({"code": solution}), stdin.encode("utf-8", "surrogatepass"), b""]
        with _PipeReader() as reader:
            output = _run(server, words, contents, reader.writer)
        output = output._replace(data=bytes(reader.data), errors=output.data)
        result, outcome = _judge_case(output, f"case_{number}", stdin, expected, seconds)
        results.append(result)
        if outcome is not None:
            return Verdict(outcome, tuple(results), result.error)
    passed = bool(results) and all(result.passed for result in results)
    return Verdict("passed" if passed else "failed", tuple(results))


def _modules(*sources: str) -> list[str]:
    """Return the modules that these programs import and that a server may preload."""
    words = {word for text in sources for names in _IMPORTS.findall(text) for word in _WORDS.split(names)}
    return sorted(words & WARM)


def _run(server: Server, words: dict[str, Any], contents: list[bytes], *more: int) -> _JobOutput:
    """Run a job whose processes get files with these contents and `more` descriptors.

    The last file is read when the job has ended.
    """
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
    return _JobOutput(data, b"", ends, broken)


class _PipeReader:
    """Reads the output of a script from a pipe while it runs; a file may not be that long."""

    def __enter__(self) -> _PipeReader:
        self._reader, self.writer = os.pipe()
        self.data = bytearray()
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()
        return self

    def _collect(self) -> None:
        with open(self._reader, "rb", buffering=0) as pipe:  # closed at the limit, so that printing more fails
            while len(self.data) <= OUTPUT_BYTES and (piece := pipe.read(1 << 16)):
                self.data += piece

    def __exit__(self, error: object, *_: object) -> None:
        os.close(self.writer)
        if error is None:  # the processes of the script have ended
            self._thread.join()


# Verdicts


def _parse_verdict(output: _JobOutput, seal: frames.Seal, lines: int, seconds: float) -> Verdict:
    """Parse the frames of the test process; passed only if every collected test ran and passed."""
    collected, skipped, end, early = None, 0, None, False
    results: list[TestResult] = []
    try:
        for line in output.data.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # the writer was killed
                break
            frame = seal.message(line)
            collected = frame.get("collected", collected)
            skipped += "skipped" in frame
            early = early or frame.get("early") is True
            results += [_parse_result(frame["result"], lines)] if "result" in frame else []
            end = frame.get("end", end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Verdict("crashed", tuple(results), "a verdict that cannot be read")
    tests = tuple(results)
    if output.broken or end is None:
        return Verdict(output.limit_outcome() or "crashed", tests, _describe_end(output, seconds))
    outcome, error = end["outcome"], clean(end["error"])
    complete = collected == len(tests) + skipped and len(tests) > 0
    if outcome == "passed" and not (complete and all(result.passed for result in tests)):
        return Verdict("crashed", tests, "not every test was run")
    if outcome == "crashed":
        error = _describe_signal(output.ends) or error
    return Verdict(outcome, tests, error, _valid_line(end["line"], lines), early=early)


def _parse_result(frame: dict[str, Any], lines: int) -> TestResult:
    """Parse the result of one test, dropping line numbers outside the program."""
    texts = {name: clean(frame[name]) for name in ("error", "call", "got", "expected") if name in frame}
    ran = tuple(sorted({line for line in frame.get("lines", ()) if _valid_line(line, lines)}))
    line, swallowed = _valid_line(frame.get("line"), lines), tuple(map(int, frame["swallowed"]))
    if swallowed and frame["passed"] is True:
        texts["error"] = SWALLOWED
    passed = frame["passed"] is True and not swallowed
    return TestResult(clean(frame["name"]), passed, line=line, lines=ran, swallowed=swallowed, **texts)


def _valid_line(line: Any, lines: int) -> int | None:
    return line if type(line) is int and 1 <= line <= lines else None


def _judge_case(
    output: _JobOutput, name: str, stdin: str, expected: str, seconds: float
) -> tuple[TestResult, Outcome | None]:
    """Judge one case of a script; also return the outcome of the job if it ends here."""
    if why := output.limit_outcome():
        return TestResult(name, False, _describe_end(output, seconds)), why
    if signal_text := _describe_signal(output.ends):
        return TestResult(name, False, signal_text), "crashed"
    if len(output.data) > OUTPUT_BYTES:
        return TestResult(name, False, f"more than {OUTPUT_BYTES} bytes of output"), None
    text = output.data.decode("utf-8", "replace")
    if error := clean(output.errors.decode("utf-8", "replace")) or _describe_exit(output.ends):
        return TestResult(name, False, error), None
    if _lines(text) == _lines(clean(expected)):
        return TestResult(name, True), None
    call, got = f"input {clean(stdin[:200])!r}", repr(text[:300])
    return TestResult(name, False, "other output", call=call, got=got, expected=clean(expected[:300])), None


def _describe_end(output: _JobOutput, seconds: float) -> str:
    if output.broken == "time":
        return f"more than {seconds:g} s of processor time"
    if output.broken == "clock":
        return f"no verdict within {WALL_TIMES * seconds:g} s"
    if output.broken:
        return "more output or files than a program may make"
    return _describe_signal(output.ends) or "the program ended its process before a verdict"


def _describe_signal(ends: Sequence[int]) -> str:
    """Describe the signal that ended a process, unless the server sent it."""
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


def _describe_exit(ends: Sequence[int]) -> str:
    codes = [os.waitstatus_to_exitcode(status) for status in ends]
    return f"the program ended with exit code {codes[0]}" if any(codes) else ""


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
