"""The critique of a program, in full or brief.

The full one names the failed test, the faulty place and the evidence. The brief one, from which a
reward model learns, names what is wrong and what is expected, without inputs or reasons.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from text2grad.critics.program.case import Case, praise, shared_weight
from text2grad.critics.program.reference import Difference, compare
from text2grad.critics.program.source import Code, Function
from text2grad.critics.program.suspects import Kind, RunPrograms, Suspect, innocent_lines, localise
from text2grad.feedback import Critique, Span
from text2grad.feedback.spans import sort_by_place
from text2grad.sandbox import TestResult

MIN_SIMILARITY = 1 / 3
"""Share of equal statements above which a reference is used to locate a fault."""

_DEFINITION = Function | ast.ClassDef
_MISINDENTED = re.compile("unexpected indent|unindent does not match|TabError")
_MAX_SUSPECTS = 3
_TIE_RATIO = 0.9  # suspects with this share of the highest score are equally suspicious
_EVIDENCE: dict[Kind, str] = {
    "reference": "difference to the reference solution",
    "repair": "small edits tried against the tests",
    "traceback": "traceback",
    "spectrum": "lines the failing tests run (Ochiai)",
    "structure": "reading the program",
    "syntax": "syntax error",
    "names": "names the tests call",
}


def brief_critique(case: Case) -> Critique:
    """Mark differences to the reference, or else the line of the traceback, or else everything."""
    if case.verdict.passed:
        return praise(case, "Passes the tests.")
    if case.verdict.outcome == "timeout":
        problem = "Does not finish in time."
    else:
        problem = "Fails the tests." if case.failed else "Does not run."
    if case.code is None:
        spans = case.mark_line(case.verdict.line or 1, -1, "not Python") or case.mark_all(-1, "not Python")
        return Critique(text=f"{problem} It is not Python.", spans=spans, score=-1.0)
    if case.expected is not None:
        equal, different = compare(case.code, case.expected)
        if different:
            spans = tuple(span for piece in equal for span in case.mark(piece.start, piece.end, 1))
            spans += tuple(span for piece in different for span in case.mark(piece.start, piece.end, -1))
            notes = [f"{case.quoted(piece.start, piece.end)} {_expectation(piece)}." for piece in different]
            return Critique(text=" ".join([*notes, problem]), spans=sort_by_place(spans), score=-1.0)
    line = next((result.line for result in case.verdict.results if result.line), case.verdict.line)
    if line:
        spans = case.mark_line(line, -1, "the traceback ends here")
        return Critique(text=f"{problem} The error comes from line {line}.", spans=spans, score=-1.0)
    return Critique(text=problem, spans=_mark_unlocated(case), score=-1.0)


def _mark_unlocated(case: Case) -> tuple[Span, ...]:
    """Return the span of the whole program, with the weight of one of its lines."""
    lines = sum(bool(line.strip()) for line in case.lines.lines)
    return case.mark_all(-1, "the tests fail and nothing says which line", shared_weight(lines))


def _expectation(piece: Difference) -> str:
    return f"should be `{piece.expected}`" if piece.expected else "should not be there"


def full_critique(case: Case, run_programs: RunPrograms, budget: int) -> Critique:
    """Judge a program by its tests; run at most `budget` edits of it to locate a fault."""
    if case.verdict.passed:
        count = len(case.verdict.results)
        text = f"Passes all {count} tests." if count > 1 else "Passes the test."
        return praise(case, text, "run by the tests, and all of them pass")
    if case.code is None and case.verdict.outcome == "broken":
        if "Error" in case.verdict.error:
            return _syntax_critique(case)
        # The program did not run at all.
        return _critique(case, [], case.mark_line(case.first_line, -1, case.verdict.error), [])
    if case.code is not None and (missing := missing_names(case.code, case.attempt.names)):
        return _missing_name_critique(case, case.code, missing)
    if case.code is not None and case.expected is not None:
        equal, different = compare(case.code, case.expected)
        if different and (len(different) == 1 or len(equal) >= MIN_SIMILARITY * (len(equal) + len(different))):
            return _reference_critique(case, different)
    return _suspect_critique(case, localise(case.lines, case.verdict, run_programs, budget))


def missing_names(code: Code, names: Sequence[str]) -> list[str]:
    """Return the `names` that a program neither defines nor imports at module level."""
    defined: set[str] = set()
    for statement in code.tree.body:
        for node in [statement] if isinstance(statement, _DEFINITION) else ast.walk(statement):
            if isinstance(node, ast.alias):
                defined.add(node.asname or node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, _DEFINITION):
                defined.add(node.name)
    return [name for name in names if name not in defined] if "*" not in defined else []


def _syntax_critique(case: Case) -> Critique:
    """Mark a syntax error, or the end of a truncated program."""
    line = min(case.verdict.line or 1, len(case.lines.lines))
    if _is_truncated(case, line):
        last = case.lines.number_at(len(case.program.code.rstrip()) - 1)
        spans = case.mark_line(last, -1, "the program is cut off here")
        return _critique(case, [f"It is cut off in line {last}."], spans, ["syntax"])
    reason = f"not Python: {case.verdict.error}"
    spans = case.mark_indentation(line, -1, reason) if _MISINDENTED.search(case.verdict.error) else ()
    spans = spans or case.mark_line(line, -1, reason) or case.mark_all(-1, "not Python")
    return _critique(case, [f"It is not Python at line {line}."], spans, ["syntax"])


def _is_truncated(case: Case, line: int) -> bool:
    """True if the fence is open, or the error is in a last line without a line end."""
    if not case.program.closed:
        return True
    last = case.lines.lines[-1]
    fenced = len(case.program.code) < len(case.attempt.response.strip())
    return not fenced and not last.endswith(("\n", "\r")) and line == len(case.lines.lines)


def _missing_name_critique(case: Case, code: Code, missing: Sequence[str]) -> Critique:
    """Mark the last definition that could have had the missing name, or else the first line."""
    quoted = " and ".join(f"`{name}`" for name in missing)
    defined = [
        node for node in code.tree.body if isinstance(node, _DEFINITION) and node.name not in case.attempt.names
    ]
    reason = f"the tests call {quoted}, which is not defined"
    spans = case.mark(*code.extent_of(defined[-1]), -1, reason) if defined else ()
    spans = spans or case.mark_line(case.first_line, -1, reason)
    return _critique(case, [f"The tests call {quoted}, which the program does not define."], spans, ["names"])


def _reference_critique(case: Case, different: Sequence[Difference]) -> Critique:
    """Mark the pieces that differ from the reference."""
    spans: list[Span] = []
    notes: list[str] = []
    for piece in different:
        reason = _expectation(piece)
        if piece.before or piece.after:
            reason = f"lacks `{piece.before or piece.after}` {'before' if piece.before else 'after'} it"
        spans += case.mark(piece.start, piece.end, -1, f"{reason}, as in the reference solution")
        notes.append(f"{case.quoted(piece.start, piece.end)} {reason}.")
    return _critique(case, notes, spans, ["reference"])


def _suspect_critique(case: Case, suspects: Sequence[Suspect]) -> Critique:
    """Mark the most suspicious line and its ties, with shared weight; a repair is marked alone."""
    if not suspects:
        return _critique(case, [], _mark_unlocated(case), [])
    top = suspects[0]
    ties = [top] if top.edit else [suspect for suspect in suspects if suspect.score >= _TIE_RATIO * top.score]
    blamed, weight = ties[:_MAX_SUSPECTS], shared_weight(len(ties))
    spans = [
        span
        for suspect in blamed
        for span in case.mark(suspect.start, suspect.end, -1, _reason(suspect, case), weight)
    ]
    kinds = [kind for kind in _EVIDENCE if any(clue.kind == kind for suspect in blamed for clue in suspect.clues)]
    return _critique(case, [_describe(blamed, case)], spans, kinds, [suspect.line for suspect in blamed])


def _describe(blamed: Sequence[Suspect], case: Case) -> str:
    top = blamed[0]
    if top.edit is None:
        lines = ", ".join(str(suspect.line) for suspect in blamed)
        return f"Most suspicious: line{'s' if len(blamed) > 1 else ''} {lines}."
    replacement, original = top.edit.quote(case.program.code), case.program.code[top.start : top.end]
    if top.edit.kind == "missing":
        return f"Something is missing at line {top.line}: with `{replacement}` there, all tests pass."
    return f"Line {top.line}: with `{replacement}` instead of `{original}`, all tests pass."


def _reason(suspect: Suspect, case: Case) -> str:
    if suspect.edit:
        replacement = suspect.edit.quote(case.program.code)
        place = "added here" if suspect.edit.kind == "missing" else "instead"
        return f"with `{replacement}` {place}, all tests pass"
    return "; ".join(clue.words for clue in suspect.clues)


def _critique(
    case: Case, notes: Sequence[str], spans: Sequence[Span], kinds: Sequence[Kind], lines: Sequence[int] = ()
) -> Critique:
    """Name the failed test, the notes and the evidence; lines that only passing tests run are good.

    `lines` are the blamed lines, most likely first; the default is the order of the spans.
    """
    evidence = f"Evidence: {'; '.join(_EVIDENCE[kind] for kind in kinds)}." if kinds else ""
    text = " ".join(filter(None, [failure_text(case), *notes, evidence]))
    good = [
        span
        for span in _passing_spans(case)
        if not any(span.start < poor.end and poor.start < span.end for poor in spans)
    ]
    blamed = lines or [case.program.line_at(span.start) for span in spans]
    meta = {"evidence": list(kinds), "lines": list(dict.fromkeys(blamed))}
    return Critique(text=text, spans=sort_by_place([*spans, *good]), score=-1.0, meta=meta)


def _passing_spans(case: Case) -> list[Span]:
    runs = case.verdict.results
    if any(not run.passed and not run.lines for run in runs):
        return []  # without its coverage, a failing test may have run any line
    reason = "passing tests run it, and no failing test does"
    return [span for line in innocent_lines(runs) for span in case.mark_line(line, 1, reason)]


def failure_text(case: Case) -> str:
    """Return the first failed test with its input, actual and expected values."""
    if case.verdict.outcome == "timeout":
        return "Does not finish in time."
    if not case.failed:
        return f"Does not run: {case.verdict.error or case.verdict.outcome}."
    first = case.failed[0]
    problem = operands_text(first) or f"{first.name} raised {first.error}"
    return f"Fails {len(case.failed)} of {len(case.verdict.results)} tests: {problem}."


def operands_text(result: TestResult) -> str:
    """Return the values that a failed comparison compared; empty for other failures."""
    return f"{result.call} gave {result.got}, expected {result.expected}" if result.call else ""
