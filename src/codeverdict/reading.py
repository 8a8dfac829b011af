"""A test file before it runs: what in it cannot be judged, and what those who run it have to know
of it."""

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
from codeverdict.inside.test_side import MENTIONS, NOTE, TEST_FILE
from codeverdict.inside.values import TEXT_LIMIT, describe
from codeverdict.results import Outcome

_TOOLS = "math cmath re itertools functools collections operator string random json heapq bisect statistics copy"
_COMMON = {*_TOOLS.split(), "numpy", "np"}
"""Names of modules that a test file has from a star import: it gets the modules themselves."""

_SYMBOLS: dict[type[ast.cmpop], str] = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
    **{ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"},
}
_MENTIONS = ("pytest", *MENTIONS)
_REMEMBERED = 64  # test files: those of a batch of programs
_READING = threading.Lock()
"""One test file at a time: neither Python's warnings nor the parser of 3.11 are safe in threads."""
_PLACE = ("lineno", "col_offset", "end_lineno", "end_col_offset")
_LOAD = ast.Load()
_MODULES_AWAY = "subprocess multiprocessing socket ctypes signal pexpect pickle marshal shelve gc"
_NOT_HERE = frozenset(_MODULES_AWAY.split())
_READ = "getsource getsourcelines getsourcefile getfile reload get_type_hints signature __annotations__"
_SOURCES = frozenset(_READ.split())
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
"""Parts of the standard library that tests may replace: the solution has the replacement too."""
_OUTPUT = ("sys.stdout", "sys.stderr")
"""Streams whose replacement gets the output of the solution."""


@dataclass(frozen=True)
class TestFile:
    """A test file, read before anything of a program is known: once, whatever it is to judge.

    `taken`: the names that it takes from the solution. `words` go to the process that runs it:
    `code` (marshalled, its asserts noting their operands), `wanted` (names taken from the program
    unasked), `modules` (those of them that are modules), `own` (lines that raise by themselves),
    `plain` (functions to be called one after the other), `fixed` (no program has a say in what is
    left out), `mentions` (words in it that matter to them). Without words it cannot be judged:
    `outcome` and `error` say why.
    """

    __test__ = False

    words: dict[str, Any] = field(default_factory=dict)
    taken: tuple[str, ...] = ()
    outcome: Outcome = "passed"
    error: str = ""
    _frames: dict[tuple[bool, bool], bytes] = field(default_factory=dict, compare=False, repr=False)

    def frame(self, coverage: bool, lenient: bool) -> bytes:
        """What the process that runs it is to know of it and of the job, as it lies in a file."""
        how = (coverage, lenient)
        if how not in self._frames:
            self._frames[how] = frames.held({**self.words, "coverage": coverage, "lenient": lenient})
        return self._frames[how]

    @property
    def needs_pytest(self) -> bool:
        """Whether pytest runs it, or it speaks of pytest."""
        return not self.words["plain"] or "pytest" in self.words["mentions"]


@functools.lru_cache(maxsize=_REMEMBERED)
def read(tests: str) -> TestFile:
    """Read a test file."""
    try:
        with _READING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler's, about somebody's tests
            return _read(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return TestFile(outcome="bad_tests", error=describe(error))


def _read(tests: str) -> TestFile:
    tree = ast.parse(tests)
    nodes = nodes_of(tree)
    wanted = wanted_names(tree, nodes)
    replaced = {name for node in nodes for name in _replaced(node, _modules(nodes))} - {*_OUTPUT}
    if what := _refusal(tree, nodes, {*wanted, *_imported(nodes, "solution"), "solution"}, replaced):
        return TestFile(outcome="unsupported", error=what)
    words: dict[str, Any] = {
        "replaced": sorted(replaced),
        "mentions": [each for each in _MENTIONS if each in tests],
        "wanted": wanted,
    }
    words["own"] = _own_lines(nodes)
    words["modules"] = [each for each in wanted if each in _COMMON and _only_for_attributes(each, nodes)]
    words |= {"plain": _is_plain(tests, tree, nodes), "fixed": _has_static_skips(tree, nodes)}
    _without_star_imports(tree)
    for node in nodes:
        if type(node) is ast.Assert:
            node.test = _noting(node.test)
    code = marshal.dumps(compile(tree, TEST_FILE, "exec", dont_inherit=True))
    return TestFile({**words, "code": code.decode("latin-1")}, _taken(nodes, wanted))


def _taken(nodes: list[ast.AST], wanted: list[str]) -> tuple[str, ...]:
    imports = [each for node in nodes if isinstance(node, ast.Import) for each in node.names]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "solution"]
    modules = {each.asname or each.name for each in imports if each.name == "solution"}
    names = [each.name for node in froms for each in node.names if each.name != "*"]
    names += [node.attr for node in nodes if isinstance(node, ast.Attribute) and root(node.value) in modules]
    return tuple(dict.fromkeys([*names, *wanted]))


