"""Analyse a test file before it runs: refuse what cannot be judged, and prepare the rest."""

from __future__ import annotations

import ast
import builtins
import functools
import marshal
import re
import sys
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any

from codeverdict.inside import frames
from codeverdict.inside.test_side import CHECK_NAME, MENTIONS, TEST_FILE
from codeverdict.inside.values import TEXT_LIMIT, describe
from codeverdict.results import Outcome

_TOOLS = "math cmath re itertools functools collections operator string random json heapq bisect statistics copy"
_COMMON = {*_TOOLS.split(), "numpy", "np"}
"""Modules that a test file may use through a star import; it gets the real modules."""

_SYMBOLS: dict[type[ast.cmpop], str] = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"},
}
_MENTIONS = ("pytest", *MENTIONS)
_REMEMBERED = 64  # test files, enough for a batch of programs
_READING = threading.Lock()
"""Lock of the analysis: Python's warnings and the parser of 3.11 are not thread-safe."""
_PLACE = ("lineno", "col_offset", "end_lineno", "end_col_offset")
_LOAD = ast.Load()
_MODULES_AWAY = "subprocess multiprocessing socket ctypes signal pexpect pickle marshal shelve gc"
_NOT_HERE = frozenset(_MODULES_AWAY.split())
_INSPECTED = "getsource getsourcelines getsourcefile getfile reload get_type_hints signature __annotations__"
_SOURCES = frozenset(_INSPECTED.split())
_OF_PROCESS = {"setenv": "os.environ", "delenv": "os.environ", "chdir": "os.curdir", "syspath_prepend": "sys.path"}
_CHANGES = frozenset(["update", "pop", "setdefault", "clear", "append", "extend", "insert", "popitem"])
_STATES = ("os.environ", "sys.argv")
_IMPORTED_STATES = {name.partition(".")[2]: name for name in _STATES}
_MIRRORED = re.compile(
    r"builtins\.(?:input|print|open)|sys\.(?:stdin|argv)|"
    r"os\.(?:environ|curdir|getcwd|getenv|listdir|makedirs|remove|urandom)|os\.path\.\w+|"
    r"(?:time|random|secrets|getpass|shutil|platform|urllib\.request|subprocess|webbrowser)\.\w+|"
    r"uuid\.uuid[14]"
)
"""Parts of the standard library that tests may replace, for the solution as well."""
_OUTPUT = ("sys.stdout", "sys.stderr")
"""Streams whose replacement receives the output of the solution."""


@dataclass(frozen=True)
class TestFile:
    """A test file, analysed independently of any program.

    A file that cannot be judged has an `outcome`, its reason (`error`), and no `words`.

    Attributes:
        words: what the process that runs it needs. `code`: marshalled, with asserts that record
            their operands. `wanted`: undefined names, which come from the program. `modules`: the
            modules among them. `own`: lines that raise without the program. `plain`: all tests are
            plain functions. `fixed`: no program affects which tests are skipped. `mentions`: words
            in the file that need preparation. `replaced`: parts of the standard library that the
            tests replace.
        solution_names: the names that it takes from the solution.
    """

    __test__ = False

    words: dict[str, Any] = field(default_factory=dict)
    solution_names: tuple[str, ...] = ()
    outcome: Outcome = "passed"
    error: str = ""
    _frames: dict[tuple[bool, bool], bytes] = field(default_factory=dict, compare=False, repr=False)

    def frame(self, coverage: bool, lenient: bool) -> bytes:
        """Return `words` and the options of the job, encoded for the process of the tests."""
        key = (coverage, lenient)
        if key not in self._frames:
            self._frames[key] = frames.held({**self.words, "coverage": coverage, "lenient": lenient})
        return self._frames[key]

    @property
    def needs_pytest(self) -> bool:
        """True if pytest runs the tests or the file mentions pytest."""
        return not self.words["plain"] or "pytest" in self.words["mentions"]


@functools.lru_cache(maxsize=_REMEMBERED)
def read_test_file(tests: str) -> TestFile:
    """Analyse a test file."""
    try:
        with _READING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of the compiler about the tests
            return _analyse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return TestFile(outcome="bad_tests", error=describe(error))


def _analyse(tests: str) -> TestFile:
    tree = ast.parse(tests)
    nodes = nodes_of(tree)
    undefined = undefined_names(tree, nodes)
    replaced = {name for node in nodes for name in _replaced(node, _modules(nodes))} - {*_OUTPUT}
    if what := _refusal(tree, nodes, {*undefined, *_imported(nodes, "solution"), "solution"}, replaced):
        return TestFile(outcome="unsupported", error=what)
    words: dict[str, Any] = {
        "replaced": sorted(replaced),
        "mentions": [word for word in _MENTIONS if word in tests],
        "wanted": undefined,
    }
    words["own"] = _own_lines(nodes)
    words["modules"] = [name for name in undefined if name in _COMMON and _only_for_attributes(name, nodes)]
    words |= {"plain": _is_plain(tests, tree, nodes), "fixed": _has_static_skips(tree, nodes)}
    _without_star_imports(tree)
    for node in nodes:
        if type(node) is ast.Assert:
            node.test = _rewrite_assert(node.test)
    code = marshal.dumps(compile(tree, TEST_FILE, "exec", dont_inherit=True))
    return TestFile({**words, "code": code.decode("latin-1")}, _names_from_solution(nodes, undefined))


