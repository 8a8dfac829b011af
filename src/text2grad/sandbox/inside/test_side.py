"""The process that holds the tests and, alone, the verdict."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from text2grad.sandbox.inside import frames, remote, rewrite, standin, wire

TEXT_LIMIT = 300


class _Stop(Exception):
    """The job ends here with this outcome."""

    def __init__(self, outcome: str, error: str = "", line: int | None = None) -> None:
        super().__init__(outcome)
        self.outcome, self.error, self.line = outcome, error, line


class _Test(NamedTuple):
    name: str
    call: Callable[..., Any]
    given: dict[str, Any]
    owner: type | None


class _Printed(NamedTuple):
    out: str
    err: str


def judge(reader: int, writer: int, verdict: int, tests: str, coverage: bool) -> None:
    """Run the tests against the solution at the other end, and write results to `verdict` as they come.

    Frames on `verdict`: `{"collected": n}`, `{"result": {...}}` a test, `{"end": {outcome, error, line}}`.
    """
    session = _Session(wire.Peer(reader, writer, first=0, wary=True, guard=guard), verdict, coverage)
    try:
        session.load()
        session.collect(tests)
        end = session.run()
    except _Stop as stop:
        end = stop
    except wire.Gone as gone:
        end = _crash(gone)
    except wire.Unsupported as error:
        end = _Stop("unsupported", str(error))
    if session.peer.broken and end.outcome != "crashed":
        end = _crash(wire.Gone(session.peer.broken))
    frames.send(verdict, {"end": {"outcome": end.outcome, "error": end.error, "line": end.line}})


def _crash(gone: wire.Gone) -> _Stop:
    words = "the program ended its process before a verdict"
    return _Stop("crashed", words if "is gone" in str(gone) else f"the program broke off: {gone}")


def guard(op: str, target: Any, name: str) -> bool:
    """What the solution may do to an object of the tests: call what it was given; touch public names of instances
    of the tests' own classes; go on with an iterator. Nothing that leads to frames, globals or the verdict."""
    if op == "call":
        return not isinstance(target, types.ModuleType)
    if op in ("get", "set", "del"):
        return wire.of_the_tests(target) and not name.startswith("_")
    if op == "op":
        return name in remote.OPERATIONS and (wire.of_the_tests(target) or name in ("__next__", "__iter__"))
    return False


