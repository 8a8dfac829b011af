"""Statement edits: remove, move or fill in a statement, or insert one."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from text2grad.critics.program.source import Code, Edit, Function, functions, variables

_INITIAL_VALUES = ("0", "1", "[]", '""', "{}", "set()")


def statement_edits(code: Code) -> Iterator[Edit]:
    """Yield edits that remove a statement, dedent a `return`, or insert a line."""
    for block in _blocks(code.tree):
        for index, statement in enumerate(block.statements):
            if isinstance(statement, Function | ast.ClassDef | ast.Import):
                continue
            if _has_own_lines(code, statement) and not hasattr(statement, "body"):
                yield from _replacements(code, statement, block)
            if index == len(block.statements) - 1:
                yield from _dedented_returns(code, statement, block)
        yield from _insertions(code, block)


class _Block(NamedTuple):
    """The statements of one body, its function, and whether it is inside a loop."""

    statements: list[ast.stmt]
    function: Function
    in_loop: bool


def _blocks(tree: ast.AST) -> Iterator[_Block]:
    for function in functions(tree):
        queue: list[tuple[ast.AST, bool]] = [(function, False)]
        while queue:
            node, in_loop = queue.pop(0)
            for name in ("body", "orelse", "finalbody", "handlers"):
                for child in getattr(node, name, []):
                    if not isinstance(child, Function | ast.ClassDef):
                        queue.append((child, in_loop or isinstance(child, ast.For | ast.While)))
                block = [child for child in getattr(node, name, []) if isinstance(child, ast.stmt)]
                if block:
                    yield _Block(block, function, in_loop)


def _has_own_lines(code: Code, statement: ast.stmt) -> bool:
    """True if a statement shares its lines with no other, so that lines can be inserted around."""
    start, end = code.bounds(statement)
    after = code.lines[code.number_at(end - 1) - 1][end - code.line_start(end - 1) :].strip()
    return not _margin(code, start).strip() and (not after or after.startswith("#"))


def _replacements(code: Code, statement: ast.stmt, block: _Block) -> Iterator[Edit]:
    """Replace a statement by `pass`, or a `pass` by a new line."""
    start, end = code.bounds(statement)
    if isinstance(statement, ast.Pass):
        for text, cost in _new_lines(block, True):
            yield _make_edit(code, start, end, text, "filled", cost - 0.5, statement)
    elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        yield _make_edit(code, start, end, "pass", "left out", 2.0, statement)


def _make_edit(code: Code, start: int, end: int, text: str, kind: str, cost: float, context: ast.stmt) -> Edit:
    low, high = code.extent_of(context)
    line = code.number_at(high - 1) if start >= high else context.lineno
    return Edit(start, end, text, kind, cost, line, low, high)


def _dedented_returns(code: Code, statement: ast.stmt, block: _Block) -> Iterator[Edit]:
    """Dedent a `return` at the end of a loop body, a common mistake."""
    if not isinstance(statement, ast.Return) or not block.in_loop or not _has_own_lines(code, statement):
        return
    start, end = code.bounds(statement)
    margin = _margin(code, start)
    outer = block.function.body[0].col_offset
    if len(margin) > outer > 0:
        text = margin[:outer] + code.text[start:end]
        yield _make_edit(code, start - len(margin), end, text, "moved", 2.3, statement)


def _insertions(code: Code, block: _Block) -> Iterator[Edit]:
    """Insert a line before or after a statement: counters, `return`, `append`, `break`."""
    for index, statement in enumerate(block.statements):
        if not _has_own_lines(code, statement) and not hasattr(statement, "body"):
            continue
        last = index == len(block.statements) - 1
        following = None if last else block.statements[index + 1]
        for new in _new_lines(block, last):
            yield _insert_before(code, following, *new) if following else _insert_after(code, statement, *new)
        if index == 0:
            yield from (_insert_before(code, statement, *new) for new in _new_lines(block, False))


def _new_lines(block: _Block, last: bool) -> Iterator[tuple[str, float]]:
    """Yield candidate lines and their costs; `last` at the end of a block."""
    names = variables(block.function)
    arguments = {argument.arg for argument in ast.walk(block.function) if isinstance(argument, ast.arg)}
    local = [name for name in names if name not in arguments] or names
    if last and not block.in_loop:
        yield from ((f"return {name}", 1.7) for name in reversed(local))
        yield from ((f"return {value}", 2.0) for value in ("True", "False"))
    for name in local:
        yield f"{name} += 1", 2.0
        yield f"{name} -= 1", 2.4
    if block.in_loop:
        lists = [name for name in local if _is_list(block.function, name)]
        yield from ((f"{name}.append({other})", 2.2) for name in lists for other in names if name != other)
        yield from ((f"{name} += {other}", 2.2) for name in local for other in names if name != other)
        if last:
            yield from ((word, 2.4) for word in ("break", "continue"))
    yield from ((f"{name} = {other}", 2.6) for name in local for other in names if name != other)


def _is_list(function: ast.AST, name: str) -> bool:
    assignments = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
    lists = (node for node in assignments if isinstance(node.value, ast.List | ast.ListComp))
    targets = (target for node in lists for target in node.targets)
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _insert_before(code: Code, statement: ast.stmt, text: str, cost: float) -> Edit:
    start, _ = code.bounds(statement)
    return _make_edit(code, start, start, f"{text}\n{_margin(code, start)}", "missing", cost, statement)


def _insert_after(code: Code, statement: ast.stmt, text: str, cost: float) -> Edit:
    start, end = code.bounds(statement)
    line_end = code.line_start(end - 1) + len(code.lines[code.number_at(end - 1) - 1].rstrip())
    return _make_edit(code, line_end, line_end, f"\n{_margin(code, start)}{text}", "missing", cost, statement)


def _margin(code: Code, start: int) -> str:
    return code.text[code.line_start(start) : start]


def undefined_name(error: str) -> str:
    """Return the name in a NameError or UnboundLocalError, or an empty string."""
    match = re.search(r"(?:NameError|UnboundLocalError).*?'(\w+)'", error)
    return match[1] if match else ""


def definition_edits(code: Code, name: str) -> Iterator[Edit]:
    """Yield edits that define a name: an import, or an initial value."""
    if not code.tree.body:
        return
    first = code.tree.body[0]
    if name in sys.stdlib_module_names:
        yield _insert_before(code, first, f"import {name}", 0.5)
    for module in ("math", "collections", "itertools", "functools", "typing", "heapq", "re"):
        yield _insert_before(code, first, f"from {module} import {name}", 1.5)
    for module in ("heapq", "itertools", "collections", "numpy"):
        yield _insert_before(code, first, f"import {module} as {name}", 1.6)
    for statement in first_uses(code, name):
        for rank, value in enumerate(_INITIAL_VALUES):
            yield _insert_before(code, statement, f"{name} = {value}", 0.5 + 0.1 * rank)


def first_uses(code: Code, name: str) -> Iterator[ast.stmt]:
    """Yield, for every function that uses a name, its first top-level statement that does so."""
    for function in functions(code.tree):
        for statement in function.body:
            if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement)):
                yield statement
                break