def _names_from_solution(nodes: list[ast.AST], undefined: list[str]) -> tuple[str, ...]:
    imports = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "solution"]
    modules = {alias.asname or alias.name for alias in imports if alias.name == "solution"}
    names = [alias.name for node in froms for alias in node.names if alias.name != "*"]
    names += [node.attr for node in nodes if isinstance(node, ast.Attribute) and root(node.value) in modules]
    return tuple(dict.fromkeys([*names, *undefined]))


def _rewrite_assert(test: ast.expr) -> ast.expr:
    """Rewrite the condition of an assert so that its operands are recorded when it fails."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        test.values = [_rewrite_assert(value) for value in test.values]
        return test
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _call_check(_SYMBOLS[type(test.ops[0])], test, test.left, *test.comparators)
    return _call_check("", test, test)


def _unparse(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:TEXT_LIMIT]
    except RecursionError:
        return "..."


def _call_check(symbol: str, place: ast.expr, left: ast.expr, *right: ast.expr) -> ast.expr:
    at = {key: getattr(place, key) for key in _PLACE}
    words = [ast.Constant(value, **at) for value in (_unparse(left), symbol)]
    return ast.Call(func=ast.Name(id=CHECK_NAME, ctx=_LOAD, **at), args=[*words, left, *right], keywords=[], **at)


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return a node and its descendants, breadth first, without operators and contexts.

    `ast.walk` takes much longer.
    """
    all_nodes = [tree]
    for node in all_nodes:  # grows
        for value in node.__dict__.values():
            if type(value) is list:
                all_nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                all_nodes.append(value)
    return all_nodes


def _without_star_imports(tree: ast.Module) -> None:
    """Remove `from solution import *`; the names that the tests use are imported one by one.

    A star import would let the solution replace `len`, `isinstance` or `approx` in the tests.
    """
    stars = [
        statement
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
    ]
    others = [
        statement for statement in tree.body if statement not in stars or vars(statement)["module"] != "solution"
    ]
    tree.body = others or [ast.Pass(lineno=1, col_offset=0)]


def undefined_names(tree: ast.Module, nodes: list[ast.AST]) -> list[str]:
    """Return names that the tests use without defining or importing them.

    Only these are taken from the solution without an explicit import.
    """
    used = {node.id for node in nodes if type(node) is ast.Name and type(node.ctx) is ast.Load}
    return sorted(name for name in used - _bound_at_top(tree) if not hasattr(builtins, name))


def _only_for_attributes(name: str, nodes: list[ast.AST]) -> bool:
    """Return True if a name is only used as `name.attribute`."""
    uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
    owners = (node.value for node in nodes if isinstance(node, ast.Attribute))
    return uses == sum(isinstance(owner, ast.Name) and owner.id == name for owner in owners)


def _bound_at_top(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        else:
            for inner in nodes_of(node):
                if isinstance(inner, ast.alias):
                    names.add((inner.asname or inner.name).partition(".")[0])
                elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    names.add(inner.id)
    return names


_NAMED_BY_PYTEST = re.compile(r"\b(?:fixture|pytestmark|pytest_\w+|set_?[uU]p\w*|tear_?[dD]own\w*|skip\w*|xfail)\b")


def _is_plain(text: str, tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Return True if all tests are module-level functions without any feature of pytest.

    Such tests can be run by calling them one after another.
    """
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


def _has_static_skips(tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Return True if no mark that skips tests uses a name of the solution."""
    froms = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    words = {"skip", *(alias.asname for alias in froms if alias.asname and "skip" in alias.name.lower())}
    safe = {*_modules(nodes), "pytest", *dir(builtins), *_imported(nodes, "pytest"), *_imported(nodes, "unittest")}
    inner = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)
    candidates: list[ast.AST] = [statement for statement in tree.body if not isinstance(statement, inner)]
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            candidates += [statement for statement in node.body if not isinstance(statement, inner)]
        candidates += node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return all(
        _loads(candidate) <= safe for candidate in candidates if any(word in ast.dump(candidate) for word in words)
    )


def _own_lines(nodes: list[ast.AST]) -> list[int]:
    """Return the lines that use no name of the solution and so raise without it."""
    if not any(isinstance(node, ast.With | ast.AsyncWith) for node in nodes):
        return []
    safe = {*_modules(nodes), *dir(builtins)}
    last = {node.lineno: node for node in nodes if isinstance(node, ast.stmt)}
    return [line for line, node in last.items() if isinstance(node, ast.Raise) or _loads(node) <= safe]


def _loads(node: ast.AST) -> set[str]:
    """Return the names that code reads, including those in conditions given as strings."""
    nodes = nodes_of(node)
    names = {inner.id for inner in nodes if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)}
    for inner in nodes:
        if isinstance(inner, ast.Call) and "skipif" in ast.dump(inner.func) and inner.args:
            condition = getattr(inner.args[0], "value", None)
            names |= _loads(ast.parse(condition)) if isinstance(condition, str) else set()
    return names


