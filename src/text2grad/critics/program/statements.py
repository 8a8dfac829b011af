"""Edits of whole statements: left out, moved, filled in, and new ones where something may be
missing."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from text2grad.critics.program.source import Code, Edit, Function, functions, variables

_STARTS = ("0", "1", "[]", '""', "{}", "set()")


def statement_edits(code: Code) -> Iterator[Edit]:
    """Statements left out, moved by one level, and new ones where something may be missing."""
    for block in _blocks(code.tree):
        for index, statement in enumerate(block.statements):
            if isinstance(statement, Function | ast.ClassDef | ast.Import):
                continue
            if _stands_alone(code, statement) and not hasattr(statement, "body"):
                yield from _replaced(code, statement, block)
            if index == len(block.statements) - 1:
                yield from _return_moved(code, statement, block)
        yield from _missing(code, block)


class _Block(NamedTuple):
    """The statements of one body, the function it belongs to, and whether a loop is around it."""

    statements: list[ast.stmt]
    function: Function
    in_loop: bool


def _blocks(tree: ast.AST) -> Iterator[_Block]:
    for function in functions(tree):
        waiting: list[tuple[ast.AST, bool]] = [(function, False)]
        while waiting:
            node, in_loop = waiting.pop(0)
            for name in ("body", "orelse", "finalbody", "handlers"):
                for child in getattr(node, name, []):
                    if not isinstance(child, Function | ast.ClassDef):
                        waiting.append((child, in_loop or isinstance(child, ast.For | ast.While)))
                block = [child for child in getattr(node, name, []) if isinstance(child, ast.stmt)]
                if block:
                    yield _Block(block, function, in_loop)


def _stands_alone(code: Code, statement: ast.stmt) -> bool:
    """Whether nothing else is on the statement's lines: only then can lines be put around it."""
    start, end = code.bounds(statement)
    after = code.lines[code.number_at(end - 1) - 1][end - code.line_start(end - 1) :].strip()
    return not _margin(code, start).strip() and (not after or after.startswith("#"))


def _replaced(code: Code, statement: ast.stmt, block: _Block) -> Iterator[Edit]:
    """Replace a statement by `pass`, or a `pass` by a new line."""
    start, end = code.bounds(statement)
    if isinstance(statement, ast.Pass):
        for text, cost in _new_lines(block, True):
            yield _new(code, start, end, text, "filled", cost - 0.5, statement)
    elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        yield _new(code, start, end, "pass", "left out", 2.0, statement)


def _new(code: Code, start: int, end: int, text: str, kind: str, cost: float, near: ast.stmt) -> Edit:
    low, high = code.extent_of(near)
    line = code.number_at(high - 1) if start >= high else near.lineno
    return Edit(start, end, text, kind, cost, line, low, high)


def _return_moved(code: Code, statement: ast.stmt, block: _Block) -> Iterator[Edit]:
    """The `return` that ends a loop's body one level out: it may be indented one level too far."""
    if not isinstance(statement, ast.Return) or not block.in_loop or not _stands_alone(code, statement):
        return
    start, end = code.bounds(statement)
    margin = _margin(code, start)
    outer = block.function.body[0].col_offset
    if len(margin) > outer > 0:
        yield _new(code, start - len(margin), end, margin[:outer] + code.text[start:end], "moved", 2.3, statement)


def _missing(code: Code, block: _Block) -> Iterator[Edit]:
    """New lines before and after each statement of a block: counters, `return`, `append`,
    `break`."""
    for index, statement in enumerate(block.statements):
        if not _stands_alone(code, statement) and not hasattr(statement, "body"):
            continue
        last = index == len(block.statements) - 1
        after = None if last else block.statements[index + 1]
        for new in _new_lines(block, last):
            yield _line_before(code, after, *new) if after else _line_after(code, statement, *new)
        if index == 0:
            yield from (_line_before(code, statement, *new) for new in _new_lines(block, False))


def _new_lines(block: _Block, last: bool) -> Iterator[tuple[str, float]]:
    names = variables(block.function)
    arguments = {argument.arg for argument in ast.walk(block.function) if isinstance(argument, ast.arg)}
    own = [name for name in names if name not in arguments] or names
    if last and not block.in_loop:
        yield from ((f"return {name}", 1.7) for name in reversed(own))
        yield from ((f"return {value}", 2.0) for value in ("True", "False"))
    for name in own:
        yield f"{name} += 1", 2.0
        yield f"{name} -= 1", 2.4
    if block.in_loop:
        lists = [name for name in own if _is_list(block.function, name)]
        yield from ((f"{one}.append({other})", 2.2) for one in lists for other in names if one != other)
        yield from ((f"{one} += {other}", 2.2) for one in own for other in names if one != other)
        if last:
            yield from ((word, 2.4) for word in ("break", "continue"))
    yield from ((f"{one} = {other}", 2.6) for one in own for other in names if one != other)


def _is_list(function: ast.AST, name: str) -> bool:
    assignments = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
    lists = (node for node in assignments if isinstance(node.value, ast.List | ast.ListComp))
    targets = (target for node in lists for target in node.targets)
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _line_before(code: Code, statement: ast.stmt, text: str, cost: float) -> Edit:
    start, _ = code.bounds(statement)
    return _new(code, start, start, f"{text}\n{_margin(code, start)}", "missing", cost, statement)


def _line_after(code: Code, statement: ast.stmt, text: str, cost: float) -> Edit:
    start, end = code.bounds(statement)
    line_end = code.line_start(end - 1) + len(code.lines[code.number_at(end - 1) - 1].rstrip())
    return _new(code, line_end, line_end, f"\n{_margin(code, start)}{text}", "missing", cost, statement)


def _margin(code: Code, start: int) -> str:
    return code.text[code.line_start(start) : start]


def undefined_name(error: str) -> str:
    """The name that a NameError or UnboundLocalError is about."""
    found = re.search(r"(?:NameError|UnboundLocalError).*?'(\w+)'", error)
    return found[1] if found else ""


def definition_edits(code: Code, name: str) -> Iterator[Edit]:
    """Edits for an undefined name: an import, or an initial value."""
    if not code.tree.body:
        return
    first = code.tree.body[0]
    if name in sys.stdlib_module_names:
        yield _line_before(code, first, f"import {name}", 0.5)
    for module in ("math", "collections", "itertools", "functools", "typing", "heapq", "re"):
        yield _line_before(code, first, f"from {module} import {name}", 1.5)
    for module in ("heapq", "itertools", "collections", "numpy"):
        yield _line_before(code, first, f"import {module} as {name}", 1.6)
    for place in first_uses(code, name):
        for rank, value in enumerate(_STARTS):
            yield _line_before(code, place, f"{name} = {value}", 0.5 + 0.1 * rank)


def first_uses(code: Code, name: str) -> Iterator[ast.stmt]:
    """In each function that uses a name, the statement of its own body that does so first."""
    for function in functions(code.tree):
        for statement in function.body:
            if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement)):
                yield statement
                break
