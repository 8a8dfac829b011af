"""Published checks as modules of test functions: one per assertion, where assertions are independent.

A test for each assertion is what tells the lines of a program apart: fault localisation compares what the
passing tests run with what the failing tests run.
"""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator, Sequence

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def parsed(code: str | bytes) -> ast.Module:
    """The syntax tree, without Python's warnings about invalid escapes in published programs.

    Raises:
        ValueError: Python cannot read it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        raise ValueError(f"code that Python cannot read: {error.msg}") from error


def names_used(tree: ast.AST) -> set[str]:
    """All names that are read or written in a tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def names_defined(code: str) -> set[str]:
    """The functions and classes that a program defines at its top."""
    return {node.name for node in parsed(code).body if isinstance(node, _DEFINITIONS)}


def import_line(code: str, solution: str) -> str:
    """The import of those names that `code` uses and the solution defines; "" if there are none."""
    names = sorted(names_used(parsed(code)) & names_defined(solution))
    return f"from solution import {', '.join(names)}" if names else ""


def as_test(name: str, body: str) -> str:
    """A test function around lines of code that have no string over several lines."""
    return f"def {name}():\n{textwrap.indent(body.strip(), '    ')}\n"


def check_module(test: str, entry_point: str, helpers: str = "") -> str:
    """A test module from a published `check(candidate)`: the code around it, and one test per assertion.

    `helpers` is code of the question's author (HumanEval's prompt): functions of it that the test calls are
    taken from there and not from the solution, which might forge them.
    """
    tree = parsed(test)
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not checks or len(checks[0].args.args) != 1:
        raise ValueError("the test has no check(candidate)")
    check, candidate = checks[0], checks[0].args.args[0].arg
    beside = [node for node in tree.body if node is not check]
    parts = [f"from solution import {entry_point}", *_helpers(test, entry_point, helpers)]
    parts += [ast.unparse(node) for node in beside]
    bodies = list(_separate(check))
    for node in ast.walk(check):  # so that a failing test says what was called
        if isinstance(node, ast.Name) and node.id == candidate:
            node.id = entry_point
    for number, body in enumerate(bodies, start=1):
        parts.append(as_test(f"test_{number}", "\n".join(map(ast.unparse, body))))
    return "\n\n".join(parts) + "\n"


def _helpers(test: str, entry_point: str, prompt: str) -> Iterator[str]:
    wanted = names_used(parsed(test)) - {entry_point}
    nodes = parsed(prompt).body if prompt else []
    if any(isinstance(node, _DEFINITIONS) and node.name in wanted for node in nodes):
        for node in nodes:
            if not (isinstance(node, _DEFINITIONS) and node.name == entry_point):
                yield ast.unparse(node)


def _separate(check: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """For each statement that asserts, the statements before it that do not, and itself.

    Where a later statement needs what an asserting one assigns, everything stays together.
    """
    asserting = [node for node in check.body if _asserts(node)]
    if not asserting or _entangled(check.body, asserting):
        yield check.body
        return
    others = [node for node in check.body if not _asserts(node)]
    for node in asserting:
        yield [*(other for other in others if other.lineno < node.lineno), node]


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Assert) for each in ast.walk(node))


def _entangled(body: Sequence[ast.stmt], asserting: Sequence[ast.stmt]) -> bool:
    """Whether some statement reads a name that an asserting one assigns and it does not assign itself."""
    names = set().union(*map(_names_stored, asserting))
    return any(names & names_used(node) - _names_stored(node) for node in body)


def _names_stored(node: ast.AST) -> set[str]:
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {name.id for name in names if not isinstance(name.ctx, ast.Load)}
