"""Edits of the expressions of a program: operators, constants, names, arguments, one more or one less."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from text2grad.critics.program.edit import Edit, functions, variables
from text2grad.critics.program.reference import TOO_SMALL
from text2grad.critics.program.source import Code, header_nodes

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
}
_FAMILIES = (
    *(("min", "max"), ("any", "all"), ("sum", "len", "max"), ("append", "extend"), ("upper", "lower")),
    *(("isupper", "islower"), ("isdigit", "isalpha", "isalnum"), ("floor", "ceil"), ("startswith", "endswith")),
    *(("lstrip", "rstrip", "strip"), ("sorted", "reversed", "list", "set"), ("keys", "values", "items")),
    *(("find", "rfind"), ("index", "rindex"), ("union", "intersection"), ("match", "search", "fullmatch")),
    *(("nlargest", "nsmallest"), ("int", "float", "str", "round"), ("bin", "hex", "oct"), ("sin", "cos", "tan")),
)
_OPERATIONS = (ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Lambda, ast.UnaryOp, ast.NamedExpr)


def expression_edits(code: Code) -> Iterator[Edit]:
    """Edits within every statement of a program."""
    for statement in _all_statements(code.tree):
        yield from _within(code, statement)


def _all_statements(tree: ast.AST) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _within(code: Code, statement: ast.stmt) -> Iterator[Edit]:
    """Edits of the expressions of one statement (of its header, if it holds others)."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        return
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring
    make = _Maker(code, statement)
    if isinstance(statement, ast.AugAssign):
        yield from make.operator(statement.op, statement.target, statement.value, "operator", statement)
    for node in header_nodes(statement):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
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
            yield from make.twin(node, node.attr)
        elif isinstance(node, ast.Call):
            yield from make.call(node)
        elif isinstance(node, ast.Subscript):
            yield from make.subscript(node)
    if isinstance(statement, ast.If | ast.While):
        yield make.replace(statement.test, f"not ({make.text(statement.test)})", "comparison", 1.4)
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield from make.returned(statement.value)


