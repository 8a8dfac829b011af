"""Expression edits: operators, constants, names, arguments, off-by-one errors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from text2grad.critics.program.reference import TOO_SMALL
from text2grad.critics.program.source import Code, Edit, Function, functions, header_nodes, variables

_OPERATORS: dict[type[ast.AST], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">", ">=", "==", "!=")),
    ast.LtE: ("<=", ("<", ">=", ">", "==", "!=")),
    ast.Gt: (">", (">=", "<", "<=", "==", "!=")),
    ast.GtE: (">=", (">", "<=", "<", "==", "!=")),
    ast.Eq: ("==", ("!=", "<=", ">=", "<", ">")),
    ast.NotEq: ("!=", ("==", "<", ">", "<=", ">=")),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.Add: ("+", ("-", "*", "//", "%", "/")),
    ast.Sub: ("-", ("+", "*", "//", "%", "/")),
    ast.Mult: ("*", ("+", "**", "//", "/", "-", "%")),
    ast.Div: ("/", ("//", "*", "%", "-", "+")),
    ast.FloorDiv: ("//", ("/", "%", "*", "-", "+")),
    ast.Mod: ("%", ("//", "/", "*", "-", "+")),
    ast.Pow: ("**", ("*", "+", "//", "-")),
    ast.BitAnd: ("&", ("|", "^")),
    ast.BitOr: ("|", ("&", "^")),
    ast.BitXor: ("^", ("&", "|")),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
    ast.And: ("and", ("or",)),
    ast.Or: ("or", ("and",)),
}
_RELATED = """
    min max | any all | sum len max | append extend | upper lower | isupper islower | isdigit isalpha isalnum
    | floor ceil | startswith endswith | lstrip rstrip strip | sorted reversed list set | keys values items
    | find rfind | index rindex | union intersection | match search fullmatch | nlargest nsmallest
    | int float str round | bin hex oct | sin cos tan