class _Session:
    def __init__(self, peer: wire.Peer, verdict: int, coverage: bool) -> None:
        self.peer = peer
        self._verdict = verdict
        self._coverage = coverage
        self._operands = rewrite.Operands()
        self._space: dict[str, Any] = {}
        self._solution: Any = None
        self._fixtures: dict[str, Any] = {}
        self._kept: dict[Any, Any] = {}
        self._endings: list[Iterator[Any]] = []
        self._tests: list[_Test] = []
        self._count = 0
        self._own: set[str] = set()
        self._printed = io.StringIO()

    def load(self) -> None:
        """Wait for the solution to have loaded."""
        message = self.peer.receive()
        if "e" in message:
            error = self.peer.read_error(message["e"])
            raise _Stop("broken", describe(error), wire.solution_line(error))
        self._solution = message["v"]

    def collect(self, tests: str) -> None:
        """Load the test file and list its tests."""
        try:
            tree = ast.parse(tests)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _Stop("bad_tests", describe(error)) from error
        nodes = rewrite.nodes_of(tree)
        if what := rewrite.unsupported(nodes):
            raise _Stop("unsupported", what)
        self._execute(tree, nodes)
        self._find(vars(sys.modules[wire.TESTS_MODULE]))
        self._send({"collected": len(self._tests)})

    def _execute(self, tree: ast.Module, nodes: list[ast.AST]) -> None:
        module = types.ModuleType(wire.TESTS_MODULE)
        sys.modules[wire.TESTS_MODULE] = module
        sys.modules["solution"] = _SolutionModule(self._solution)
        sys.modules["pytest"] = standin
        sys.stdout = sys.stderr = self._printed
        rewrite.without_star_imports(tree)
        self._space = module.__dict__
        used = rewrite.wanted_names(tree, nodes)
        for name in self.peer.request("names", None, args=(used,)) if used else ():
            self._space[str(name)] = getattr(self._solution, str(name))
        if any(type(node) is ast.Attribute and node.attr == "seed" for node in nodes):
            self._seed_both()
        self._space.update(self._operands.names())
        before = dict(self._space)
        try:
            rewrite.Asserts(self._operands).rewrite(nodes)
            exec(compile(tree, "<tests>", "exec", dont_inherit=True), self._space)
        except (wire.Gone, wire.Unsupported):
            raise
        except BaseException as error:
            raise self._load_failure(error) from error
        self._own = {name for name, value in self._space.items() if before.get(name) is not value}

    def _load_failure(self, error: BaseException) -> _Stop:
        """Whose fault it is that the test file does not load."""
        text = describe(error)
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "solution":
            return _Stop("broken", text)  # the program lacks what was asked
        if isinstance(error, ImportError | standin.NotSupported | standin.Skipped):
            return _Stop("unsupported", text)
        if came_over(error):
            return _Stop("broken", text, wire.solution_line(error))
        return _Stop("bad_tests", text)

    def _seed_both(self) -> None:
        """Tests that seed a generator of random numbers mean the solution's too."""
        import random

        plain = random.seed

        def seed(value: Any = None, *args: Any) -> None:
            plain(value, *args)
            self.peer.request("seed", None, args=(value, False))

        random.seed = seed  # type: ignore[assignment]
        np = sys.modules.get("numpy")
        if np is not None:
            arrays = np.random.seed

            def seed_arrays(value: Any = None) -> None:
                arrays(value)
                self.peer.request("seed", None, args=(value, True))

            np.random.seed = seed_arrays

    # What there is

    def _find(self, space: dict[str, Any]) -> None:
        for name in [name for name in space if name in self._own]:
            value = space[name]
            if isinstance(value, types.FunctionType):
                self._find_function(name, value)
            elif isinstance(value, type) and value.__module__ == wire.TESTS_MODULE:
                if issubclass(value, _of_unittest("TestCase")):
                    self._find_cases(value)
                elif name.startswith("Test"):
                    self._find_methods(value)

    def _find_function(self, name: str, value: types.FunctionType) -> None:
        if hasattr(value, "_t2g_fixture"):
            self._fixtures[value._t2g_fixture[2]] = value
        elif name.startswith("test"):
            self._add(name, value, value)

    def _find_methods(self, owner: type) -> None:
        for name in dir(owner):
            value = remote.special(owner, name)
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if hasattr(plain, "_t2g_fixture"):
                self._fixtures[plain._t2g_fixture[2]] = plain
            elif name.startswith("test") and callable(plain):
                self._add(f"{owner.__name__}::{name}", plain, getattr(owner, name), owner)

    def _find_cases(self, owner: Any) -> None:
        import unittest

        for name in unittest.TestLoader().getTestCaseNames(owner):
            call = functools.partial(_run_case, owner, name)
            self._tests.append(_Test(f"{owner.__name__}::{name}", call, {}, None))

    def _add(self, name: str, marked: Any, call: Callable[..., Any], owner: type | None = None) -> None:
        for suffix, given, left_out in standin.expanded(marked, owner):
            if not left_out:
                self._tests.append(_Test(name + suffix, call, given, owner))

    # How it runs

    def run(self) -> _Stop:
        """Run every test; the outcome of all."""
        passed = 0
        run = 0
        for test in self._tests:
            result = self._result(test)
            if result is None:
                continue
            run += 1
            passed += result["passed"]
            self._send({"result": result})
        if not run:
            return _Stop("no_tests", "no test in the test file")
        return _Stop("passed" if passed == run else "failed")

    def _result(self, test: _Test) -> dict[str, Any] | None:
        self._operands.last = {}
        error: BaseException | None = None
        self._coverage and self.peer.request("begin", None)
        try:
            self._call(test)
        except (wire.Gone, wire.Unsupported):
            raise
        except standin.NotSupported as what:
            raise wire.Unsupported(str(what)) from what
        except BaseException as raised:
            if isinstance(raised, (standin.Skipped, *_of_unittest("SkipTest"))) and not came_over(raised):
                self._send({"skipped": test.name})
                return None
            error = raised
        lines = self.peer.request("lines", None) if self._coverage else []
        result = {"name": test.name, "passed": error is None, "lines": _line_numbers(lines)}
        if error is not None:
            result |= {"error": describe(error), "line": wire.solution_line(error)}
            if isinstance(error, AssertionError) and not came_over(error):
                result |= self._operands.last
        return result

    def _call(self, test: _Test) -> None:
        self._endings = []
        self._count += 1
        owner = test.owner() if test.owner else None
        try:
            self._set_up(owner, "setup")
            for name, fixture in self._fixtures.items():
                if fixture._t2g_fixture[1]:
                    self._fixture(name, owner)
            call = test.call if owner is None else getattr(owner, test.name.partition("::")[2].partition("[")[0])
            found = {name: self._fixture(name, owner) for name in _parameters(call) if name not in test.given}
            result = call(**found, **test.given)
            if type(result) is remote.COROUTINE:
                import asyncio

                asyncio.run(result)
        finally:
            self._tear_down(owner)

    def _set_up(self, owner: Any, word: str) -> None:
        """The old way of fixtures: `setup_method`, `setup_function` and their like."""
        if owner is None:
            _call_if_there(self._space.get(f"{word}_function"))
            return
        kind = type(owner)
        if kind not in self._kept:
            self._kept[kind] = True
            _call_if_there(getattr(kind, f"{word}_class", None))
        _call_if_there(getattr(owner, f"{word}_method", None))

    def _tear_down(self, owner: Any) -> None:
        for ending in reversed(self._endings):
            with contextlib.suppress(StopIteration):
                next(ending)
        if owner is None:
            _call_if_there(self._space.get("teardown_function"))
        else:
            _call_if_there(getattr(owner, "teardown_method", None))

    def _fixture(self, name: str, owner: Any) -> Any:
        if name in _BUILT_IN and name not in self._fixtures:
            return _BUILT_IN[name](self)
        if name not in self._fixtures:
            raise wire.Unsupported(f"the fixture {name!r}")
        made = self._fixtures[name]
        scope = made._t2g_fixture[0]
        key = (name, self._count if scope == "function" else type(owner) if scope == "class" else None)
        if key not in self._kept:
            self._kept[key] = self._made(made, owner, scope)
        return self._kept[key]

    def _made(self, function: Any, owner: Any, scope: str) -> Any:
        names = _parameters(function, with_defaults=True)
        args = [owner] if names[:1] == ["self"] else []
        value = function(*args, **{name: self._fixture(name, owner) for name in names if name != "self"})
        if type(value) is remote.GENERATOR:
            if scope == "function":
                self._endings.append(value)
            return next(value)
        return value

    # Fixtures of pytest's own

    def capsys(self) -> Any:
        """What the tests and the solution print."""
        self.readouterr()
        return types.SimpleNamespace(readouterr=self.readouterr)

    def readouterr(self) -> _Printed:
        """What was printed since the last call; standard output and standard error are one."""
        text = self._printed.getvalue() + str(self.peer.request("output", None))
        self._printed.seek(0)
        self._printed.truncate()
        return _Printed(text, "")

    def _send(self, message: dict[str, Any]) -> None:
        frames.send(self._verdict, message)