# What cannot be judged


def _refusal(tree: ast.Module, nodes: list[ast.AST], from_solution: set[str], replaced: set[str]) -> str:
    """Return what cannot be judged with the solution in another process, or an empty text."""
    reasons = (
        *(why for node in nodes if (why := _refused(node, from_solution))),
        *(f"tests that replace {name}" for name in sorted(replaced) if not _MIRRORED.fullmatch(name)),
        *(why for node in tree.body if (why := _not_a_test(node, from_solution))),
    )
    return next(iter(reasons), "")


def _imported(nodes: list[ast.AST], module: str) -> set[str]:
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == module]
    return {alias.asname or alias.name for node in froms for alias in node.names}


def _modules(nodes: list[ast.AST]) -> dict[str, str]:
    """Map the names of standard library modules in the test file to their real names."""
    names = {"builtins": "builtins"}
    for alias in (imported for node in nodes if isinstance(node, ast.Import) for imported in node.names):
        first = alias.name.partition(".")[0]
        if first in sys.stdlib_module_names:
            names |= {alias.asname: alias.name} if alias.asname else {first: first}
    return names


def root(node: ast.expr) -> str:
    """Return the first name of `name.attribute(...)[...]`."""
    while not isinstance(node, ast.Name):
        inner = getattr(node, "value", None) or getattr(node, "func", None)
        if not isinstance(inner, ast.expr):
            return ""
        node = inner
    return node.id


def _refused(node: ast.AST, from_solution: set[str]) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        bad = next((name for name in names if name.partition(".")[0] in _NOT_HERE), "")
        return f"tests that use {bad}" if bad else ""
    name = getattr(node, "attr", "") or getattr(node, "id", "")
    if name in _SOURCES or (name == "__init__" and "super" not in ast.dump(node)):
        return f"tests that use {name}"
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(node.value, ast.Yield):
        return "generators that are driven from outside"
    if isinstance(node, ast.ClassDef) and any(root(base) in from_solution for base in node.bases):
        return "classes derived from one of the solution"
    if isinstance(node, ast.Call) and (
        _called(node) == "create_autospec" or any(keyword.arg == "autospec" for keyword in node.keywords)
    ):
        return "tests that use autospec"
    return ""


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _replaced(node: ast.AST, modules: dict[str, str]) -> list[str]:
    """Return the full names that a statement or call replaces and that a solution could see."""
    if isinstance(node, ast.Call):
        name = _replaced_by_call(node, modules)
        return [name] if name and name.partition(".")[0] != "solution" else []
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
        return []
    parts = [part for target in targets for part in getattr(target, "elts", [target])]
    return [name for part in parts if not isinstance(part, ast.Name) and (name := _full_name(part, modules))]


def _replaced_by_call(node: ast.Call, modules: dict[str, str]) -> str:
    name, owner = _called(node), getattr(node.func, "value", None)
    if name in _OF_PROCESS and root(node.func) not in ("self", "cls"):
        return _OF_PROCESS[name]
    if name in _CHANGES and owner is not None and (changed := _full_name(owner, modules)) in _STATES:
        return changed
    of_patch = name in ("dict", "object") and "patch" in ast.dump(node.func)
    if not node.args or not (of_patch or name in ("patch", "setattr", "delattr", "setitem", "delitem")):
        return ""
    target, *others = (getattr(arg, "value", None) for arg in node.args)
    if isinstance(target, str):
        return target
    replaced = _full_name(node.args[0], modules)
    part = "" if name in ("dict", "setitem", "delitem") or not replaced else f".{next(iter(others), None)}"
    return replaced + part


def _full_name(node: ast.expr, modules: dict[str, str]) -> str:
    """Return the full name of a part of a module, or of the part that contains it; else ""."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, _IMPORTED_STATES.get(node.id, ""))
    above = _full_name(node.value, modules) if isinstance(node, ast.Attribute | ast.Subscript) else ""
    return f"{above}.{node.attr}" if above and isinstance(node, ast.Attribute) else above


def _not_a_test(node: ast.stmt, from_solution: set[str]) -> str:
    """Return why a test that pytest would run with the solution cannot run here, or ""."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if any(root(decorator) in from_solution for decorator in node.decorator_list):
            return "tests that the solution decorates"
        if isinstance(node, ast.ClassDef):
            plain = not any("AsyncioTestCase" in ast.dump(base) for base in node.bases)
            inner = (
                statement for statement in node.body if plain or not isinstance(statement, ast.AsyncFunctionDef)
            )
            return next((why for statement in inner if (why := _not_a_test(statement, from_solution))), "")
        return "asynchronous tests" if isinstance(node, ast.AsyncFunctionDef) and node.name[:4] == "test" else ""
    if isinstance(node, ast.ImportFrom) and node.module == "solution":
        return (
            "tests in the solution"
            if any((alias.asname or alias.name)[:4] == "test" for alias in node.names)
            else ""
        )
    return ""
