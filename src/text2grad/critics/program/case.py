"""One response to judge: the program in it, the result of running it, and how a piece of it becomes
a span."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from text2grad.critics.program.extract import Program, extract_program, wanted_names
from text2grad.critics.program.source import Code, Lines, read_code
from text2grad.feedback import Critique, Example, Label, Span
from text2grad.sandbox import Runner, TestResult, Verdict


@dataclass(frozen=True)
class Attempt:
    """A response to a question that may have tests, and the program in it."""

    example: Example
    response: str

    @property
    def tests(self) -> str:
        """The tests of the question, "" if it has none."""
        return str(self.example.meta.get("tests") or "")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that the tests call."""
        return wanted_names(self.tests, str(self.example.meta.get("entry_point", "")))

    @cached_property
    def program(self) -> Program:
        """The program in the response."""
        return extract_program(self.response, self.names)

    @property
    def reference(self) -> str:
        """The program in the example's reference, "" if it has none."""
        return extract_program(self.example.reference or "", self.names).code

    @property
    def can_run(self) -> bool:
        """Whether there are tests, and a program to run them on."""
        return bool(self.tests and self.program.code.strip())


def run_attempts(runner: Runner, attempts: Sequence[Attempt], coverage: bool | None = None) -> list[Verdict]:
    """What the tests say of each program, and of the reference where the program ends without a
    verdict."""
    jobs = [(each.program.code, each.tests) for each in attempts]
    return runner.run_all(jobs, coverage=coverage, references=[each.reference for each in attempts])


@dataclass(frozen=True)
class Case:
    """An attempt and the verdict of the tests on it."""

    attempt: Attempt
    verdict: Verdict

    @property
    def program(self) -> Program:
        """The program that was run."""
        return self.attempt.program

    @cached_property
    def lines(self) -> Lines:
        """The program's lines, readable or not."""
        return self.code or Lines.of(self.program.code)

    @cached_property
    def code(self) -> Code | None:
        """The program as a tree; None where it cannot be worked on."""
        return read_code(self.program.code)

    @cached_property
    def expected(self) -> Code | None:
        """The reference as a tree, if there is one."""
        reference = self.attempt.example.reference
        return read_code(reference) if reference else None

    @property
    def failed(self) -> list[TestResult]:
        """The tests that did not pass."""
        return [result for result in self.verdict.results if not result.passed]

    def quoted(self, start: int, end: int) -> str:
        """The code characters [start, end) in backticks."""
        return f"`{self.program.code[start:end]}`"

    def mark(self, start: int, end: int, label: Label, reason: str = "", weight: float = 1.0) -> tuple[Span, ...]:
        """The span of code characters [start, end), without white space around it; none if nothing
        is left."""
        text = self.program.code[start:end]
        left = start + len(text) - len(text.lstrip())
        right = left + len(text.strip())
        return (self._span(left, right, label, reason, weight),) if right > left else ()

    def _span(self, start: int, end: int, label: Label, reason: str, weight: float = 1.0) -> Span:
        low, high = self.program.place(start, end)
        text = self.attempt.response[low:high]
        return Span(start=low, end=high, label=label, text=text, reason=reason, weight=weight)

    def mark_line(self, number: int, label: Label, reason: str = "") -> tuple[Span, ...]:
        """The span of a line (from 1) of the program; None if it does not exist or is blank."""
        return self.mark(*self.lines.extent(number), label, reason)

    def mark_indentation(self, number: int, label: Label, reason: str = "") -> tuple[Span, ...]:
        """The span of the white space that a line (from 1) begins with; none if it begins with
        something else."""
        (end, _), start = self.lines.extent(number), self.lines.starts[number - 1]
        return (self._span(start, end, label, reason),) if end > start else ()

    @property
    def first_line(self) -> int:
        """The first line (from 1) that is not blank."""
        return next(number for number, text in enumerate(self.lines.lines, start=1) if text.strip())

    def mark_all(self, label: Label, reason: str = "", weight: float = 1.0) -> tuple[Span, ...]:
        """The span of the whole program."""
        return self.mark(0, len(self.program.code), label, reason, weight)


def one_of(count: int) -> float:
    """Weight of each of `count` equally likely places."""
    return round(1 / max(1, count), 4)


def praise(case: Case, text: str, reason: str = "") -> Critique:
    """Critique of a passing program: executed statements are good; without coverage, all of
    them."""
    run = set[int]().union(*(result.lines for result in case.verdict.results))
    extents = map(case.code.extent_of, case.code.statements()) if case.code else ()
    spans = [
        span
        for start, end in extents
        if not run or not run.isdisjoint(case.lines.numbers(start, end))
        for span in case.mark(start, end, 1, reason)
    ]
    return Critique(text=text, spans=ordered(spans), score=1.0)


def ordered(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in the order of the response."""
    return tuple(sorted(spans, key=lambda span: (span.start, span.end, -span.label)))
