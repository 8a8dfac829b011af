"""Plant faults of six kinds at random places of correct programs.

The code is independent of the edits in `text2grad.critics.program`, so that planted faults are not
chosen from those that the critic tries; some kinds are the same.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from text2grad.critics.program.source import Code, header_nodes, parse_code

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
ARITHMETIC = ("+", "-", "*", "/", "//", "%")
SYMBOLS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"},
    **{ast.And: "and", ast.Or: "or"},
}


@dataclass(frozen=True)
class Mutant:
    """A program with a fault of one kind; `lines` (from 1) locate it.

    A missing line is located at the lines before and after the gap.
    """

    code: str
    kind: str
    lines: frozenset[int]


def mutant(program: str, kind: str, dice: random.Random) -> Mutant | None:
    """Plant one fault of a kind at a random place; None if the program has no place for it."""
    code = parse_code(program)
    if code is None:
        return None
    places = list(KINDS[kind](code, dice))
    if not places:
        return None
    start, end, text = dice.choice(places)
    mutated = program[:start] + text + program[end:]
    if parse_code(mutated) is None:
        return None
    lines = _beside_gap(mutated, start) if kind == "missing line" and not text else {code.number_at(start)}
    return Mutant(mutated, kind, frozenset(lines))


def _beside_gap(mutated: str, position: int) -> set[int]:
    """Return the lines of the statement that ends before a gap, and the line after it."""
    code = parse_code(mutated)
    assert code is not None
    number = code.number_at(position) if position < len(mutated) else len(code.lines) + 1
    filled = [n for n, line in enumerate(code.lines, start=1) if line.strip()]
    before = max((n for n in filled if n < number), default=0)
    after = min((n for n in filled if n >= number), default=before)
    nodes = [node for node in ast.walk(code.tree) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    around = [range(node.lineno, (node.end_lineno or 0) + 1) for node in nodes]
    return {after, *next((lines for lines in around if before in lines), [before])} - {0}


Place = tuple[int, int, str]
"""Characters [start, end) and the text that takes their place."""


def _nodes(code: Code) -> Iterator[ast.AST]:
    """Return the expressions of statements in functions, without docstrings and declarations."""
    for statement in code.statements():
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.ClassDef) or _is_docstring(statement):
            continue
        yield from header_nodes(statement)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _symbol(
    code: Code, operator: ast.AST, left: ast.AST, right: ast.AST, others: tuple[str, ...]
) -> Iterator[Place]:
    symbol = SYMBOLS.get(type(operator), "")
    start, end = code.bounds(left)[1], code.bounds(right)[0]
    at = code.text.find(symbol, start, end) if symbol else -1
    if at >= 0:
        yield from ((at, at + len(symbol), other) for other in others if other != symbol)


def wrong_operator(code: Code, dice: random.Random) -> Iterator[Place]:
    """Use another arithmetic operator, or `and` for `or`."""
    for statement in code.statements():
        if isinstance(statement, ast.AugAssign):
            yield from _symbol(code, statement.op, statement.target, statement.value, ARITHMETIC)
    for node in _nodes(code):
        if isinstance(node, ast.BinOp):
            yield from _symbol(code, node.op, node.left, node.right, ARITHMETIC)
        elif isinstance(node, ast.BoolOp):
            yield from _symbol(code, node.op, node.values[0], node.values[1], ("and", "or"))


def wrong_comparison(code: Code, dice: random.Random) -> Iterator[Place]:
    """Use another comparison."""
    for node in _nodes(code):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _symbol(code, node.ops[0], node.left, node.comparators[0], COMPARISONS)


def wrong_constant(code: Code, dice: random.Random) -> Iterator[Place]:
    """Use another number, text or truth value."""
    for node in _nodes(code):
        if not isinstance(node, ast.Constant) or node.value is None:
            continue
        value, (start, end) = node.value, code.bounds(node)
        if isinstance(value, bool):
            yield start, end, str(not value)
        elif isinstance(value, int | float):
            other = dice.choice([value + 1, value - 1, value + 10, value * 2 + 3, 0, 1])
            if other != value:
                yield start, end, f"({other})" if other < 0 else str(other)
        elif isinstance(value, str) and code.text[start] in "'\"" and "\n" not in code.text[start:end]:
            yield start, end, repr(value[1:] if len(value) > 1 else value + "x")


def off_by_one(code: Code, dice: random.Random) -> Iterator[Place]:
    """Add or subtract one in a range, an index or a slice, or drop a `+ 1`."""
    for node in _nodes(code):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            for argument in node.args:
                yield from _one_more_or_less(code, argument)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            for bound in filter(None, (node.slice.lower, node.slice.upper)):
                yield from _one_more_or_less(code, bound)
        elif isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Tuple):
            yield from _one_more_or_less(code, node.slice)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _is_one(node.right):
            start, end = code.bounds(node)
            yield start, end, code.text[slice(*code.bounds(node.left))]


def _is_one(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1


def _one_more_or_less(code: Code, node: ast.expr) -> Iterator[Place]:
    start, end = code.bounds(node)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield from ((start, end, str(value)) for value in (node.value + 1, node.value - 1))
    elif isinstance(node, ast.Name | ast.Call | ast.BinOp):
        yield from ((start, end, f"{code.text[start:end]} {sign} 1") for sign in "+-")


def swapped_arguments(code: Code, dice: random.Random) -> Iterator[Place]:
    """Swap two neighbouring arguments of a call."""
    for node in _nodes(code):
        if isinstance(node, ast.Call) and not any(isinstance(argument, ast.Starred) for argument in node.args):
            for left, right in zip(node.args, node.args[1:], strict=False):
                (a, b), (c, d) = code.bounds(left), code.bounds(right)
                if code.text[a:b] != code.text[c:d]:
                    yield a, d, code.text[c:d] + code.text[b:c] + code.text[a:b]


def missing_line(code: Code, dice: random.Random) -> Iterator[Place]:
    """Remove a simple statement; `pass` replaces it in a block that would be empty."""
    alone = {
        id(block[0])
        for node in ast.walk(code.tree)
        for name in ("body", "orelse")
        if isinstance(block := getattr(node, name, None), list) and len(block) == 1
    }
    for statement in code.statements():
        if hasattr(statement, "body") or _is_docstring(statement) or isinstance(statement, ast.Pass):
            continue
        start, end = code.bounds(statement)
        first, last = code.number_at(start), code.number_at(end - 1)
        line_text = "".join(code.lines[first - 1 : last])
        if id(statement) in alone:
            yield start, end, "pass"
        elif not line_text.replace(code.text[start:end], "", 1).strip():
            yield code.starts[first - 1], code.starts[first - 1] + len(line_text), ""


KINDS: dict[str, Callable[[Code, random.Random], Iterator[Place]]] = {
    "wrong operator": wrong_operator,
    "wrong constant": wrong_constant,
    "wrong comparison": wrong_comparison,
    "off by one": off_by_one,
    "swapped arguments": swapped_arguments,
    "missing line": missing_line,
}
