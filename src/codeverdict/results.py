"""The verdict on one program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["passed", "failed", "broken", "timeout", "crashed", "bad_tests", "no_tests", "unsupported"]
Tier = Literal["namespaces", "landlock", "none"]

NO_VERDICT: frozenset[Outcome] = frozenset({"bad_tests", "no_tests", "unsupported"})
"""Outcomes that say something about the task or the sandbox, and nothing about the program."""


def clean(text: str) -> str:
    """The text without lone surrogates, which no file can hold; a program may put anything into a
    message."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class TestResult:
    """One test: whether it passed; if not, the error, the line of the solution it passed through,
    and the operands.

    `lines` are the lines of the solution that ran in this test, from 1 (only where the job asked
    for coverage). `swallowed`: lines of the test file whose exception the solution did not let
    pass; such a test has failed.
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
    """The verdict on one program. `passed` is true only if there were tests and all of them passed.

    Outcomes: `passed`, `failed` (a test failed), `broken` (the program does not load), `timeout`,
    `crashed` (it ended its own process, was killed by a limit, or broke the rules of the sandbox),
    and, no verdict on the program: `bad_tests`, `no_tests` (the task is at fault), `unsupported`
    (the sandbox cannot run these tests). `tier` says what protected the machine (None: nothing was
    run), `seconds` how long the job took (wall clock), `early` whether the tests asked the program
    before they were counted: how many there are may be its doing.
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
        """`outcome`, and `tier` where the program was run."""
        return {"outcome": self.outcome, **({"tier": self.tier} if self.tier else {})}

    @property
    def passed(self) -> bool:
        """True only for `passed`; a run without a verdict is not a pass."""
        return self.outcome == "passed"
