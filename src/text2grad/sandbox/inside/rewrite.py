"""Test files before they run: asserts that note their operands, and what a test file takes from the solution."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable
from typing import Any

TEXT_LIMIT = 300
_COMPARE = "__t2g_compare__"
_TRUTH = "__t2g_truth__"

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
_SYMBOLS: dict[type[ast.cmpop], str] = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"},
}

_NOT_HERE = {"subprocess", "multiprocessing", "socket", "ctypes", "signal", "pexpect"}
_PATCHED = ("builtins.", "sys.", "solution.")


class Operands:
    """The assertion that failed last: the call, what it gave, what was expected."""

    def __init__(self) -> None:
        self.calls: list[ast.expr] = []
        self.last: dict[str, str] = {}

    def names(self) -> dict[str, Any]:
        """What rewritten asserts call."""
        return {_COMPARE: self._compare, _TRUTH: self._truth}

    def _compare(self, number: int, symbol: str, left: Any, right: Any) -> Any:
        result = _OPERATORS[symbol](left, right)
        if not result:
            wanted = shown(right) if symbol == "==" else f"{symbol} {shown(right)}"
            self.last = {"call": self._call(number), "got": shown(left), "expected": wanted}
        return result

    def _truth(self, number: int, value: Any) -> Any:
        if not value:
            self.last = {"call": self._call(number), "got": shown(value), "expected": "a true value"}
        return value

    def _call(self, number: int) -> str:
        return ast.unparse(self.calls[number])[:TEXT_LIMIT]


def shown(value: Any) -> str:
    """A value as text, shortened."""
    try:
        return repr(value)[:TEXT_LIMIT]
    except Exception as error:
        return type(error).__name__


class Asserts:
    """Rewrites `assert a == b` so that its operands are noted when it fails; nothing else changes."""

    def __init__(self, operands: Operands) -> None:
        self._operands = operands

    def rewrite(self, tree: ast.Module) -> None:
        """Each comparison that an assert states, in place."""
        for node in [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]:
            node.test = self._noted(node.test)

    def _noted(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test.values = [self._noted(value) for value in test.values]
            return test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            symbol = ast.Constant(_SYMBOLS[type(test.ops[0])])
            args = [self._number(test.left), symbol, test.left, test.comparators[0]]
            return _call(_COMPARE, args, test)
        return _call(_TRUTH, [self._number(test), test], test)

    def _number(self, shown_as: ast.expr) -> ast.Constant:
        self._operands.calls.append(shown_as)
        return ast.Constant(len(self._operands.calls) - 1)


def _call(name: str, args: list[ast.expr], place: ast.expr) -> ast.expr:
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=args, keywords=[])
    return ast.fix_missing_locations(ast.copy_location(call, place))


def without_star_imports(tree: ast.Module) -> None:
    """Take `from solution import *` out: what the tests use is put in their namespace by name (`wanted_names`).

    A star would let the solution replace `len`, `isinstance` or `approx` in the tests.
    """
    tree.body = [node for node in tree.body if not _is_star(node)] or [ast.Pass(lineno=1, col_offset=0)]


def _is_star(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "solution" and node.names[0].name == "*"


def wanted_names(tree: ast.Module) -> list[str]:
    """Names that the tests use and neither define nor import: only these are taken from the solution unasked."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return sorted(name for name in used - _bound_at_top(tree) if not hasattr(builtins, name))


def _bound_at_top(tree: ast.Module) -> set[str]:
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            for each in ast.walk(node):
                if isinstance(each, ast.alias):
                    found.add((each.asname or each.name).partition(".")[0])
                elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    found.add(each.id)
    return found


def unsupported(tree: ast.Module) -> str:
    """What the test file uses that cannot work with the solution in another process, "" if nothing."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.partition(".")[0] in _NOT_HERE:
                return f"tests that use {name}"
        if isinstance(node, ast.Attribute) and node.attr in ("getsource", "getsourcelines"):
            return "tests that read the source of the solution"
        if isinstance(node, ast.Call) and _replaces(node):
            return "tests that replace parts of the interpreter in the solution"
    return ""


def _replaces(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args else None
    if name not in ("patch", "setattr") or first is None:
        return False
    if isinstance(first, ast.Constant):
        return isinstance(first.value, str) and first.value.startswith(_PATCHED)
    return isinstance(first, ast.Name) and first.id in ("builtins", "sys")