"""
_FAMILIES = [family.split() for family in _RELATED.split("|")]
_UNEDITED = Function | ast.ClassDef | ast.Import | ast.ImportFrom
_OPERATIONS = (ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Lambda, ast.UnaryOp, ast.NamedExpr)


def expression_edits(code: Code) -> Iterator[Edit]:
    """Yield the edits within every statement of a program."""
    for node in ast.walk(code.tree):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not isinstance(node, _UNEDITED) and not docstring:
            yield from _statement_edits(_EditMaker(code, node), node)


def _statement_edits(make: _EditMaker, statement: ast.stmt) -> Iterator[Edit]:
    """Yield the edits of one statement, or of the header of a compound statement."""
    if isinstance(statement, ast.AugAssign):
        yield from make.operator(statement.op, statement.target, statement.value, "operator", statement)
    for node in header_nodes(statement):
        if isinstance(node, ast.Compare):
            for operator, (left, right) in zip(node.ops, pairwise([node.left, *node.comparators]), strict=True):
                yield from make.operator(operator, left, right, "comparison", node)
        elif isinstance(node, ast.BinOp):
            yield from make.operator(node.op, node.left, node.right, "operator", node)
            yield from make.binary(node)
        elif isinstance(node, ast.BoolOp):
            yield from make.boolean(node)
        elif isinstance(node, ast.UnaryOp):
            yield make.replace(node, make.text(node.operand), "operator", 1.2)
        elif isinstance(node, ast.Constant):
            yield from make.constant(node)
        elif isinstance(node, ast.Name):
            yield from make.name(node)
        elif isinstance(node, ast.Attribute):
            yield from make.related(node, node.attr)
        elif isinstance(node, ast.Call):
            yield from make.call(node)
        elif isinstance(node, ast.Subscript):
            yield from make.subscript(node)
    if isinstance(statement, ast.If | ast.While):
        yield make.replace(statement.test, f"not ({make.text(statement.test)})", "comparison", 1.4)
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield from make.return_value(statement.value)


class _EditMaker:
    """Makes the edits of one statement, with the expression to quote around each edit."""

    def __init__(self, code: Code, statement: ast.stmt) -> None:
        self.code = code
        self.statement = statement
        nodes = [statement, *header_nodes(statement)]
        self.parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    def text(self, node: ast.AST) -> str:
        start, end = self.code.bounds(node)
        return self.code.text[start:end]

    def edit(self, start: int, end: int, text: str, kind: str, cost: float, context: ast.AST) -> Edit:
        return Edit(start, end, text, kind, cost, self.code.number_at(start), *self._quotable_bounds(context))

    def replace(self, node: ast.AST, text: str, kind: str, cost: float) -> Edit:
        return self.edit(*self.code.bounds(node), text, kind, cost, node)

    def _quotable_bounds(self, node: ast.AST) -> tuple[int, int]:
        while isinstance(node, TOO_SMALL) or not hasattr(node, "lineno"):
            node = self.parents.get(node, self.statement)
        return self.code.extent_of(node) if isinstance(node, ast.stmt) else self.code.bounds(node)

    def between(self, left: ast.AST, right: ast.AST) -> tuple[int, int]:
        return self.code.bounds(left)[1], self.code.bounds(right)[0]

    def operator(
        self, operator: ast.AST, left: ast.AST, right: ast.AST, kind: str, context: ast.AST, cost: float = 1.0
    ) -> Iterator[Edit]:
        symbol, others = _OPERATORS.get(type(operator), ("", ()))
        start = self.code.text.find(symbol, *self.between(left, right)) if symbol else -1
        for rank, other in enumerate(others if start >= 0 else ()):
            yield self.edit(start, start + len(symbol), other, kind, cost + 0.1 * rank, context)

    def binary(self, node: ast.BinOp) -> Iterator[Edit]:
        """Keep one operand, or swap the operands."""
        left, right = self.text(node.left), self.text(node.right)
        if isinstance(node.right, ast.Constant):
            yield self.replace(node, left, "off by one", 1.1)
        yield self.replace(node, left, "operand", 2.0)
        yield self.replace(node, right, "operand", 2.1)
        start, end = self.between(node.left, node.right)
        between = self.code.text[start:end]
        ordered = isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow)
        if ordered and "(" not in between and ")" not in between:
            yield self.replace(node, f"{right}{between}{left}", "swapped", 1.5)

    def boolean(self, node: ast.BoolOp) -> Iterator[Edit]:
        for left, right in pairwise(node.values):
            yield from self.operator(node.op, left, right, "operator", node, cost=1.1)
        for value in node.values:
            yield self.replace(node, self.text(value), "operand", 2.2)

    def constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool):
            yield self.replace(node, str(not value), "constant", 1.0)
        elif isinstance(value, int | float):
            neighbours = [value + 1, value - 1]
            common = [0, 1, 2, -value, 10, value * 2, value / 2 if value % 2 else value // 2]
            others = (n for n in self._constants() if isinstance(n, int | float) and not isinstance(n, bool))
            for number in dict.fromkeys([*neighbours, *common, *(n for n in others if abs(n) < 10**9)]):
                if number != value:
                    text = f"({number})" if number < 0 else str(number)
                    yield self.replace(node, text, "constant", 1.0 if number in neighbours else 1.6)
        elif isinstance(value, str):
            texts = (text for text in self._constants() if isinstance(text, str) and len(text) < 40)
            for text in dict.fromkeys(["", " ", *texts, value.swapcase(), value.strip()]):
                if text != value:
                    yield self.replace(node, repr(text), "constant", 1.6)

    def _constants(self) -> Iterator[object]:
        return (node.value for node in ast.walk(self.code.tree) if isinstance(node, ast.Constant))

    def name(self, node: ast.Name) -> Iterator[Edit]:
        """Replace a name by a related function or by another variable of its function."""
        yield from self.related(node, node.id)
        parent = self.parents.get(node)
        called = isinstance(parent, ast.Call) and parent.func is node
        if called or isinstance(parent, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return
        tree = self.code.tree
        enclosing = (
            function for function in functions(tree) if function.lineno <= node.lineno <= (function.end_lineno or 0)
        )
        for other in variables(next(enclosing, tree)):
            if other != node.id:
                yield self.replace(node, other, "name", 1.8)

    def related(self, node: ast.Name | ast.Attribute, name: str) -> Iterator[Edit]:
        _, end = self.code.bounds(node)
        others = [other for family in _FAMILIES if name in family for other in family if other != name]
        for rank, other in enumerate(others):
            yield self.edit(end - len(name), end, other, "name", 1.5 + 0.1 * rank, node)

    def call(self, node: ast.Call) -> Iterator[Edit]:
        """Swap two arguments, shift the bounds of `range`, or replace the call by its argument."""
        if not any(isinstance(argument, ast.Starred) for argument in node.args):
            for left, right in pairwise(node.args):
                yield self._swap(left, right, node, 1.2)
            if len(node.args) == 3:
                yield self._swap(node.args[0], node.args[2], node, 1.4)
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            for rank, argument in enumerate(reversed(node.args)):
                yield from self.off_by_one(argument, 1.0 + 0.1 * rank)
        elif len(node.args) == 1 and not node.keywords and isinstance(node.func, ast.Name):
            yield self.replace(node, self.text(node.args[0]), "operand", 2.4)

    def _swap(self, left: ast.expr, right: ast.expr, context: ast.AST, cost: float) -> Edit:
        start, end = self.between(left, right)
        swapped = self.text(right) + self.code.text[start:end] + self.text(left)
        low, high = self.code.bounds(left)[0], self.code.bounds(right)[1]
        return self.edit(low, high, swapped, "swapped", cost, context)

    def subscript(self, node: ast.Subscript) -> Iterator[Edit]:
        index = node.slice
        for bound in (index.lower, index.upper) if isinstance(index, ast.Slice) else (index,):
            if bound is not None:
                yield from self.off_by_one(bound, 1.2)

    def return_value(self, node: ast.expr) -> Iterator[Edit]:
        yield from self.off_by_one(node, 1.6)
        if isinstance(node, ast.Compare | ast.BoolOp | ast.Call | ast.Name):
            yield self.replace(node, f"not ({self.text(node)})", "comparison", 1.9)
        if not isinstance(node, ast.Constant):
            yield self.replace(node, f"-({self.text(node)})", "operator", 2.2)

    def off_by_one(self, node: ast.expr, cost: float) -> Iterator[Edit]:
        if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.JoinedStr):
            return  # `constant` edits constants; 1 cannot be added to the others
        inner = f"({self.text(node)})" if isinstance(node, _OPERATIONS) else self.text(node)
        yield self.replace(node, f"{inner} + 1", "off by one", cost)
        yield self.replace(node, f"{inner} - 1", "off by one", cost + 0.05)
