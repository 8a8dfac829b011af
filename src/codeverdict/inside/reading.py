"""A test file before it runs: what in it cannot be judged, and asserts that note their operands."""

from __future__ import annotations

import ast
import builtins
import operator
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

TEXT_LIMIT = 300
_COMPARE = "__cdv_compare__"
_TRUTH = "__cdv_truth__"

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le},
    **{">": operator.gt, ">=": operator.ge, "is": operator.is_, "is not": operator.is_not},
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
_SYMBOLS: dict[type[ast.cmpop], str] = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"},
}
_PLACE = ("lineno", "col_offset", "end_lineno", "end_col_offset")
_LOAD = ast.Load()
_MODULES_AWAY = "subprocess multiprocessing socket ctypes signal pexpect pickle marshal shelve gc"
_NOT_HERE = frozenset(_MODULES_AWAY.split())
_READ = "getsource getsourcelines getsourcefile getfile reload get_type_hints __annotations__"
_SOURCES = frozenset(_READ.split())
_OF_PROCESS = frozenset(["setenv", "delenv", "chdir", "syspath_prepend"])


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

    def note(self, test: ast.expr) -> ast.expr:
        """What an assert states, so that its operands are noted when it fails; nothing else changes."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            test.values = [self.note(value) for value in test.values]
            return test
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            first: list[int | str] = [self._number(test.left), _SYMBOLS[type(test.ops[0])]]
            return _call(_COMPARE, first, [test.left, test.comparators[0]], test)
        return _call(_TRUTH, [self._number(test)], [test], test)

    def _number(self, shown_as: ast.expr) -> int:
        self.calls.append(shown_as)
        return len(self.calls) - 1


def _call(name: str, first: Iterable[int | str], args: list[ast.expr], place: ast.expr) -> ast.expr:
    at = {key: getattr(place, key) for key in _PLACE}
    constants = [ast.Constant(value, **at) for value in first]
    return ast.Call(func=ast.Name(id=name, ctx=_LOAD, **at), args=[*constants, *args], keywords=[], **at)


def shown(value: Any) -> str:
    """A value as text, shortened."""
    try:
        return repr(value)[:TEXT_LIMIT]
    except Exception as error:  # the `__repr__` of an object of the program, or of the tests
        return type(error).__name__


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


def only_for_attributes(name: str, nodes: list[ast.AST]) -> bool:
    """Whether a name is used for nothing but `name.attribute`."""
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
    owners = (node.value for node in nodes if isinstance(node, ast.Attribute))
    return uses == sum(isinstance(owner, ast.Name) and owner.id == name for owner in owners)


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


_NAMED_BY_PYTEST = re.compile(r"\b(?:fixture|pytestmark|pytest_\w+|set_?[uU]p\w*|tear_?[dD]own\w*|skip\w*|xfail)\b")


def is_plain(text: str, tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Whether the tests are plain functions at the top of the file, and nothing is there that pytest would look
    for: to run these is to call them one after the other."""
    if _NAMED_BY_PYTEST.search(text):
        return False
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            return False
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            if node.decorator_list or any(vars(node.args).values()):
                return False
        elif any(name.startswith("test") for name in _bound_at_top(ast.Module([node], []))):
            return False
    return not any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)


def has_static_skips(tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Whether no name of the solution's stands where tests are marked to be left out."""
    froms = [each for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names]
    words = {"skip", *(each.asname for each in froms if each.asname and "skip" in each.name.lower())}
    known = {*_modules(nodes), "pytest", *dir(builtins), *_imported(nodes, "pytest"), *_imported(nodes, "unittest")}
    inner = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)
    found: list[ast.AST] = [each for each in tree.body if not isinstance(each, inner)]
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            found += [each for each in node.body if not isinstance(each, inner)]
        found += node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return all(_loads(each) <= known for each in found if any(word in ast.dump(each) for word in words))


def is_own(nodes: list[ast.AST], line: int) -> bool:
    """Whether what stands on this line raises an exception by itself: no name in it can be of the solution."""
    known = {*_modules(nodes), *dir(builtins)}
    here = [node for node in nodes if isinstance(node, ast.stmt) and node.lineno == line]
    return bool(here) and (isinstance(here[-1], ast.Raise) or _uses(here[-1]) <= known)