def _noting(test: ast.expr) -> ast.expr:
    """What an assert states, so that its operands are noted when it fails; nothing else changes."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        test.values = [_noting(value) for value in test.values]
        return test
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _note(_SYMBOLS[type(test.ops[0])], test, test.left, *test.comparators)
    return _note("", test, test)


def _shown_as(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:TEXT_LIMIT]
    except RecursionError:
        return "..."


def _note(symbol: str, place: ast.expr, left: ast.expr, *right: ast.expr) -> ast.expr:
    at = {key: getattr(place, key) for key in _PLACE}
    words = [ast.Constant(value, **at) for value in (_shown_as(left), symbol)]
    return ast.Call(func=ast.Name(id=NOTE, ctx=_LOAD, **at), args=[*words, left, *right], keywords=[], **at)


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """The node and all below it, outer ones first, without operators and contexts. (`ast.walk`
    costs a test file's processor time twice over.)"""
    found = [tree]
    for node in found:  # grows
        for value in node.__dict__.values():
            if type(value) is list:
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                found.append(value)
    return found


def _without_star_imports(tree: ast.Module) -> None:
    """Take `from solution import *` out: what the tests use is put in their namespace by name
    (`wanted_names`).

    A star would let the solution replace `len`, `isinstance` or `approx` in the tests.
    """
    stars = [each for each in tree.body if isinstance(each, ast.ImportFrom) and each.names[0].name == "*"]
    others = [each for each in tree.body if each not in stars or vars(each)["module"] != "solution"]
    tree.body = others or [ast.Pass(lineno=1, col_offset=0)]


def wanted_names(tree: ast.Module, nodes: list[ast.AST]) -> list[str]:
    """Names that the tests use and neither define nor import: only these are taken from the
    solution unasked."""
    used = {node.id for node in nodes if type(node) is ast.Name and type(node.ctx) is ast.Load}
    return sorted(name for name in used - _bound_at_top(tree) if not hasattr(builtins, name))


def _only_for_attributes(name: str, nodes: list[ast.AST]) -> bool:
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


def _is_plain(text: str, tree: ast.Module, nodes: list[ast.AST]) -> bool:
    """Whether the tests are plain functions at the top of the file, and nothing is there that
    pytest would look for: to run these is to call them one after the other."""
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


def _own_lines(nodes: list[ast.AST]) -> list[int]:
    """Lines that raise an exception by themselves, where they do: no name on them can be of the
    solution."""
    if not any(isinstance(node, ast.With | ast.AsyncWith) for node in nodes):
        return []
    known = {*_modules(nodes), *dir(builtins)}
    last = {node.lineno: node for node in nodes if isinstance(node, ast.stmt)}
    return [line for line, node in last.items() if isinstance(node, ast.Raise) or _loads(node) <= known]


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


def _refusal(tree: ast.Module, nodes: list[ast.AST], taken: set[str], replaced: set[str]) -> str:
    """What in a test file cannot be judged with the solution in another process, "" if nothing."""
    reasons = (
        *(why for node in nodes if (why := _refused(node, taken))),
        *(f"tests that replace {name}" for name in sorted(replaced) if not _MIRRORED.fullmatch(name)),
        *(why for node in tree.body if (why := _not_a_test(node, taken))),
    )
    return next(iter(reasons), "")


def _imported(nodes: list[ast.AST], module: str) -> set[str]:
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == module]
    return {alias.asname or alias.name for node in froms for alias in node.names}


def _modules(nodes: list[ast.AST]) -> dict[str, str]:
    """The names by which the test file knows modules of the standard library -> their own."""
    found = {"builtins": "builtins"}
    for alias in (each for node in nodes if isinstance(node, ast.Import) for each in node.names):
        first = alias.name.partition(".")[0]
        if first in sys.stdlib_module_names:
            found |= {alias.asname: alias.name} if alias.asname else {first: first}
    return found


def root(node: ast.expr) -> str:
    """The first name of `name.attribute(...)[...]`."""
    while not isinstance(node, ast.Name):
        inner = getattr(node, "value", None) or getattr(node, "func", None)
        if not isinstance(inner, ast.expr):
            return ""
        node = inner
    return node.id


def _refused(node: ast.AST, taken: set[str]) -> str:
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
    if isinstance(node, ast.Call) and (
        _called(node) == "create_autospec" or any(each.arg == "autospec" for each in node.keywords)
    ):
        return "tests that use autospec"
    return ""


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _replaced(node: ast.AST, modules: dict[str, str]) -> list[str]:
    """The full names of what a statement or a call replaces that the solution would see in one
    process."""
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
    target, *others = (getattr(each, "value", None) for each in node.args)
    if isinstance(target, str):
        return target
    replaced = _full_name(node.args[0], modules)
    part = "" if name in ("dict", "setitem", "delitem") or not replaced else f".{next(iter(others), None)}"
    return replaced + part


def _full_name(node: ast.expr, modules: dict[str, str]) -> str:
    """The full name of a part of a module, also where something in it is meant; "" of anything
    else."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, _IMPORTED_STATES.get(node.id, ""))
    above = _full_name(node.value, modules) if isinstance(node, ast.Attribute | ast.Subscript) else ""
    return f"{above}.{node.attr}" if above and isinstance(node, ast.Attribute) else above


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
