"""Run a candidate program against its tests in another process, with limits, and get a typed verdict.

A failure of the runner is never a verdict: it is an outcome of its own.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Outcome = Literal["passed", "failed", "broken", "timeout", "crashed", "bad_tests", "no_tests"]
_GRACE_SECONDS = 5.0
_SIZE_LIMIT = 1 << 20


@dataclass(frozen=True)
class TestResult:
    """One test: whether it passed, else the error, the solution's line it came through, and the operands."""

    __test__ = False

    name: str
    passed: bool
    error: str = ""
    line: int | None = None
    call: str = ""
    got: str = ""
    expected: str = ""


@dataclass(frozen=True)
class Verdict:
    """What came of one program. `passed` is true only if there were tests and all of them passed.

    Outcomes: `passed`, `failed` (a test failed), `broken` (the program does not load), `timeout`,
    `crashed` (it ended its own process), and `bad_tests` / `no_tests` (the task, not the program, is at
    fault: no verdict).
    """

    outcome: Outcome
    results: tuple[TestResult, ...] = ()
    error: str = ""
    line: int | None = None

    @property
    def passed(self) -> bool:
        """True only for `passed`; a run without a verdict is not a pass."""
        return self.outcome == "passed"


@dataclass
class Runner:
    """A warm worker process that forks once per job. Use as a context manager, or call `close`.

    `seconds` is the wall clock of one program with all its tests. Equal jobs are answered once.
    """

    seconds: float = 2.0
    _worker: subprocess.Popen[str] | None = field(default=None, init=False, repr=False)
    _known: dict[tuple[str, str], Verdict] = field(default_factory=dict, init=False, repr=False)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def run(self, solution: str, tests: str) -> Verdict:
        """Judge one program."""
        key = (solution, tests)
        if key not in self._known:
            self._known[key] = self._ask(solution, tests)
        return self._known[key]

    def run_all(self, jobs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Judge (solution, tests) pairs in order."""
        return [self.run(solution, tests) for solution, tests in jobs]

    def _ask(self, solution: str, tests: str) -> Verdict:
        if len(solution) + len(tests) > _SIZE_LIMIT:
            return Verdict("broken", error=f"more than {_SIZE_LIMIT} characters of code")
        worker = self._started()
        assert worker.stdin is not None
        job = {"solution": solution, "tests": tests, "seconds": self.seconds}
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        line = self._answer(worker)
        if not line:
            self.close()
            return Verdict("crashed", error="the worker died with the program")
        return _verdict(json.loads(line))

    def _answer(self, worker: subprocess.Popen[str]) -> str:
        assert worker.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(worker.stdout, selectors.EVENT_READ)
            if not selector.select(self.seconds + _GRACE_SECONDS):
                return ""
        return worker.stdout.readline()

    def _started(self) -> subprocess.Popen[str]:
        if self._worker is None or self._worker.poll() is not None:
            script = Path(__file__).with_name("worker.py")
            self._worker = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={"PATH": os.defpath, "OMP_NUM_THREADS": "1"},
            )
        return self._worker


def _verdict(answer: dict[str, object]) -> Verdict:
    results = answer.pop("results")
    assert isinstance(results, list)
    return Verdict(results=tuple(TestResult(**result) for result in results), **answer)  # type: ignore[arg-type]