def _uses(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_of(node) if isinstance(each, ast.Name)}


def _loads(node: ast.AST) -> set[str]:
    """The names that are read in a piece of code, conditions that stand in texts included."""
    nodes = nodes_of(node)
    found = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    for each in nodes:
        if isinstance(each, ast.Call) and "skipif" in ast.dump(each.func) and each.args:
            condition = getattr(each.args[0], "value", None)
            found |= _loads(ast.parse(condition)) if isinstance(condition, str) else set()
    return found


# What cannot be judged


def refused(tree: ast.Module, nodes: list[ast.AST], wanted: list[str]) -> str:
    """What in a test file cannot be judged with the solution in another process, "" if nothing."""
    taken = {*wanted, *_imported(nodes, "solution"), "solution"}
    modules = _modules(nodes)
    return next((why for node in nodes if (why := _refused(node, taken, modules))), "") or next(
        (why for node in tree.body if (why := _not_a_test(node, taken))), ""
    )


def _imported(nodes: list[ast.AST], module: str) -> set[str]:
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == module]
    return {alias.asname or alias.name for node in froms for alias in node.names}


def _modules(nodes: list[ast.AST]) -> set[str]:
    """The names by which the test file knows modules of the standard library."""
    found = {"builtins"}
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
            wanted = [alias.name.partition(".")[0] for alias in node.names]
            found |= {name for name, real in zip(names, wanted, strict=True) if real in sys.stdlib_module_names}
    return found


def root(node: ast.expr) -> str:
    """The first name of `name.attribute(...)[...]`."""
    while not isinstance(node, ast.Name):
        inner = getattr(node, "value", None) or getattr(node, "func", None)
        if not isinstance(inner, ast.expr):
            return ""
        node = inner
    return node.id


def _refused(node: ast.AST, taken: set[str], modules: set[str]) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        bad = next((name for name in names if name.partition(".")[0] in _NOT_HERE), "")
        return f"tests that use {bad}" if bad else ""
    name = getattr(node, "attr", "") or getattr(node, "id", "")
    if name in _SOURCES or (name == "__init__" and "super" not in ast.dump(node)):
        return f"tests that use {name}"
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(node.value, ast.Yield):
        return "generators that are driven from outside"
    if isinstance(node, ast.ClassDef) and any(root(base) in taken for base in node.bases):
        return "classes derived from one of the solution"
    return _replaces(node, modules) if isinstance(node, ast.Call) else ""


def _replaces(node: ast.Call, modules: set[str]) -> str:
    """What a call replaces that the solution would see in one process, and does not see here."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    owner = root(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if name == "create_autospec" or any(each.arg == "autospec" for each in node.keywords):
        return "tests that use autospec"
    if name in _OF_PROCESS and owner not in ("self", "cls"):
        return f"tests that use {name}"
    of_patch = name in ("dict", "object") and "patch" in ast.dump(node.func)
    if not node.args or not (of_patch or name in ("patch", "setattr", "delattr", "setitem", "delitem")):
        return ""
    target = getattr(node.args[0], "value", None)
    if isinstance(target, str):
        return "" if target.partition(".")[0] == "solution" else f"tests that replace {target}"
    return f"tests that replace parts of {root(node.args[0])}" if root(node.args[0]) in modules else ""


def _not_a_test(node: ast.stmt, taken: set[str]) -> str:
    """Why pytest would not run as a test what it runs where the solution is in the same process."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if any(root(each) in taken for each in node.decorator_list):
            return "tests that the solution decorates"
        if isinstance(node, ast.ClassDef):
            plain = not any("AsyncioTestCase" in ast.dump(base) for base in node.bases)
            inner = (each for each in node.body if plain or not isinstance(each, ast.AsyncFunctionDef))
            return next((why for each in inner if (why := _not_a_test(each, taken))), "")
        return "asynchronous tests" if isinstance(node, ast.AsyncFunctionDef) and node.name[:4] == "test" else ""
    if isinstance(node, ast.ImportFrom) and node.module == "solution":
        return (
            "tests in the solution" if any((each.asname or each.name)[:4] == "test" for each in node.names) else ""
        )
    return ""
