"""A response under judgement: its program, its test results, and spans of its code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from text2grad.critics.program.extract import Program, expected_names, extract_program
from text2grad.critics.program.source import Code, Lines, parse_code
from text2grad.feedback import Critique, Example, Label, Span
from text2grad.feedback.spans import sort_by_place
from text2grad.sandbox import Runner, TestResult, Verdict


@dataclass(frozen=True)
class Attempt:
    """A response, the program in it, and the tests of its question, if any."""

    example: Example
    response: str

    @property
    def tests(self) -> str:
        """The tests of the question, or an empty string."""
        return str(self.example.meta.get("tests") or "")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that the tests call."""
        return expected_names(self.tests, str(self.example.meta.get("entry_point", "")))

    @cached_property
    def program(self) -> Program:
        """The program in the response."""
        return extract_program(self.response, self.names)

    @cached_property
    def reference(self) -> str:
        """The program in the example's reference, or an empty string."""
        return extract_program(self.example.reference or "", self.names).code

    @property
    def can_run(self) -> bool:
        """True if there are both tests and a program."""
        return bool(self.tests and self.program.code.strip())


def run_attempts(runner: Runner, attempts: Sequence[Attempt], coverage: bool | None = None) -> list[Verdict]:
    """Run the tests on every program, and on its reference if the program gives no verdict."""
    jobs = [(attempt.program.code, attempt.tests) for attempt in attempts]
    return runner.run_all(jobs, coverage=coverage, references=[attempt.reference for attempt in attempts])


@dataclass(frozen=True)
class Case:
    """An attempt and its verdict."""

    attempt: Attempt
    verdict: Verdict

    @property
    def program(self) -> Program:
        """The program under test."""
        return self.attempt.program

    @cached_property
    def lines(self) -> Lines:
        """The lines of the program, whether it parses or not."""
        return self.code or Lines.of(self.program.code)

    @cached_property
    def code(self) -> Code | None:
        """The parsed program; None if it does not parse or is too large."""
        return parse_code(self.program.code)

    @cached_property
    def expected(self) -> Code | None:
        """The parsed reference; None without one."""
        return parse_code(self.attempt.reference) if self.attempt.reference else None

    @property
    def failed(self) -> list[TestResult]:
        """The tests that did not pass."""
        return [result for result in self.verdict.results if not result.passed]

    def quoted(self, start: int, end: int) -> str:
        """Return the code characters [start, end) in backticks."""
        return f"`{self.program.code[start:end]}`"

    def mark(self, start: int, end: int, label: Label, reason: str = "", weight: float = 1.0) -> tuple[Span, ...]:
        """Return the span of code characters [start, end), stripped; empty if blank."""
        text = self.program.code[start:end]
        first = start + len(text) - len(text.lstrip())
        last = first + len(text.strip())
        return (self._span(first, last, label, reason, weight),) if last > first else ()

    def _span(self, start: int, end: int, label: Label, reason: str, weight: float = 1.0) -> Span:
        low, high = self.program.place(start, end)
        text = self.attempt.response[low:high]
        return Span(start=low, end=high, label=label, text=text, reason=reason, weight=weight)

    def mark_line(self, number: int, label: Label, reason: str) -> tuple[Span, ...]:
        """Return the span of a program line (from 1); empty if it does not exist or is blank."""
        return self.mark(*self.lines.extent(number), label, reason)

    def mark_indentation(self, number: int, label: Label, reason: str) -> tuple[Span, ...]:
        """Return the span of a line's indentation (lines from 1); empty without indentation."""
        (end, _), start = self.lines.extent(number), self.lines.starts[number - 1]
        return (self._span(start, end, label, reason),) if end > start else ()

    @property
    def first_line(self) -> int:
        """The number (from 1) of the first line that is not blank."""
        return next(number for number, text in enumerate(self.lines.lines, start=1) if text.strip())

    def mark_all(self, label: Label, reason: str, weight: float = 1.0) -> tuple[Span, ...]:
        """Return the span of the whole program."""
        return self.mark(0, len(self.program.code), label, reason, weight)


def shared_weight(count: int) -> float:
    """Return the weight of each of `count` equally likely places."""
    return round(1 / max(1, count), 4)


def praise(case: Case, text: str, reason: str = "") -> Critique:
    """Praise the executed statements of a passing program; without coverage, all statements."""
    executed = set[int]().union(*(result.lines for result in case.verdict.results))
    extents = map(case.code.extent_of, case.code.statements()) if case.code else ()
    spans = [
        span
        for start, end in extents
        if not executed or not executed.isdisjoint(case.lines.numbers(start, end))
        for span in case.mark(start, end, 1, reason)
    ]
    return Critique(text=text, spans=sort_by_place(spans), score=1.0)
