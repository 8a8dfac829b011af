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

_LOAD = ast.Load()
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

    def rewrite(self, nodes: list[ast.AST]) -> None:
        """Each comparison that an assert among these nodes states, in place."""
        for node in nodes:
            if type(node) is ast.Assert:
                node.test = self._noted(node.test)

    def _noted(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test.values = [self._noted(value) for value in test.values]
            return test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            first: list[int | str] = [self._number(test.left), _SYMBOLS[type(test.ops[0])]]
            return _call(_COMPARE, first, [test.left, test.comparators[0]], test)
        return _call(_TRUTH, [self._number(test)], [test], test)

    def _number(self, shown_as: ast.expr) -> int:
        self._operands.calls.append(shown_as)
        return len(self._operands.calls) - 1


def _call(name: str, first: list[int | str], args: list[ast.expr], place: ast.expr) -> ast.expr:
    at = {key: getattr(place, key) for key in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    constants = [ast.Constant(value, **at) for value in first]
    return ast.Call(func=ast.Name(id=name, ctx=_LOAD, **at), args=[*constants, *args], keywords=[], **at)


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """The node and all below it, outer ones first, without operators and contexts. (`ast.walk` costs a test file's
    processor time twice over.)"""
    found = [tree]
    for node in found:  # grows
        for value in node.__dict__.values():
            if type(value) is list:
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                found.append(value)
    return found


def without_star_imports(tree: ast.Module) -> None:
    """Take `from solution import *` out: what the tests use is put in their namespace by name (`wanted_names`).

    A star would let the solution replace `len`, `isinstance` or `approx` in the tests.
    """
    tree.body = [node for node in tree.body if not _is_star(node)] or [ast.Pass(lineno=1, col_offset=0)]


def _is_star(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "solution" and node.names[0].name == "*"


def wanted_names(tree: ast.Module, nodes: list[ast.AST]) -> list[str]:
    """Names that the tests use and neither define nor import: only these are taken from the solution unasked."""
    used = {node.id for node in nodes if type(node) is ast.Name and type(node.ctx) is ast.Load}
    return sorted(name for name in used - _bound_at_top(tree) if not hasattr(builtins, name))


def _bound_at_top(tree: ast.Module) -> set[str]:
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            for each in nodes_of(node):
                if isinstance(each, ast.alias):
                    found.add((each.asname or each.name).partition(".")[0])
                elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    found.add(each.id)
    return found


def unsupported(nodes: list[ast.AST]) -> str:
    """What the test file uses that cannot work with the solution in another process, "" if nothing."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for name in names:
                if name.partition(".")[0] in _NOT_HERE:
                    return f"tests that use {name}"
        elif isinstance(node, ast.Attribute):
            if node.attr in ("getsource", "getsourcelines"):
                return "tests that read the source of the solution"
        elif isinstance(node, ast.Call) and _replaces(node):
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
