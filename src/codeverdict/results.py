"""The verdict on one program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "broken", "timeout", "crashed", "bad_tests", "no_tests", "unsupported"]
Tier = Literal["namespaces", "landlock", "none"]

NO_VERDICT: frozenset[Outcome] = frozenset({"bad_tests", "no_tests", "unsupported"})
"""Outcomes that concern the task or the sandbox and do not judge the program."""


def clean(text: str) -> str:
    """Replace lone surrogates, which no file can hold but a program may put into a message."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class TestResult:
    """The result of one test.

    Attributes:
        line: the last line of the solution in the traceback of the error, from 1.
        call: the left side of the failed assertion, as code.
        got: the value of the left side.
        expected: the right side.
        lines: the lines of the solution that ran, from 1, if the job has coverage.
        swallowed: lines of the test file whose exception the solution swallowed; the test failed.
    """

    __test__ = False

    name: str
    passed: bool
    error: str = ""
    line: int | None = None
    call: str = ""
    got: str = ""
    expected: str = ""
    lines: tuple[int, ...] = ()
    swallowed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The verdict on one program.

    Attributes:
        outcome: `passed`: there were tests and all passed. `failed`: a test failed. `broken`: the
            program does not load. `timeout`. `crashed`: the program ended its process, was killed
            by a limit, or broke the rules of the sandbox. Not about the program: `bad_tests` and
            `no_tests` (the task is at fault), `unsupported` (the sandbox cannot run the tests).
        error: the reason of an outcome other than `passed`.
        line: the line of the solution that failed to load.
        tier: the protection of the machine; None: nothing was run.
        seconds: the wall-clock time of the job.
        early: the tests called the program before they were counted, so it may have influenced
            their number.
    """

    outcome: Outcome
    results: tuple[TestResult, ...] = ()
    error: str = ""
    line: int | None = None
    tier: Tier | None = None
    seconds: float = 0.0
    early: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """`outcome`, and `tier` if the program was run."""
        return {"outcome": self.outcome, **({"tier": self.tier} if self.tier else {})}

    @property
    def passed(self) -> bool:
        """True if the outcome is `passed`."""
        return self.outcome == "passed"
