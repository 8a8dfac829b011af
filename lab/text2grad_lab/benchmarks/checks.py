"""HumanEval's checks as modules of test functions: one per assertion that can stand alone.

Fault localisation compares the lines that passing and failing tests run, so tests must differ.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from text2grad.tasks.library import parse_module

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def names_used(tree: ast.AST) -> set[str]:
    """Return all names that are read or written in a tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def names_defined(code: str) -> set[str]:
    """Return the top-level functions and classes of a program."""
    return {node.name for node in parse_module(code).body if isinstance(node, _DEFINITIONS)}


def import_line(code: str, solution: str) -> str:
    """Return an import of the names that `code` uses and the solution defines, or ""."""
    names = sorted(names_used(parse_module(code)) & names_defined(solution))
    return f"from solution import {', '.join(names)}" if names else ""


def as_test(name: str, body: str) -> str:
    """Wrap code without multi-line strings in a test function."""
    return f"def {name}():\n{textwrap.indent(body.strip(), '    ')}\n"


def check_module(test: str, entry_point: str, helpers: str = "") -> str:
    """Turn a published `check(candidate)` into a test module with a test per assertion.

    `helpers` is code of the question (HumanEval's prompt). Functions in it that the test calls are
    taken from there, because a solution might fake them.

    Raises:
        ValueError: there is no `check` with one parameter, or the code cannot be parsed.
    """
    tree = parse_module(test)
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not checks or len(checks[0].args.args) != 1:
        raise ValueError("the test has no check(candidate)")
    check, candidate = checks[0], checks[0].args.args[0].arg
    parts = [f"from solution import {entry_point}", *_helpers(test, entry_point, helpers)]
    parts += [ast.unparse(node) for node in tree.body if node is not check]
    bodies = list(_separate(check))
    for node in ast.walk(check):  # so that a failing test shows the call
        if isinstance(node, ast.Name) and node.id == candidate:
            node.id = entry_point
    for number, body in enumerate(bodies, start=1):
        parts.append(as_test(f"test_{number}", "\n".join(map(ast.unparse, body))))
    return "\n\n".join(parts) + "\n"


def _helpers(test: str, entry_point: str, prompt: str) -> Iterator[str]:
    called = names_used(parse_module(test)) - {entry_point}
    nodes = parse_module(prompt).body if prompt else []
    if any(isinstance(node, _DEFINITIONS) and node.name in called for node in nodes):
        for node in nodes:
            if not (isinstance(node, _DEFINITIONS) and node.name == entry_point):
                yield ast.unparse(node)


def _separate(check: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    """Yield each asserting statement after the non-asserting ones before it.

    All stay together if another statement reads a name that an asserting one assigns.
    """
    asserting = [node for node in check.body if _asserts(node)]
    assigned = set().union(*map(_names_stored, asserting))
    if not asserting or any(assigned & names_used(node) - _names_stored(node) for node in check.body):
        yield check.body
        return
    others = [node for node in check.body if not _asserts(node)]
    for node in asserting:
        yield [*(other for other in others if other.lineno < node.lineno), node]


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Assert) for inner in ast.walk(node))


def _names_stored(node: ast.AST) -> set[str]:
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return {name.id for name in names if not isinstance(name.ctx, ast.Load)}
