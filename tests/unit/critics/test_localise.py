"""Fault localisation on verdicts made by hand: which evidence says what, and what the edits are."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import product
from math import sqrt

import pytest

from text2grad.critics.program.source import Code, parse_code
from text2grad.critics.program.suspects import edits, innocent_lines, localise, ochiai
from text2grad.sandbox import TestResult, Verdict

PROGRAM = (
    "def f(xs):\n    total = 0\n    for x in xs:\n        if x > 2:\n            total += x\n    return total\n"
)


def code(text: str) -> Code:
    read = parse_code(text)
    assert read is not None
    return read


def verdict(*results: TestResult) -> Verdict:
    return Verdict("failed", results)


def result(passed: bool, *lines: int, error: str = "AssertionError", line: int | None = None) -> TestResult:
    return TestResult("test", passed, "" if passed else error, line=line, lines=lines)


def by_rule(wanted: str) -> Sequence[Verdict]:
    raise AssertionError(wanted)


# The spectrum.


def test_ochiai_by_hand() -> None:
    runs = [result(False, 1, 2), result(False, 1, 3), result(True, 1, 4)]
    half = 1 / sqrt(2)
    assert ochiai(runs) == pytest.approx({1: 2 / sqrt(2 * 3), 2: half, 3: half, 4: 0.0})


def test_ochiai_is_the_cosine_of_being_run_and_failing() -> None:
    """Another formula of the same number: the cosine between two 0/1 vectors over the tests."""
    for failing, running in product(product([0, 1], repeat=4), repeat=2):
        runs = [result(not bad, *[7] * ran) for bad, ran in zip(failing, running, strict=True)]
        if not any(running):
            continue
        both = sum(a * b for a, b in zip(failing, running, strict=True))
        cosine = both / sqrt(sum(failing) * sum(running)) if both else 0.0
        assert ochiai(runs)[7] == pytest.approx(cosine)


def test_nothing_is_suspicious_without_a_failing_test_or_without_coverage() -> None:
    assert ochiai([]) == {}
    assert ochiai([result(True, 1)]) == {1: 0.0}
    assert localise(code(PROGRAM), verdict(result(False))) == []


def test_cleared_lines_are_run_by_passing_tests_only() -> None:
    runs = [result(True, 1, 2), result(True, 3), result(False, 2, 4)]
    assert innocent_lines(runs) == [1, 3]


# The ranking.


def test_a_function_that_ends_without_a_value_is_suspected_at_its_end() -> None:
    text = PROGRAM.replace("    return total\n", "")
    got = TestResult("test", False, "AssertionError", got="None", expected="5", lines=(2, 3, 4, 5))
    found = localise(code(text), verdict(got))
    assert (found[0].line, found[0].clues[-1].kind) == (5, "structure")


def test_a_name_without_a_value_is_suspected_where_it_should_have_got_one() -> None:
    text = PROGRAM.replace("    total = 0\n", "")
    error = "UnboundLocalError: cannot access local variable 'total' where it is not associated with a value"
    found = localise(code(text), verdict(result(False, 2, 3, 4, error=error, line=4)))
    assert "`total` has no value before it" in [
        clue.words for each in found if each.line == 2 for clue in each.clues
    ]


def test_of_a_program_that_does_not_finish_the_loop_is_suspected_and_nothing_is_tried() -> None:
    text = "def f(n):\n    while n != 1:\n        n -= 2\n    return n\n"
    found = localise(code(text), Verdict("timeout"), lambda programs: by_rule("tried"), 10)
    assert [each.line for each in found] == [2]


# The edits.


MISTAKES = [
    ("    return a + b", "    return a - b"),
    ("    return a // b", "    return a / b"),
    ("    return a ** b", "    return a * b"),
    ("    return a <= b", "    return a < b"),
    ("    return a in b", "    return a not in b"),
    ("    return a and b", "    return a or b"),
    ("    return not a", "    return a"),
    ("    return a[1:]", "    return a[2:]"),
    ("    return a + 2", "    return a + 3"),
    ("    return True", "    return False"),
    ("    return range(a, b + 1)", "    return range(a, b)"),
    ("    return a[b - 1]", "    return a[b]"),
    ("    return a - 1", "    return a"),
    ("    return g(a, b)", "    return g(b, a)"),
    ("    return a - b", "    return b - a"),
    ("    return min(a)", "    return max(a)"),
    ("    return a.upper()", "    return a.lower()"),
    ("    return a", "    return b"),
    ("    a += b\n    return a", "    a -= b\n    return a"),
    ("    c = a\n    return c", "    c = a"),
    ("    for x in a:\n        b += x\n    return b", "    for x in a:\n        b += x\n        return b"),
    ("    for x in a:\n        if x:\n            break", "    for x in a:\n        if x:\n            pass"),
]


def test_one_edit_leads_from_a_common_mistake_to_what_was_meant() -> None:
    missed = []
    for right, wrong in MISTAKES:
        meant, mistaken = (f"def f(a, b):\n{body}\n" for body in (right, wrong))
        programs = (parse_code(edit.apply(mistaken)) for edit in edits(code(mistaken)))
        if ast.dump(code(meant).tree) not in {ast.dump(program.tree) for program in programs if program}:
            missed.append(wrong)
    assert not missed


def test_an_edit_quotes_an_expression_that_says_something_and_tells_its_line() -> None:
    (edit,) = [each for each in edits(code(PROGRAM)) if each.kind == "comparison" and each.text == ">="]
    assert (edit.line, PROGRAM[edit.low : edit.high], edit.quote(PROGRAM)) == (4, "x > 2", "x >= 2")


def test_no_edit_touches_a_docstring_or_the_declaration() -> None:
    text = 'def f(a=1):\n    """Adds 1 to a."""\n    return a\n'
    assert all(edit.line == 3 for edit in edits(code(text)) if edit.kind != "missing")


def test_the_edit_that_makes_all_tests_pass_decides_and_the_budget_is_kept() -> None:
    localise(code(PROGRAM), verdict(result(False, 2, 3)), lambda programs: by_rule("tried"), 0)
    tried: list[str] = []

    def try_all(programs: Sequence[str]) -> list[Verdict]:
        tried.extend(programs)
        return [Verdict("passed" if "x >= 2" in program else "failed") for program in programs]

    failing = verdict(result(False, 2, 3, 4, 6), result(True, 2, 6))
    found = localise(code(PROGRAM), failing, try_all, 20)
    assert len(tried) <= 20 and len(set(tried)) == len(tried) and PROGRAM not in tried
    assert (found[0].line, found[0].clues[0].kind) == (4, "repair")
    assert PROGRAM[found[0].start : found[0].end] == "x > 2"


def test_edits_that_do_not_finish_are_given_up_soon() -> None:
    tried: list[str] = []

    def try_all(programs: Sequence[str]) -> list[Verdict]:
        tried.extend(programs)
        return [Verdict("timeout") for _ in programs]

    localise(code(PROGRAM), verdict(result(False, 2, 3, 4, 6)), try_all, 1000)
    assert len(tried) <= 8