class _Maker:
    """Makes the edits of one statement: it knows what to quote around each."""

    def __init__(self, code: Code, statement: ast.stmt) -> None:
        self.code = code
        self.statement = statement
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in [statement, *header_nodes(statement)]:
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    def text(self, node: ast.AST) -> str:
        start, end = self.code.bounds(node)
        return self.code.text[start:end]

    def place(self, start: int, end: int, text: str, kind: str, cost: float, around: ast.AST) -> Edit:
        low, high = self._quoted(around)
        return Edit(start, end, text, kind, cost, self.code.number_at(start), low, high)

    def replace(self, node: ast.AST, text: str, kind: str, cost: float) -> Edit:
        start, end = self.code.bounds(node)
        return self.place(start, end, text, kind, cost, node)

    def _quoted(self, node: ast.AST) -> tuple[int, int]:
        while isinstance(node, TOO_SMALL) or not hasattr(node, "lineno"):
            node = self.parents.get(node, self.statement)
        return self.code.extent_of(node) if isinstance(node, ast.stmt) else self.code.bounds(node)

    def operator(
        self, operator: ast.AST, left: ast.AST, right: ast.AST, kind: str, around: ast.AST
    ) -> Iterator[Edit]:
        symbol, others = _OPERATORS.get(type(operator), ("", ()))
        start, end = self.code.bounds(left)[1], self.code.bounds(right)[0]
        at = self.code.text.find(symbol, start, end) if symbol else -1
        for rank, other in enumerate(others if at >= 0 else ()):
            yield self.place(at, at + len(symbol), other, kind, 1.0 + 0.1 * rank, around)

    def binary(self, node: ast.BinOp) -> Iterator[Edit]:
        """One operand alone, and the operands swapped."""
        left, right = self.text(node.left), self.text(node.right)
        if isinstance(node.right, ast.Constant):
            yield self.replace(node, left, "off by one", 1.1)
        for rank, kept in enumerate((left, right)):
            yield self.replace(node, kept, "operand", 2.0 + 0.1 * rank)
        if isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow):
            start, end = self.code.bounds(node)
            between = self.code.text[self.code.bounds(node.left)[1] : self.code.bounds(node.right)[0]]
            if "(" not in between and ")" not in between:
                yield self.place(start, end, f"{right}{between}{left}", "swapped", 1.5, node)

    def boolean(self, node: ast.BoolOp) -> Iterator[Edit]:
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            start, end = self.code.bounds(left)[1], self.code.bounds(right)[0]
            at = self.code.text.find(word, start, end)
            if at >= 0:
                yield self.place(at, at + len(word), other, "operator", 1.1, node)
        for value in node.values:
            yield self.replace(node, self.text(value), "operand", 2.2)

    def constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool):
            yield self.replace(node, str(not value), "constant", 1.0)
        elif isinstance(value, int | float):
            near = [value + 1, value - 1]
            far = [0, 1, 2, -value, 10, value * 2, value / 2 if value % 2 else value // 2]
            numbers = dict.fromkeys([*near, *far, *(n for n in self._numbers() if abs(n) < 10**9)])
            for number in numbers:
                if number != value:
                    text = f"({number})" if number < 0 else str(number)
                    yield self.replace(node, text, "constant", 1.0 if number in near else 1.6)
        elif isinstance(value, str):
            for other in dict.fromkeys(["", " ", *self._strings(), value.swapcase(), value.strip()]):
                if other != value:
                    yield self.replace(node, repr(other), "constant", 1.6)

    def _numbers(self) -> Iterator[int | float]:
        for node in ast.walk(self.code.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                yield from () if isinstance(node.value, bool) else (node.value,)

    def _strings(self) -> Iterator[str]:
        for node in ast.walk(self.code.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 40:
                yield node.value

    def name(self, node: ast.Name) -> Iterator[Edit]:
        """Another name in its place, a relative of a function, and one more or less."""
        yield from self.twin(node, node.id)
        if not isinstance(node.ctx, ast.Load) or isinstance(self.parents.get(node), ast.Attribute):
            return
        parent = self.parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            return
        for other in self._variables(node):
            yield self.replace(node, other, "name", 1.8)

    def _variables(self, node: ast.Name) -> list[str]:
        owner = next(
            (each for each in functions(self.code.tree) if each.lineno <= node.lineno <= (each.end_lineno or 0)),
            self.code.tree,
        )
        return [name for name in variables(owner) if name != node.id]

    def twin(self, node: ast.Name | ast.Attribute, name: str) -> Iterator[Edit]:
        _, end = self.code.bounds(node)
        twins = [other for family in _FAMILIES if name in family for other in family if other != name]
        for rank, other in enumerate(twins):
            yield self.place(end - len(name), end, other, "name", 1.5 + 0.1 * rank, node)

    def call(self, node: ast.Call) -> Iterator[Edit]:
        """Two arguments swapped; one more or less in `range`; the argument alone."""
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        for left, right in zip(node.args, node.args[1:], strict=False):
            if not starred:
                yield self._swap(left, right, node, 1.2)
        if len(node.args) == 3 and not starred:
            yield self._swap(node.args[0], node.args[2], node, 1.4)
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            for rank, argument in enumerate(reversed(node.args)):
                yield from self.one_more_or_less(argument, 1.0 + 0.1 * rank)
        elif len(node.args) == 1 and not node.keywords and isinstance(node.func, ast.Name):
            yield self.replace(node, self.text(node.args[0]), "operand", 2.4)

    def _swap(self, left: ast.expr, right: ast.expr, around: ast.AST, cost: float) -> Edit:
        start, end = self.code.bounds(left)[0], self.code.bounds(right)[1]
        between = self.code.text[self.code.bounds(left)[1] : self.code.bounds(right)[0]]
        return self.place(start, end, self.text(right) + between + self.text(left), "swapped", cost, around)

    def subscript(self, node: ast.Subscript) -> Iterator[Edit]:
        if not isinstance(node.slice, ast.Slice):
            yield from self.one_more_or_less(node.slice, 1.2)
            return
        for bound in (node.slice.lower, node.slice.upper):
            if bound is not None:
                yield from self.one_more_or_less(bound, 1.2)

    def returned(self, node: ast.expr) -> Iterator[Edit]:
        yield from self.one_more_or_less(node, 1.6)
        if isinstance(node, ast.Compare | ast.BoolOp | ast.Call | ast.Name):
            yield self.replace(node, f"not ({self.text(node)})", "comparison", 1.9)
        if not isinstance(node, ast.Constant):
            yield self.replace(node, f"-({self.text(node)})", "operator", 2.2)

    def one_more_or_less(self, node: ast.expr, cost: float) -> Iterator[Edit]:
        if isinstance(node, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.JoinedStr):
            return  # a constant has its own edits; the others take no 1
        inner = self.text(node)
        inner = f"({inner})" if isinstance(node, _OPERATIONS) else inner
        for rank, sign in enumerate("+-"):
            yield self.replace(node, f"{inner} {sign} 1", "off by one", cost + 0.05 * rank)
