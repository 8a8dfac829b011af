"""Fault localisation: rank the lines of a program by several kinds of evidence.

Tracebacks, the test spectrum (Ochiai) and the structure of the program rank the lines. Then small
edits are tried, the most suspicious lines first. An edit that makes every test pass ranks highest;
the critique only claims that "with this instead, all tests pass".
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from typing import Literal, NamedTuple

from text2grad.critics.program.expressions import expression_edits
from text2grad.critics.program.source import Code, Edit, Function, Lines, functions
from text2grad.critics.program.statements import definition_edits, first_uses, statement_edits, undefined_name
from text2grad.sandbox import TestResult, Verdict

Kind = Literal["reference", "repair", "traceback", "spectrum", "structure", "syntax", "names"]
RunPrograms = Callable[[Sequence[str]], Sequence[Verdict]]
"""Runs the tests on programs and returns one verdict per program."""

_BATCH = 8  # edits per call of the sandbox
_MAX_REPAIRS = 5
_MAX_TIMEOUTS = 2


class Clue(NamedTuple):
    """One piece of evidence against a line: its kind, its suspicion, and a description."""

    kind: Kind
    suspicion: float
    words: str


_REPAIR = Clue("repair", 2.0, "an edit here makes all tests pass")


class Suspect(NamedTuple):
    """A suspicious line (from 1), its score (higher is more suspicious), and its clues.

    [start, end) are the characters to quote: the line, or the expression that an `edit` changes.
    """

    line: int
    score: float
    clues: tuple[Clue, ...]
    start: int
    end: int
    edit: Edit | None = None


Evidence = dict[int, list[Clue]]
"""The clues against each line."""


def localise(
    lines: Lines, verdict: Verdict, run_programs: RunPrograms | None = None, budget: int = 0
) -> list[Suspect]:
    """Return the suspects, most suspicious first.

    At most `budget` edits are run, and none if the program does not finish.
    """
    evidence = gather_evidence(lines, verdict)
    ranked = rank(lines, evidence)
    if not isinstance(lines, Code) or run_programs is None or budget < 1 or verdict.outcome == "timeout":
        return ranked
    errors = [result.error for result in verdict.results if not result.passed] or [verdict.error]
    repairs = [
        _make_suspect(lines, edit.line, [_REPAIR, *evidence.get(edit.line, ())], edit)
        for edit in _find_repairs(lines, ranked, errors, run_programs, budget)
    ]
    repaired_lines = {suspect.line for suspect in repairs}
    return repairs + [suspect for suspect in ranked if suspect.line not in repaired_lines]


def gather_evidence(lines: Lines, verdict: Verdict) -> Evidence:
    """Collect the clues of a run; a test without coverage only contributes its traceback."""
    evidence: Evidence = defaultdict(list)
    runs = [result for result in verdict.results if result.lines]
    for line, score in ochiai(runs).items():
        if score > 0 and line <= len(lines.lines):
            evidence[line].append(Clue("spectrum", score, f"the failing tests run it (Ochiai {score:.2f})"))
    failed = [result for result in verdict.results if not result.passed]
    tracebacks = [(result.line, result.error) for result in failed] or [(verdict.line, verdict.error)]
    for number, error in dict(tracebacks).items():
        if number and number <= len(lines.lines):
            evidence[number].append(Clue("traceback", 0.5, f"the traceback ends here: {error}"))
    if isinstance(lines, Code):
        executed = frozenset[int]().union(*(run.lines for run in runs))
        for line, suspicion, words in _structure_clues(lines, verdict.outcome == "timeout", failed, executed):
            evidence[line].append(Clue("structure", suspicion, words))
    return evidence


def ochiai(runs: Sequence[TestResult]) -> dict[int, float]:
    """Return the suspiciousness of every executed line, in [0, 1] (Ochiai; Abreu et al. 2007).

    failed(line) / sqrt(failed * (failed(line) + passed(line))), where failed is the number of
    failing tests, and failed(line) and passed(line) count the tests that execute the line. Without
    a failing test every line has 0.
    """
    failing = sum(not run.passed for run in runs)
    failed, passed = (
        Counter(line for run in runs if run.passed is outcome for line in set(run.lines))
        for outcome in (False, True)
    )
    return {
        line: failed[line] / sqrt(failing * (failed[line] + passed[line])) if failed[line] else 0.0
        for line in sorted(failed | passed)
    }


def innocent_lines(runs: Sequence[TestResult]) -> list[int]:
    """Return the lines that some passing test executes and no failing test does."""
    passing: set[int] = set().union(*(run.lines for run in runs if run.passed))
    return sorted(passing.difference(*(run.lines for run in runs if not run.passed)))


def _structure_clues(
    code: Code, timed_out: bool, failed: Sequence[TestResult], executed: frozenset[int]
) -> Iterator[tuple[int, float, str]]:
    """Yield line, suspicion and reason of code that may explain the errors of the failing tests."""
    for name in sorted({undefined_name(result.error) for result in failed} - {""}):
        for statement in first_uses(code, name):
            yield statement.lineno, 0.7, f"`{name}` has no value before it"
    if any(result.got == "None" and result.expected != "None" for result in failed):
        for function in functions(code.tree):
            if executed & set(range(function.lineno, (function.end_lineno or 0) + 1)):
                yield from _missing_return(code, function)
    for node in ast.walk(code.tree):
        if isinstance(node, ast.Pass):
            yield node.lineno, 0.3, "nothing is done here"
        elif timed_out and isinstance(node, ast.While):
            yield node.lineno, 1.0, "this loop may never end"
        elif (
            isinstance(node, ast.For | ast.While)
            and node.lineno in executed
            and node.body[0].lineno not in executed
        ):
            yield node.lineno, 0.4, "no test enters this loop"


def _missing_return(code: Code, function: Function) -> Iterator[tuple[int, float, str]]:
    """Yield the last line of a function that ends without `return`, so returns None."""
    last = function.body[-1]
    if not isinstance(last, ast.Return | ast.Raise):
        has_return = any(isinstance(node, ast.Return) for node in ast.walk(function))
        line = code.number_at(code.bounds(last)[1] - 1)
        yield line, 0.4 if has_return else 2.0, "the function ends here without a value"


def rank(lines: Lines, evidence: Evidence) -> list[Suspect]:
    """Rank lines by suspicion; ties go to the line that computes more, then to the later one."""
    computing = ast.BinOp | ast.Compare | ast.BoolOp | ast.Subscript | ast.Call | ast.AugAssign
    nodes = ast.walk(lines.tree) if isinstance(lines, Code) else ()
    weights = Counter(node.lineno for node in nodes if isinstance(node, computing))
    suspects = [_make_suspect(lines, line, clues) for line, clues in evidence.items()]
    return sorted(suspects, key=lambda suspect: (suspect.score, weights[suspect.line], suspect.line), reverse=True)


def _make_suspect(lines: Lines, line: int, clues: Sequence[Clue], edit: Edit | None = None) -> Suspect:
    start, end = (edit.low, edit.high) if edit else lines.extent(line)
    return Suspect(line, sum(clue.suspicion for clue in clues), tuple(clues), start, end, edit)


def edits(code: Code, errors: Sequence[str] = ()) -> Iterator[Edit]:
    """Yield all edits of a program whose failing tests raised `errors` ("NameError: ...")."""
    yield from expression_edits(code)
    yield from statement_edits(code)
    for name in dict.fromkeys(filter(None, map(undefined_name, errors))):
        yield from definition_edits(code, name)


def _find_repairs(
    code: Code, ranked: Sequence[Suspect], errors: Sequence[str], run_programs: RunPrograms, budget: int
) -> list[Edit]:
    """Return edits that make every test pass, cheapest first; suspicious lines cost less."""
    scores = {suspect.line: suspect.score for suspect in ranked}
    highest = max(scores.values(), default=0.0) or 1.0

    def price(edit: Edit) -> float:
        return edit.cost - scores.get(edit.line, 0.0) / highest

    candidates: dict[str, Edit] = {}
    for edit in sorted(edits(code, errors), key=price):
        candidates.setdefault(edit.apply(code.text), edit)
    candidates.pop(code.text, None)
    programs = list(candidates)[:budget]
    repairs: list[Edit] = []
    timeouts = 0
    for start in range(0, len(programs), _BATCH):
        batch = programs[start : start + _BATCH]
        verdicts = run_programs(batch)
        repairs += [candidates[program] for program, verdict in zip(batch, verdicts, strict=True) if verdict.passed]
        timeouts += sum(verdict.outcome == "timeout" for verdict in verdicts)
        if len(repairs) >= _MAX_REPAIRS or timeouts >= _MAX_TIMEOUTS:
            break
    return sorted(repairs, key=price)
