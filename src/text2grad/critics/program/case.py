"""One judged response: the program in it, what came of its run, and how a piece of it becomes a span."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from text2grad.critics.program.extract import Program
from text2grad.critics.program.source import Code, Lines, read_code
from text2grad.feedback import Label, Span
from text2grad.sandbox import TestResult, Verdict


@dataclass(frozen=True)
class Case:
    """A response, its program, the verdict of the tests, the names they ask for, and the reference ("" if none)."""

    response: str
    program: Program
    verdict: Verdict
    names: tuple[str, ...] = ()
    reference: str = ""

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
        return read_code(self.reference) if self.reference else None

    @property
    def failed(self) -> list[TestResult]:
        """The tests that did not pass."""
        return [result for result in self.verdict.results if not result.passed]

    def mark(self, start: int, end: int, label: Label, reason: str = "") -> tuple[Span, ...]:
        """The span of code characters [start, end), without white space around it; none if nothing is left."""
        text = self.program.code[start:end]
        left = start + len(text) - len(text.lstrip())
        right = left + len(text.strip())
        if right <= left:
            return ()
        low, high = self.program.place(left, right)
        return (Span(start=low, end=high, label=label, text=self.response[low:high], reason=reason),)

    def mark_line(self, number: int, label: Label, reason: str = "") -> tuple[Span, ...]:
        """The span of a line (from 1) of the program; none if there is no such line or it is blank."""
        return self.mark(*self.lines.extent(number), label, reason)

    def line_of(self, span: Span) -> int:
        """The program's line (from 1) in which a span begins."""
        return self.program.line_at(span.start)

    def mark_all(self, label: Label, reason: str = "") -> tuple[Span, ...]:
        """The span of the whole program."""
        return self.mark(0, len(self.program.code), label, reason)


def ordered(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans as they stand in the response."""
    return tuple(sorted(spans, key=lambda span: (span.start, span.end, -span.label)))
