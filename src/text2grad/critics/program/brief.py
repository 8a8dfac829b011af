"""The short critique a reward model learns from: what is wrong and what should be there, no inputs, no reasons."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.critics.program.case import Case, ordered, praise
from text2grad.critics.program.reference import Difference, compare
from text2grad.feedback import Critique, Span


def brief_critique(case: Case) -> Critique:
    """Statement by statement against the reference; else the line of the traceback; else the whole program."""
    if case.verdict.passed:
        return praise(case, "Passes the tests.")
    what = _what(case)
    if case.code is None:
        line = case.verdict.line or 1
        spans = case.mark_line(line, -1, "not Python") or case.mark_all(-1, "not Python")
        return Critique(text=f"{what} It is not Python.", spans=spans, score=-1.0)
    if case.expected is not None:
        equal, different = compare(case.code, case.expected)
        if different:
            return _by_reference(case, equal, different, what)
    line = next((result.line for result in case.verdict.results if result.line), case.verdict.line) or 0
    if line:
        spans = case.mark_line(line, -1, "the traceback ends here")
        return Critique(text=f"{what} The error comes from line {line}.", spans=spans, score=-1.0)
    spans = case.mark_all(-1, "the tests fail and nothing says which line")
    return Critique(text=what, spans=spans, score=-1.0)


def _what(case: Case) -> str:
    if case.verdict.outcome == "timeout":
        return "Does not finish in time."
    return "Fails the tests." if case.failed else "Does not run."


def _by_reference(case: Case, equal: Sequence[Difference], different: Sequence[Difference], what: str) -> Critique:
    """The verdict comes last: reasons come before the judgement."""
    spans: list[Span] = []
    for piece in equal:
        spans += case.mark(piece.start, piece.end, 1)
    for piece in different:
        spans += case.mark(piece.start, piece.end, -1)
    return Critique(text=" ".join([*_notes(case, different), what]), spans=ordered(spans), score=-1.0)


def _notes(case: Case, different: Sequence[Difference]) -> list[str]:
    """A sentence for each piece that the reference has otherwise, in the order of the program."""
    notes = []
    for piece in sorted(different, key=lambda each: each.start):
        quote = case.program.code[piece.start : piece.end]
        wrong = f"should be `{piece.wanted}`." if piece.wanted else "should not be there."
        notes.append(f"`{quote}` {wrong}")
    return notes
