"""Fault localisation: several kinds of evidence combined into a ranking of lines.

Tracebacks, the spectrum of the tests (Ochiai) and what can be read off the program order the lines;
then small edits are tried, at the most suspicious lines first, and one that makes every test pass
decides: an edit is never shown as more than "with this instead, all tests pass". Nothing is used
but the program and its tests.
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
TryAll = Callable[[Sequence[str]], Sequence[Verdict]]
"""Programs in, what the tests say of each out."""

_ROUND = 8
_ENOUGH = 5
_ENDLESS = 2


class Clue(NamedTuple):
    """One piece of evidence against a line: its kind, how much it says, and in words."""

    kind: Kind
    amount: float
    words: str


_REPAIR = Clue("repair", 2.0, "an edit here makes all tests pass")


class Suspect(NamedTuple):
    """A line (from 1) to blame, how surely (higher is surer), and by which evidence.

    [start, end) are the characters to quote: the whole line, or of an `edit` the expression that it
    changes.
    """

    line: int
    score: float
    clues: tuple[Clue, ...]
    start: int
    end: int
    edit: Edit | None = None


Evidence = dict[int, list[Clue]]
"""The clues against each line."""


def localise(lines: Lines, verdict: Verdict, try_all: TryAll | None = None, budget: int = 0) -> list[Suspect]:
    """The suspects, surest first; at most `budget` edits are tried, and none if the program does
    not finish."""
    evidence = gather(lines, verdict)
    ranked = rank(lines, evidence)
    if not isinstance(lines, Code) or try_all is None or budget < 1 or verdict.outcome == "timeout":
        return ranked
    errors = [result.error for result in verdict.results if not result.passed] or [verdict.error]
    repairs = [
        _suspect(lines, edit.line, [_REPAIR, *evidence.get(edit.line, ())], edit)
        for edit in _repairs(lines, ranked, errors, try_all, budget)
    ]
    seen = {suspect.line for suspect in repairs}
    return repairs + [suspect for suspect in ranked if suspect.line not in seen]


def gather(lines: Lines, verdict: Verdict) -> Evidence:
    """The clues of a run; a test without coverage gives none but its traceback."""
    found: Evidence = defaultdict(list)
    runs = [result for result in verdict.results if result.lines]
    for line, score in ochiai(runs).items():
        if score > 0 and line <= len(lines.lines):
            found[line].append(Clue("spectrum", score, f"the failing tests run it (Ochiai {score:.2f})"))
    failed = [result for result in verdict.results if not result.passed]
    raised = [(result.line, result.error) for result in failed] or [(verdict.line, verdict.error)]
    for number, error in dict(raised).items():
        if number and number <= len(lines.lines):
            found[number].append(Clue("traceback", 0.5, f"the traceback ends here: {error}"))
    if isinstance(lines, Code):
        run = frozenset[int]().union(*(run.lines for run in runs))
        for line, amount, words in _readings(lines, verdict.outcome == "timeout", failed, run):
            found[line].append(Clue("structure", amount, words))
    return found


def ochiai(runs: Sequence[TestResult]) -> dict[int, float]:
    """Suspiciousness of every executed line, in [0, 1] (Ochiai; Abreu et al. 2007).

    failed(line) / sqrt(failed * (failed(line) + passed(line))), where failed is the number of
    failing tests and failed(line), passed(line) count those that execute the line. Without a
    failing test nothing is suspicious.
    """
    failed = sum(not run.passed for run in runs)
    bad, good = (
        Counter(n for run in runs if run.passed is passed for n in set(run.lines)) for passed in (False, True)
    )
    return {n: bad[n] / sqrt(failed * (bad[n] + good[n])) if bad[n] else 0.0 for n in sorted(bad | good)}


def innocent_lines(runs: Sequence[TestResult]) -> list[int]:
    """Lines that some passing test runs and no failing test does."""
    passing: set[int] = set().union(*(run.lines for run in runs if run.passed))
    return sorted(passing.difference(*(run.lines for run in runs if not run.passed)))


def _readings(
    code: Code, endless: bool, failed: Sequence[TestResult], run: frozenset[int]
) -> Iterator[tuple[int, float, str]]:
    """Lines that look wrong given the failing tests' errors, with an amount of suspicion and a
    reason."""
    for name in sorted({undefined_name(result.error) for result in failed} - {""}):
        yield from ((place.lineno, 0.7, f"`{name}` has no value before it") for place in first_uses(code, name))
    if any(result.got == "None" and result.expected != "None" for result in failed):
        for function in functions(code.tree):
            if run & set(range(function.lineno, (function.end_lineno or 0) + 1)):
                yield from _loose_end(code, function)
    for node in ast.walk(code.tree):
        if isinstance(node, ast.Pass):
            yield node.lineno, 0.3, "nothing is done here"
        elif endless and isinstance(node, ast.While):
            yield node.lineno, 1.0, "this loop may never end"
        elif isinstance(node, ast.For | ast.While) and node.lineno in run and node.body[0].lineno not in run:
            yield node.lineno, 0.4, "no test enters this loop"


def _loose_end(code: Code, function: Function) -> Iterator[tuple[int, float, str]]:
    """The last line of a function that ends without `return`: it gives None."""
    last = function.body[-1]
    if not isinstance(last, ast.Return | ast.Raise):
        returns = any(isinstance(node, ast.Return) for node in ast.walk(function))
        line = code.number_at(code.bounds(last)[1] - 1)
        yield line, 0.4 if returns else 2.0, "the function ends here without a value"


def rank(lines: Lines, evidence: Evidence) -> list[Suspect]:
    """The lines by suspicion, without trying anything; of equals the one that computes more, then
    the later one."""
    computing = ast.BinOp | ast.Compare | ast.BoolOp | ast.Subscript | ast.Call | ast.AugAssign
    nodes = ast.walk(lines.tree) if isinstance(lines, Code) else ()
    weights = Counter(node.lineno for node in nodes if isinstance(node, computing))
    found = [_suspect(lines, line, clues) for line, clues in evidence.items()]
    return sorted(found, key=lambda each: (each.score, weights[each.line], each.line), reverse=True)


def _suspect(lines: Lines, line: int, clues: Sequence[Clue], edit: Edit | None = None) -> Suspect:
    start, end = (edit.low, edit.high) if edit else lines.extent(line)
    return Suspect(line, sum(clue.amount for clue in clues), tuple(clues), start, end, edit)


def edits(code: Code, errors: Sequence[str] = ()) -> Iterator[Edit]:
    """All edits of a program; `errors` are those of its failing tests ("NameError: name 'x'
    ...")."""
    yield from expression_edits(code)
    yield from statement_edits(code)
    for name in dict.fromkeys(filter(None, map(undefined_name, errors))):
        yield from definition_edits(code, name)


def _repairs(
    code: Code, ranked: Sequence[Suspect], errors: Sequence[str], try_all: TryAll, budget: int
) -> list[Edit]:
    """The edits that make every test pass, best first: likely edits at suspicious lines."""
    scores = {suspect.line: suspect.score for suspect in ranked}
    highest = max(scores.values(), default=0.0) or 1.0

    def price(edit: Edit) -> float:
        return edit.cost - scores.get(edit.line, 0.0) / highest

    candidates: dict[str, Edit] = {}
    for edit in sorted(edits(code, errors), key=price):
        candidates.setdefault(edit.applied(code.text), edit)
    candidates.pop(code.text, None)
    programs = list(candidates)[:budget]
    found: list[Edit] = []
    endless = 0
    for start in range(0, len(programs), _ROUND):
        part = programs[start : start + _ROUND]
        verdicts = try_all(part)
        found += [candidates[each] for each, verdict in zip(part, verdicts, strict=True) if verdict.passed]
        endless += sum(verdict.outcome == "timeout" for verdict in verdicts)
        if len(found) >= _ENOUGH or endless >= _ENDLESS:
            break
    return sorted(found, key=price)
