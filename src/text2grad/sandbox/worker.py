"""The process that runs one program after another, each in a forked child with limits. Standard library only.

It is started as a script with an isolated interpreter, reads one JSON job per line and answers with one JSON
line. A job is `{"solution": str, "tests": str, "seconds": float}`. The child's standard streams go to
/dev/null, its verdict through a pipe of its own; the parent enforces the wall clock and kills the whole
process group. This is containment against accidents (loops, memory, output), not against an adversary.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import types
from typing import Any

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
ANSWER_BYTES = 1 << 20
TEXT_LIMIT = 300


def main() -> None:
    """Serve jobs from standard input until it closes."""
    for line in sys.stdin:
        answer = run_job(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Fork, run, and read the verdict; whatever the child does, there is exactly one answer."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(job, writer)
    os.close(writer)
    raw, timed_out = _read(reader, time.monotonic() + job["seconds"])
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if timed_out:
        return {"outcome": "timeout", "results": [], "error": f"no verdict within {job['seconds']:g} s"}
    try:
        answer: dict[str, Any] = json.loads(raw)
        return answer
    except ValueError:
        return {
            "outcome": "crashed",
            "results": [],
            "error": "the program ended its process before a verdict",
        }


def _read(reader: int, deadline: float) -> tuple[bytes, bool]:
    data = b""
    while len(data) <= ANSWER_BYTES:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return data, True
        piece = os.read(reader, 65536)
        if not piece:
            return data, False
        data += piece
    return data, False


def _child(job: dict[str, Any], writer: int) -> None:
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    seconds = int(job["seconds"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    answer = judge(job["solution"], job["tests"])
    os.write(writer, json.dumps(answer).encode()[:ANSWER_BYTES])
    os._exit(0)


def judge(solution: str, tests: str) -> dict[str, Any]:
    """Run the test functions against the solution: KodCode's shape, `from solution import f` included."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        exec(compile(solution, "<solution>", "exec"), module.__dict__)
    except BaseException as error:
        return {"outcome": "broken", "results": [], **_describe(error, solution)}
    space: dict[str, Any] = dict(module.__dict__)
    before = dict(space)
    try:
        exec(compile(tests, "<tests>", "exec"), space)
    except BaseException as error:
        missing = isinstance(error, ImportError) and error.name == "solution"  # the program lacks what was asked
        return {"outcome": "broken" if missing else "bad_tests", "results": [], **_describe(error, solution)}
    names = [
        n for n, value in space.items() if n.startswith("test") and callable(value) and before.get(n) is not value
    ]
    results = [_run_test(name, space, solution, tests) for name in names]
    passed = bool(results) and all(result["passed"] for result in results)
    outcome = "passed" if passed else "failed" if results else "no_tests"
    return {"outcome": outcome, "results": results, "error": "", "line": None}


def _run_test(name: str, space: dict[str, Any], solution: str, tests: str) -> dict[str, Any]:
    try:
        space[name]()
    except BaseException as error:
        detail = _describe(error, solution)
        return {"name": name, "passed": False, **detail, **_operands(error, space, tests)}
    return {"name": name, "passed": True}


def _describe(error: BaseException, solution: str) -> dict[str, Any]:
    """One line about an exception, and the last line of the solution it passed through (1-based)."""
    frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<solution>"]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1] if frames else None
    return {"error": f"{type(error).__name__}: {error}"[:TEXT_LIMIT], "line": line}


def _operands(error: BaseException, space: dict[str, Any], tests: str) -> dict[str, str]:
    """For a failed `assert call == expected`: the call, what it gave and what was expected, as text."""
    if not isinstance(error, AssertionError):
        return {}
    frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<tests>"]
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Assert) and frames and node.lineno == frames[-1]:
            check = node.test
            if isinstance(check, ast.Compare) and len(check.ops) == 1 and isinstance(check.ops[0], ast.Eq):
                call, wanted = ast.unparse(check.left), ast.unparse(check.comparators[0])
                return {
                    "call": call[:TEXT_LIMIT],
                    "got": _value(call, space),
                    "expected": wanted[:TEXT_LIMIT],
                }
    return {}


def _value(expression: str, space: dict[str, Any]) -> str:
    try:
        return repr(eval(expression, space))[:TEXT_LIMIT]
    except BaseException as error:
        return type(error).__name__


if __name__ == "__main__":
    main()
