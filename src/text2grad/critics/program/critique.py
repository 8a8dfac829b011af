"""The critique of a program: in full (which test failed and how, where the fault is, by which
evidence) or brief.

A reward model learns from the brief one: what is wrong and what should be there, no inputs, no
reasons.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from text2grad.critics.program.case import Case, one_of, ordered, praise
from text2grad.critics.program.reference import Difference, compare
from text2grad.critics.program.source import Code, Function
from text2grad.critics.program.suspects import Kind, Suspect, TryAll, innocent_lines, localise
from text2grad.feedback import Critique, Span
from text2grad.sandbox import TestResult

ALIKE = 1 / 3
"""The share of statements in common from which on a reference tells where a program is wrong."""

_DEFINITION = Function | ast.ClassDef
_MISINDENTED = re.compile("unexpected indent|unindent does not match|TabError")
_SHOWN = 3
_NEAR = 0.9
_WORDS: dict[Kind, str] = {
    "reference": "difference to the reference solution",
    "repair": "small edits tried against the tests",
    "traceback": "traceback",
    "spectrum": "lines the failing tests run (Ochiai)",
    "structure": "reading the program",
    "syntax": "syntax error",
    "names": "names the tests call",
}


def brief_critique(case: Case) -> Critique:
    """Statement by statement against the reference; else the line of the traceback; else the whole
    program."""
    if case.verdict.passed:
        return praise(case, "Passes the tests.")
    late = case.verdict.outcome == "timeout"
    what = "Does not finish in time." if late else "Fails the tests." if case.failed else "Does not run."
    if case.code is None:
        spans = case.mark_line(case.verdict.line or 1, -1, "not Python") or case.mark_all(-1, "not Python")
        return Critique(text=f"{what} It is not Python.", spans=spans, score=-1.0)
    if case.expected is not None:
        equal, different = compare(case.code, case.expected)
        if different:
            spans = tuple(span for piece in equal for span in case.mark(piece.start, piece.end, 1))
            spans += tuple(span for piece in different for span in case.mark(piece.start, piece.end, -1))
            notes = [f"{case.quoted(piece.start, piece.end)} {_wanted(piece)}." for piece in different]
            return Critique(text=" ".join([*notes, what]), spans=ordered(spans), score=-1.0)
    line = next((result.line for result in case.verdict.results if result.line), case.verdict.line)
    if line:
        spans = case.mark_line(line, -1, "the traceback ends here")
        return Critique(text=f"{what} The error comes from line {line}.", spans=spans, score=-1.0)
    return Critique(text=what, spans=_nowhere(case), score=-1.0)


def _nowhere(case: Case) -> tuple[Span, ...]:
    """The span of the whole program, with the weight of one of its lines."""
    lines = sum(bool(line.strip()) for line in case.lines.lines)
    return case.mark_all(-1, "the tests fail and nothing says which line", one_of(lines))


def _wanted(piece: Difference) -> str:
    return f"should be `{piece.wanted}`" if piece.wanted else "should not be there"


def full_critique(case: Case, try_all: TryAll, budget: int) -> Critique:
    """The critique of a program by its tests; `budget` edits of it may be run to find the place of
    a fault."""
    if case.verdict.passed:
        count = len(case.verdict.results)
        text = f"Passes all {count} tests." if count > 1 else "Passes the test."
        return praise(case, text, "run by the tests, and all of them pass")
    if case.code is None and case.verdict.outcome == "broken":
        if "Error" in case.verdict.error:
            return _unreadable(case)
        return _critique(case, [], case.mark_line(case.first_line, -1, case.verdict.error), [])  # not run at all
    if case.code is not None and (missing := missing_names(case.code, case.attempt.names)):
        return _misnamed(case, case.code, missing)
    if case.code is not None and case.expected is not None:
        equal, different = compare(case.code, case.expected)
        if different and (len(different) == 1 or len(equal) >= ALIKE * (len(equal) + len(different))):
            return _by_reference(case, different)
    return _by_evidence(case, localise(case.lines, case.verdict, try_all, budget))


def missing_names(code: Code, names: Sequence[str]) -> list[str]:
    """Those of `names` that a program neither defines nor imports at its top."""
    defined: set[str] = set()
    for top in code.tree.body:
        for node in [top] if isinstance(top, _DEFINITION) else ast.walk(top):
            if isinstance(node, ast.alias):
                defined.add(node.asname or node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, _DEFINITION):
                defined.add(node.name)
    return [name for name in names if name not in defined] if "*" not in defined else []


def _unreadable(case: Case) -> Critique:
    """A syntax error at its place, or at the end of what is there if the answer was cut off."""
    line = min(case.verdict.line or 1, len(case.lines.lines))
    if _cut_off(case, line):
        last = case.lines.number_at(len(case.program.code.rstrip()) - 1)
        spans = case.mark_line(last, -1, "the program is cut off here")
        return _critique(case, [f"It is cut off in line {last}."], spans, ["syntax"])
    reason = f"not Python: {case.verdict.error}"
    spans = case.mark_indentation(line, -1, reason) if _MISINDENTED.search(case.verdict.error) else ()
    spans = spans or case.mark_line(line, -1, reason) or case.mark_all(-1, "not Python")
    return _critique(case, [f"It is not Python at line {line}."], spans, ["syntax"])


def _cut_off(case: Case, line: int) -> bool:
    """An open fence, or an error in a last line that does not end."""
    if not case.program.closed:
        return True
    last = case.lines.lines[-1]
    fenced = len(case.program.code) < len(case.attempt.response.strip())
    return not fenced and not last.endswith(("\n", "\r")) and line == len(case.lines.lines)


def _misnamed(case: Case, code: Code, missing: Sequence[str]) -> Critique:
    """The definition that should have had the name, else the first line."""
    wanted = " and ".join(f"`{name}`" for name in missing)
    defined = [
        node for node in code.tree.body if isinstance(node, _DEFINITION) and node.name not in case.attempt.names
    ]
    reason = f"the tests call {wanted}, which is not defined"
    spans = case.mark(*code.extent_of(defined[-1]), -1, reason) if defined else ()
    spans = spans or case.mark_line(case.first_line, -1, reason)
    return _critique(case, [f"The tests call {wanted}, which the program does not define."], spans, ["names"])


def _by_reference(case: Case, different: Sequence[Difference]) -> Critique:
    """The pieces that the reference has otherwise."""
    spans: list[Span] = []
    notes: list[str] = []
    for piece in different:
        reason = _difference_text(piece)
        spans += case.mark(piece.start, piece.end, -1, f"{reason}, as in the reference solution")
        notes.append(f"{case.quoted(piece.start, piece.end)} {reason}.")
    return _critique(case, notes, spans, ["reference"])


def _difference_text(piece: Difference) -> str:
    if piece.before or piece.after:
        return f"lacks `{piece.before}` before it" if piece.before else f"lacks `{piece.after}` after it"
    return _wanted(piece)


def _by_evidence(case: Case, suspects: Sequence[Suspect]) -> Critique:
    """The most suspicious line, and those as suspicious, each as sure as one of so many can be; an
    edit that makes every test pass decides alone."""
    if not suspects:
        return _critique(case, [], _nowhere(case), [])
    top = suspects[0]
    alike = [top] if top.edit else [each for each in suspects if each.score >= _NEAR * top.score]
    chosen, sure = alike[:_SHOWN], one_of(len(alike))
    marked = [span for each in chosen for span in case.mark(each.start, each.end, -1, _reason(each, case), sure)]
    kinds = [kind for kind in _WORDS if any(clue.kind == kind for each in chosen for clue in each.clues)]
    return _critique(case, [_note(chosen, case)], marked, kinds, [each.line for each in chosen])


def _note(chosen: Sequence[Suspect], case: Case) -> str:
    top = chosen[0]
    if top.edit is None:
        lines = ", ".join(str(each.line) for each in chosen)
        return f"Most suspicious: line{'s' if len(chosen) > 1 else ''} {lines}."
    wanted, there = top.edit.wanted(case.program.code), case.program.code[top.start : top.end]
    if top.edit.kind == "missing":
        return f"Something is missing at line {top.line}: with `{wanted}` there, all tests pass."
    return f"Line {top.line}: with `{wanted}` instead of `{there}`, all tests pass."


def _reason(suspect: Suspect, case: Case) -> str:
    if suspect.edit:
        wanted = suspect.edit.wanted(case.program.code)
        return f"with `{wanted}` {'added here' if suspect.edit.kind == 'missing' else 'instead'}, all tests pass"
    return "; ".join(clue.words for clue in suspect.clues)


def _critique(
    case: Case, notes: Sequence[str], spans: Sequence[Span], kinds: Sequence[Kind], lines: Sequence[int] = ()
) -> Critique:
    """What failed, where, and by which evidence; good spans are the lines that only passing tests
    run.

    `lines` are those to blame, surest first, where that is not the order of the spans.
    """
    words = f"Evidence: {'; '.join(_WORDS[kind] for kind in kinds)}." if kinds else ""
    text = " ".join(filter(None, [failure_text(case), *notes, words]))
    good = [each for each in _cleared(case) if not any(each.start < s.end and s.start < each.end for s in spans)]
    blamed = lines or [case.program.line_at(span.start) for span in spans]
    meta = {"evidence": list(kinds), "lines": list(dict.fromkeys(blamed))}
    return Critique(text=text, spans=ordered([*spans, *good]), score=-1.0, meta=meta)


def _cleared(case: Case) -> list[Span]:
    runs = case.verdict.results
    if any(not run.passed and not run.lines for run in runs):
        return []  # a failing test whose lines are not known may have run any line
    reason = "passing tests run it, and no failing test does"
    return [span for line in innocent_lines(runs) for span in case.mark_line(line, 1, reason)]


def failure_text(case: Case) -> str:
    """Which test failed, with what input, what it gave and what was expected."""
    if case.verdict.outcome == "timeout":
        return "Does not finish in time."
    if not case.failed:
        return f"Does not run: {case.verdict.error or case.verdict.outcome}."
    first = case.failed[0]
    how = operands_text(first) or f"{first.name} raised {first.error}"
    return f"Fails {len(case.failed)} of {len(case.verdict.results)} tests: {how}."


def operands_text(result: TestResult) -> str:
    """What a failed comparison compared; "" where the test failed in another way."""
    return f"{result.call} gave {result.got}, expected {result.expected}" if result.call else ""