class _MonkeyPatch:
    """Changes that are taken back when the test ends."""

    def __init__(self, session: _Session) -> None:
        self._undo: list[Callable[[], Any]] = []
        session._endings.append(self._ending())

    def _ending(self) -> Iterator[None]:
        for undo in reversed(self._undo):
            undo()
        yield

    def setattr(self, target: Any, name: Any, value: Any = None, raising: bool = True) -> None:
        """Set an attribute."""
        if isinstance(target, str):
            raise standin.NotSupported("monkeypatch.setattr with a dotted name")
        old = getattr(target, name)
        self._undo.append(lambda: setattr(target, name, old))
        setattr(target, name, value)

    def setitem(self, target: Any, name: Any, value: Any) -> None:
        """Set an item."""
        had, old = name in target, target.get(name)
        self._undo.append(lambda: target.__setitem__(name, old) if had else target.pop(name, None))
        target[name] = value

    def __getattr__(self, name: str) -> Any:
        raise standin.NotSupported(f"monkeypatch.{name}")


_BUILT_IN: dict[str, Callable[[_Session], Any]] = {
    "capsys": _Session.capsys,
    "tmp_path": lambda session: _temporary_folder(),
    "monkeypatch": _MonkeyPatch,
}


class _SolutionModule(types.ModuleType):
    """`import solution` in the tests: every name is asked of the solution."""

    def __init__(self, stand_in: Any) -> None:
        super().__init__("solution")
        self.__dict__["_t2g_stand_in"] = stand_in

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_t2g_stand_in"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self.__dict__["_t2g_stand_in"], name, value)


def _run_case(owner: Any, name: str) -> None:
    if not owner.__dict__.get("_t2g_class_is_set_up"):
        owner._t2g_class_is_set_up = True
        owner.setUpClass()
    owner(name).debug()


def _call_if_there(function: Any) -> None:
    if function is not None:
        function(*[None] * len(_parameters(function)))


def _of_unittest(name: str) -> tuple[type, ...]:
    """That class of unittest, where the tests have imported it."""
    module = sys.modules.get("unittest")
    return (getattr(module, name),) if module else ()


def _temporary_folder() -> Any:
    import pathlib
    import tempfile

    return pathlib.Path(tempfile.mkdtemp())


def _parameters(call: Any, with_defaults: bool = False) -> list[str]:
    """What a function wants by name; without `with_defaults` only what has no default."""
    bound = 1 if isinstance(call, types.MethodType) else 0
    plain = call.__func__ if bound else call
    if type(plain) is not types.FunctionType or hasattr(plain, "__wrapped__"):
        return _signature(call, with_defaults)
    code, defaults = plain.__code__, len(plain.__defaults__ or ())
    last = code.co_argcount if with_defaults else code.co_argcount - defaults
    keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    has_default = () if with_defaults else plain.__kwdefaults__ or ()
    first = max(bound, code.co_posonlyargcount)
    return [*code.co_varnames[first:last], *(name for name in keywords if name not in has_default)]


def _signature(call: Any, with_defaults: bool) -> list[str]:
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = [each for each in inspect.signature(call).parameters.values() if each.kind in kinds]
    return [each.name for each in found if with_defaults or each.default is inspect.Parameter.empty]


def _line_numbers(lines: Any) -> list[int]:
    return [line for line in lines if type(line) is int] if isinstance(lines, list) else []


def came_over(error: BaseException) -> bool:
    """Whether an exception was raised by the solution."""
    return wire.LINE in getattr(error, "__dict__", {})


def describe(error: BaseException) -> str:
    """One line about an exception."""
    try:
        return f"{type(error).__name__}: {error}"[:TEXT_LIMIT]
    except Exception:
        return type(error).__name__
