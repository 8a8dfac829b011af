"""Test files before they run: asserts that note their operands, and what a test file takes from the solution."""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

TEXT_LIMIT = 300
_COMPARE = "__cdv_compare__"
_TRUTH = "__cdv_truth__"
SUPER = "__cdv_super__"

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
_PLACE = ("lineno", "col_offset", "end_lineno", "end_col_offset")
_NOT_HERE = {"subprocess", "multiprocessing", "socket", "ctypes", "signal", "pexpect"}
_PATCHED = ("sys.modules", "sys.path", "builtins.__")


class Operands:
    """The assertion that failed last: the call, what it gave, what was expected."""

    def __init__(self) -> None:
        self.calls: list[ast.expr] = []
        self.last: dict[str, str] = {}

    def names(self) -> dict[str, Any]:
        """What rewritten asserts call."""
        return {_COMPARE: self._compare, _TRUTH: self._truth}

    def _compare(self, number: int, symbol: str, left: Any, right: Any) -> bool:
        result = bool(_OPERATORS[symbol](left, right))  # once: an object may say now this and now that
        if not result:
            wanted = shown(right) if symbol == "==" else f"{symbol} {shown(right)}"
            self.last = {"call": self._call(number), "got": shown(left), "expected": wanted}
        return result

    def _truth(self, number: int, value: Any) -> bool:
        result = bool(value)
        if not result:
            self.last = {"call": self._call(number), "got": shown(value), "expected": "a true value"}
        return result

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
    at = {key: getattr(place, key) for key in _PLACE}
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


_LIKE_A_CLASS = re.compile(r"\b[A-Z]\w*[ ]*[\[(.]")


def class_names(tests: str, nodes: list[ast.AST]) -> set[str]:
    """Names that a test file uses as those of classes: it asks for attributes of them or of what they make, derives
    from them, or holds their objects against each other."""
    if not _LIKE_A_CLASS.search(tests):
        return set()
    made = dict(_made(nodes))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            whole = ast.unparse(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else ""
            found |= {_called(node.value), made.get(whole, ""), whole}
        elif isinstance(node, ast.ClassDef):
            found |= {ast.unparse(base) for base in node.bases}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            found |= {ast.unparse(each) for each in node.args[1:]}
        elif isinstance(node, ast.Subscript):
            found.add(ast.unparse(node.value) if isinstance(node.value, ast.Name) else "")
        elif isinstance(node, ast.withitem):
            found.add(_called(node.context_expr))
        elif isinstance(node, ast.Compare):
            found |= _all_called(node.left) & _all_called(node.comparators[0])
        elif isinstance(node, ast.BinOp):
            found |= _all_called(node.left) & _all_called(node.right)
    last = {name.rpartition(".")[2] for name in found}
    return {name for name in last if name[:1].isupper() and "_" not in name}


def _made(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """(variable or fixture, the name whose call it holds)."""
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Attribute):
            yield ast.unparse(node.targets[0]), _called(node.value)
        elif isinstance(node, ast.FunctionDef):
            given = [each for each in node.body if isinstance(each, ast.Return | ast.Expr)]
            for each in given:
                value = each.value.value if isinstance(each.value, ast.Yield) else each.value
                if value is not None and (isinstance(each, ast.Return) or value is not each.value):
                    yield node.name, _called(value)


def _all_called(node: ast.expr) -> set[str]:
    return {_called(each) for each in nodes_of(node) if isinstance(each, ast.Call)} - {""}


def _called(node: ast.expr) -> str:
    """`Name` of `Name(...)`, "" for any other expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        return ast.unparse(node.func)
    return ""


def is_of(code: Any, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether code is that of a function of the test file."""
    return bool(
        code.co_name == node.name and node.lineno - len(node.decorator_list) <= code.co_firstlineno <= node.lineno
    )


def only_for_attributes(name: str, nodes: list[ast.AST]) -> bool:
    """Whether a name is used for nothing but `name.attribute`."""
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
    owners = (node.value for node in nodes if isinstance(node, ast.Attribute))
    return uses == sum(isinstance(owner, ast.Name) and owner.id == name for owner in owners)


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def unreached(nodes: list[ast.AST], line: int) -> bool:
    """Whether an assertion in a `with` block is not reached, or does not hold, if the block is left at a line."""
    for node in nodes:
        if isinstance(node, ast.With | ast.AsyncWith) and node.lineno <= line <= (node.end_lineno or line):
            inside = [each for each in nodes_of(node) if isinstance(each, ast.Assert | ast.Call) and _asserts(each)]
            return any((each.end_lineno or line) >= line for each in inside)
    return False


def _asserts(node: ast.Assert | ast.Call) -> bool:
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)  # `assert False` says that it is not to be reached
    return isinstance(node.func, ast.Attribute) and node.func.attr.startswith("assert")


def name_classes_above(nodes: list[ast.AST]) -> None:
    """Make `super()` in the methods of classes `__cdv_super__(__class__, self)`, in place."""
    for method in nodes:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.args.args:
            for node in nodes_of(method):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super" and not node.args:
                    at = {key: getattr(node, key) for key in _PLACE}
                    node.func = ast.Name(id=SUPER, ctx=_LOAD, **at)
                    names = ("__class__", method.args.args[0].arg)
                    node.args = [ast.Name(id=name, ctx=_LOAD, **at) for name in names]


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
        elif isinstance(node, ast.ClassDef) and _mixes(node, nodes):
            return "test cases that derive from a class of the solution"
        elif isinstance(node, ast.Call) and _replaces(node):
            return "tests that replace parts of the interpreter in the solution"
    return ""


def _mixes(node: ast.ClassDef, nodes: list[ast.AST]) -> bool:
    names = {last_name(base) for base in node.bases}
    imports = [each for each in nodes if isinstance(each, ast.ImportFrom) and each.module == "solution"]
    taken = {alias.asname or alias.name for each in imports for alias in each.names}
    return any(name.endswith("TestCase") for name in names) and bool(names & taken)


def _replaces(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args else None
    if name not in ("patch", "setattr") or first is None:
        return False
    if isinstance(first, ast.Constant):
        return isinstance(first.value, str) and first.value.startswith(_PATCHED)
    return False
