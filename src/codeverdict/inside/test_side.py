"""The process that holds the tests and, alone, the verdict."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any, NamedTuple

from codeverdict.inside import (
    asked,
    fixtures,
    frames,
    guard,
    kinds,
    mirror,
    operations,
    parameters,
    raised,
    remote,
    resumed,
    rewrite,
    rpc,
    standin,
    taint,
    values,
)


class _Stop(Exception):
    """The job ends here with this outcome."""

    def __init__(self, outcome: str, error: str = "", line: int | None = None) -> None:
        super().__init__(outcome)
        self.outcome, self.error, self.line = outcome, error, line


class _Test(NamedTuple):
    """A case of a test; `chosen`: which parameter of each fixture that has some; `indirect`: what fixtures get."""

    name: str
    call: Callable[..., Any]
    given: dict[str, Any]
    owner: type | None
    chosen: dict[str, int] = MappingProxyType({})  # type: ignore[assignment]
    indirect: dict[str, Any] = MappingProxyType({})  # type: ignore[assignment]
    uses: tuple[str, ...] = ()


class _Printed(NamedTuple):
    out: str
    err: str


def judge(source: int, reader: int, writer: int, verdict: int) -> None:
    """Run the tests that come from `source` against the solution at the other end, and write results to `verdict`
    as they come.

    Frames on `verdict`: `{"collected": n}`, `{"result": {...}}` a test, `{"end": {outcome, error, line}}`.
    """
    job = frames.receive_once(source)
    sys.setrecursionlimit(rpc.DEEP)
    session = Session(rpc.Peer(reader, writer, first=0, wary=True, guard=guard.guard), verdict, job["coverage"])
    try:
        session.read(job["tests"])
        session.load()
        session.collect(job["tests"])
        end = session.run()
    except _Stop as stop:
        end = stop
    except rpc.Gone as gone:
        end = _crash(gone)
    except rpc.Unsupported as error:
        end = _Stop("unsupported", str(error))
    if session.peer.broken and end.outcome != "crashed":
        end = _crash(rpc.Gone(session.peer.broken))
    frames.send(verdict, {"end": {"outcome": end.outcome, "error": end.error, "line": end.line}})


def _crash(gone: rpc.Gone) -> _Stop:
    words = "the program ended its process before a verdict"
    return _Stop("crashed", words if "is gone" in str(gone) else f"the program broke off: {gone}")


_FILE = "<tests>"
_COMMON = {
    **{
        name: name
        for name in ("math", "cmath", "re", "itertools", "functools", "collections", "operator", "string")
    },
    **{name: name for name in ("random", "json", "heapq", "bisect", "statistics", "copy", "numpy")},
    "np": "numpy",
}
"""Names of modules that a test file has from a star import: it gets the modules themselves."""


class Session:
    def __init__(self, peer: rpc.Peer, verdict: int, coverage: bool) -> None:
        self.peer = peer
        self._verdict = verdict
        self._coverage = coverage
        self._operands = rewrite.Operands()
        self._space: dict[str, Any] = {}
        self._solution: Any = None
        self._fixtures: dict[str, Any] = {}
        self._of_classes: dict[type, dict[str, Any]] = {}
        self._kept: dict[Any, Any] = {}
        self.endings: list[Iterator[Any]] = []
        self._tests_text = ""
        self._tests: list[_Test] = []
        self._found: dict[str, Any] = {}
        self._cases: list[tuple[str, Callable[..., Any], dict[str, Any], type | None, Any]] = []
        self.test, self._instance = _Test("", print, {}, None), None
        self._count = 0
        self._own: set[str] = set()
        self._printed = io.StringIO(), io.StringIO()
        peer.swallowed = self._swallowed
        self.mirror = mirror.Mirror(peer)

    def read(self, tests: str) -> None:
        """Read the test file, before anything of the solution is known."""
        try:
            self._tree = ast.parse(tests)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _Stop("bad_tests", values.describe(error)) from error
        self._nodes = rewrite.nodes_of(self._tree)
        self.classes = rewrite.class_names(tests, self._nodes)
        self._taint = taint.Taint(tests, self._tree, self._nodes)
        if what := rewrite.unsupported(self._nodes):
            raise _Stop("unsupported", what)

    def load(self) -> None:
        """Wait for the solution to have loaded."""
        message = self.peer.receive()
        if "e" in message:
            error = self.peer.read_error(message["e"])
            raise _Stop("broken", values.describe(error), raised.solution_line(error))
        self._solution = message["v"]

    def collect(self, tests: str) -> None:
        """Load the test file and list its tests."""
        self._tests_text = tests
        self._execute()
        self._find(vars(sys.modules[kinds.TESTS_MODULE]))
        for name in sorted(self._taint.conditional - self._space.keys()):
            self._tests.append(_Test(name, _left_out_by_the_solution, {}, None))
        self._expand()
        self._send({"collected": len(self._tests)})

    def _execute(self) -> None:
        tree, nodes = self._tree, self._nodes
        module = types.ModuleType(kinds.TESTS_MODULE)
        sys.modules[kinds.TESTS_MODULE] = module
        sys.modules["solution"] = _SolutionModule(self._solution, self.classes)
        sys.modules["pytest"] = standin
        sys.stdout, sys.stderr = self._printed
        warnings.simplefilter("always")
        warnings.showwarning = lambda *_: None
        rewrite.without_star_imports(tree)
        self._space = module.__dict__
        used = rewrite.wanted_names(tree, nodes)
        for name in [name for name in used if name in _COMMON and rewrite.only_for_attributes(name, nodes)]:
            used.remove(name)
            self._space[name] = __import__(_COMMON[name])
        for name in self._names(used):
            self._space[name] = remote.declare(getattr(self._solution, name), name, name in self.classes)
        self._space.update({**self._operands.names(), rewrite.SUPER: _super})
        self._prepare(self._tests_text)
        before = dict(self._space)
        try:
            rewrite.Asserts(self._operands).rewrite(nodes)
            exec(compile(tree, _FILE, "exec", dont_inherit=True), self._space)
        except (rpc.Gone, rpc.Unsupported):
            raise
        except BaseException as error:
            raise self._load_failure(error) from error
        self._own = {name for name, value in self._space.items() if before.get(name) is not value}

    def _names(self, used: list[str]) -> list[str]:
        """Those of these names that the solution defines."""
        found = self.peer.request("names", None, args=(used,)) if used else []
        if type(found) is not list or not all(type(name) is str and name in used for name in found):
            raise rpc.Gone("names that nobody asked for")
        return found

    def _load_failure(self, error: BaseException) -> _Stop:
        """Who is at fault when the test file does not load."""
        text = values.describe(error)
        if came_over(error) or self.peer.came or (self.peer.asked and not isinstance(error, ImportError)):
            return _Stop("broken", text, raised.solution_line(error))
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "solution":
            return _Stop("broken", text)  # the program lacks what was asked
        if isinstance(error, ImportError | standin.NotSupported | standin.Skipped):
            return _Stop("unsupported", text)
        return _Stop("bad_tests", text)

    def _prepare(self, tests: str) -> None:
        """Make what a test file names work on the solution too."""
        if "super()" in tests:
            rewrite.name_classes_above(self._nodes)
        if "seed" in tests:
            self.mirror.seed_both()
        if "env" in tests or "stdin" in tests:
            self.mirror.watch_process()
        if "mock" in tests:
            self.mirror.patch_both()
        if "StopIteration" in tests and "unittest" in sys.modules:
            _expect_ends()
        if "caplog" in tests or "assertLogs" in tests or "logging" in tests:
            self.mirror.log_both()
        if "threading" in tests:
            self.mirror.watch_threads()
        if "isinstance" in tests.lower():
            self._space |= {"isinstance": remote.is_instance, "issubclass": remote.is_subclass}
            if "unittest" in sys.modules:
                vars(sys.modules["unittest.case"])["isinstance"] = remote.is_instance
        elif "issubclass" in tests:
            self._space["issubclass"] = remote.is_subclass
        for module, names in _LOOK_INTO.items():
            for name in names if module in tests else ():
                holder = __import__(module)
                setattr(holder, name, _asking(getattr(holder, name), module, name))

    # What there is

    def _find(self, space: dict[str, Any]) -> None:
        for name in [name for name in space if name in self._own or name in self._taint.decorated]:
            value = space[name]
            node = self._taint.wrapped.get(name)
            if node is not None and isinstance(value, types.FunctionType) and rewrite.is_of(value.__code__, node):
                del self._taint.wrapped[name]  # it was given back as it is
            if name in self._taint.wrapped and name.startswith("test"):
                self._add(name, value, parameters.as_written(value, self._taint.wrapped[name]))
            elif isinstance(value, types.FunctionType):
                self._find_function(name, value)
            elif isinstance(value, type) and value.__module__ == kinds.TESTS_MODULE:
                if issubclass(value, _of_unittest("TestCase")):
                    self._find_cases(value)
                elif name.startswith("Test"):
                    self._find_methods(value)

    def _find_function(self, name: str, value: types.FunctionType) -> None:
        if hasattr(value, "_cdv_fixture"):
            self._fixtures[value._cdv_fixture.name] = value
        elif name.startswith("test"):
            self._add(name, value, value)

    def _find_methods(self, owner: type) -> None:
        own = [base for base in owner.__mro__ if base.__module__ == kinds.TESTS_MODULE]
        for name in sorted({name for base in own for name in base.__dict__}):
            value = operations.special(owner, name)
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if hasattr(plain, "_cdv_fixture"):
                self._of_classes.setdefault(owner, {})[plain._cdv_fixture.name] = plain
            elif name.startswith("test") and callable(plain):
                self._add(f"{owner.__name__}::{name}", plain, getattr(owner, name), owner)

    def _find_cases(self, owner: Any) -> None:
        import unittest

        names = [name for name in unittest.TestLoader().getTestCaseNames(owner)]
        for name in [each for each in names if not _expects_failure(getattr(owner, each))]:
            call = functools.partial(_run_case, owner, name)
            self._tests.append(_Test(f"{owner.__name__}::{name}", call, {}, None))

    def _add(self, name: str, marked: Any, call: Callable[..., Any], owner: type | None = None) -> None:
        cases = list(standin.expanded(marked, owner))
        if not cases and name.rpartition("::")[2] in self._taint.decorated:
            self._tests.append(_Test(name, _left_out_by_the_solution, {}, None))
        for suffix, given, left_out in cases:
            conditional = name.rpartition("::")[2] in self._taint.decorated or (
                owner is not None and owner.__name__ in self._taint.classes
            )
            if left_out == standin.ON_A_CONDITION and conditional:
                self._tests.append(_Test(name + suffix, _left_out_by_the_solution, {}, None))
            elif not left_out:
                self._cases.append((name + suffix, call, given, owner, marked))

    def _expand(self) -> None:
        """A test for each parameter of the fixtures it takes; known only when all fixtures are."""
        for name, call, given, owner, marked in self._cases:
            plain = {each: value for each, value in given.items() if not isinstance(value, standin.Indirect)}
            indirect = {each: value.value for each, value in given.items() if each not in plain}
            known = self._fixtures_for(owner)
            uses = (*getattr(marked, "_cdv_uses", ()), *getattr(owner, "_cdv_uses", ()))
            try:
                needed = [each for each in self._needed(call, plain, uses, known) if each in known]
            except rpc.Unsupported:
                if name.rpartition("::")[2].partition("[")[0] not in self._taint.decorated:
                    raise
                self._tests.append(_Test(name, _left_out_by_the_solution, {}, None))
                continue
            choices = [(each, known[each]._cdv_fixture.params) for each in needed if each not in indirect]
            choices = [(each, params) for each, params in choices if params]
            for numbers in itertools.product(*(range(len(params)) for _, params in choices)):
                chosen = {each: number for (each, _), number in zip(choices, numbers, strict=True)}
                suffix = f"[{'-'.join(map(str, numbers))}]" if numbers else ""
                self._tests.append(_Test(name + suffix, call, plain, owner, chosen, indirect, uses))

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
        if not run and (self.peer.came or self._taint.decorated or self._taint.conditional):
            return _Stop("failed", "no test is left with what the program defines")
        if not run:
            return _Stop("no_tests", "no test in the test file")
        return _Stop("passed" if passed == run else "failed")

    def _result(self, test: _Test) -> dict[str, Any] | None:
        self._operands.last = {}
        self.peer.dropped.clear()
        self.peer.ran.clear()
        before = self.peer.came
        error: BaseException | None = None
        self._coverage and self.peer.request("begin", None)
        try:
            self._call(test)
        except rpc.Gone:
            raise
        except standin.NotSupported as what:
            raise rpc.Unsupported(str(what)) from what
        except rpc.Unsupported as what:
            if self.peer.came == before or isinstance(what, asked.ByNature):
                raise
            error = standin.Failed(str(what))  # what cannot cross may come of what the solution gave
        except BaseException as caught:
            skips = isinstance(caught, (standin.Skipped, *_of_unittest("SkipTest"))) and not came_over(caught)
            if skips and not self._may_be_skipped_by_the_solution(test, caught):
                self._send({"skipped": test.name})
                return None
            error = caught
        error = error or self._passed_over(test)
        lines = self.peer.request("lines", None) if self._coverage else []
        result = {"name": test.name, "passed": error is None, "lines": _line_numbers(lines)}
        if error is not None:
            result |= {"error": values.describe(error), "line": raised.solution_line(error)}
            if isinstance(error, AssertionError) and not came_over(error):
                result |= self._operands.last
        return result

    def _passed_over(self, test: _Test) -> BaseException | None:
        """Why a test that ran to its end has failed: an assertion was swallowed, or never made."""
        if self.peer.dropped:
            return next(iter(self.peer.dropped.values()))
        name = test.name.rpartition("::")[2].partition("[")[0]
        decorated = self._taint.wrapped.get(name)
        if decorated is None:
            return None
        given = [args for code, args in self.peer.ran.items() if rewrite.is_of(code, decorated)]
        if given and all(any(_same(value, each) for each in given[0]) for value in self._found.values()):
            return None
        return standin.Failed("the test did not run as it is inside what the program wrapped around it")

    def _may_be_skipped_by_the_solution(self, test: _Test, skipped: BaseException) -> bool:
        """Whether a test was skipped on a condition that the solution can influence."""
        owner, _, function = test.name.partition("[")[0].rpartition("::")
        return (
            function in self._taint.decorated
            or owner in self._taint.classes
            or not self._taint.skips.isdisjoint(_lines_of(skipped))
        )

    def _call(self, test: _Test) -> None:
        self.endings = []
        self._count += 1
        owner = test.owner() if test.owner else None
        self.test, self._instance = test, owner
        try:
            self._set_up(owner, test)
            for name, fixture in self._fixtures_for(test.owner).items():
                if fixture._cdv_fixture.autouse or name in test.uses:
                    self.fixture(name)
            call = test.call if owner is None else getattr(owner, test.name.partition("::")[2].partition("[")[0])
            found = {name: self.fixture(name) for name in parameters.fixtures_of(call) if name not in test.given}
            self._found = {**found, **test.given}
            result = call(**self._found)
            if type(result) is resumed.COROUTINE:
                import asyncio

                asyncio.run(result)
        finally:
            self._tear_down(owner)

    def _set_up(self, owner: Any, test: _Test) -> None:
        """Fixtures of the old style: `setup_module`, `setup_class`, `setup_method` and their like."""
        if "setup_module" not in self._kept:
            self._kept["setup_module"] = True
            _call_if_there(self._space.get("setup_module"), sys.modules[kinds.TESTS_MODULE])
            _call_if_there(self._space.get("setUpModule"))
        if owner is None:
            _call_if_there(self._space.get("setup_function"), test.call)
            return
        kind = type(owner)
        if kind not in self._kept:
            self._kept[kind] = True
            _call_if_there(getattr(kind, "setup_class", None))
        _call_if_there(getattr(owner, "setup_method", None), test.call)

    def _tear_down(self, owner: Any) -> None:
        for ending in reversed(self.endings):
            with contextlib.suppress(StopIteration):
                next(ending)
        if owner is None:
            _call_if_there(self._space.get("teardown_function"))
        else:
            _call_if_there(getattr(owner, "teardown_method", None))

    def fixture(self, name: str) -> Any:
        """What a fixture gives for the test that runs."""
        known = self._fixtures_for(self.test.owner)
        if name in fixtures.BUILT_IN and name not in known:
            return fixtures.BUILT_IN[name](self)
        made = known[name]
        scope = made._cdv_fixture.scope
        part = self._count if scope == "function" else type(self._instance) if scope == "class" else None
        key = (made, part, self.test.chosen.get(name))
        if key not in self._kept:
            self._kept[key] = self._made(made, scope, self._param_of(name))
        return self._kept[key]

    def _fixtures_for(self, owner: type | None) -> dict[str, Any]:
        """The fixtures that a test of this class may have: its class's and the module's."""
        return {**self._fixtures, **self._of_classes.get(owner, {})} if owner is not None else self._fixtures

    def _param_of(self, name: str) -> Any:
        number = self.test.chosen.get(name)
        if number is not None:
            return self._fixtures_for(self.test.owner)[name]._cdv_fixture.params[number]
        return self.test.indirect.get(name, fixtures.ABSENT)

    def _made(self, function: Any, scope: str, param: Any) -> Any:
        names = parameters.parameters(function, with_defaults=True)
        args = [self._instance] if names[:1] == ["self"] else []
        given = {
            name: fixtures.Request(self, param) if name == "request" else self.fixture(name)
            for name in names
            if name != "self"
        }
        value = function(*args, **given)
        if type(value) is resumed.GENERATOR:
            if scope == "function":
                self.endings.append(value)
            return next(value)
        return value

    def _needed(self, call: Any, given: Iterable[str], uses: Iterable[str], known: dict[str, Any]) -> list[str]:
        """The fixtures that a test takes, and those that these take; what is none is not supported."""
        found = [name for name, made in known.items() if made._cdv_fixture.autouse]
        found += uses
        found += [name for name in parameters.fixtures_of(call) if name not in (*given, "self", "cls")]
        for name in found:  # grows
            if name not in known and name not in fixtures.BUILT_IN:
                raise rpc.Unsupported(f"the fixture {name!r}")
            made = known.get(name)
            names = parameters.parameters(made, with_defaults=True) if made is not None else []
            found += [each for each in names if each not in (*found, "self")]
        return list(dict.fromkeys(found))

    # Fixtures of pytest's own

    def capsys(self) -> Any:
        """What the tests and the solution print."""
        self.readouterr()
        return types.SimpleNamespace(readouterr=self.readouterr, disabled=fixtures.not_captured)

    def caplog(self) -> Any:
        """What the tests and the solution log."""
        return fixtures.LogCapture(self)

    def readouterr(self) -> _Printed:
        """What was printed since the last call."""
        texts = []
        for stream in self._printed:
            texts.append(stream.getvalue())
            stream.seek(0)
            stream.truncate()
        return _Printed(*texts)

    def _swallowed(self, traceback: Any) -> None:
        """The solution swallowed an exception in a `with` block: if it was an assertion, that has failed."""
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == _FILE and rewrite.unreached(
                self._nodes, traceback.tb_lineno
            ):
                error = standin.Failed("an assertion was not reached: the block of a `with` was left before")
                self.peer.dropped[id(error)] = error
            traceback = traceback.tb_next

    def _send(self, message: dict[str, Any]) -> None:
        frames.send(self._verdict, message)


_LOOK_INTO = {
    "inspect": (
        *(
            "iscoroutinefunction",
            "isgeneratorfunction",
            "isasyncgenfunction",
            "ismethod",
            "isfunction",
            "isroutine",
        ),
        *("isabstract", "isawaitable", "iscoroutine", "getdoc"),
    ),
    "asyncio": ("iscoroutinefunction",),
    "typing": ("get_type_hints",),
}


def _asking(plain: Callable[..., Any], module: str, name: str) -> Callable[..., Any]:
    def ask(value: Any, *args: Any, **kwargs: Any) -> Any:
        link = remote.link_of(value)
        if link is None:
            return plain(value, *args, **kwargs)
        return link.peer.request("look", value, f"{module}.{name}")

    return ask


class _SolutionModule(types.ModuleType):
    # `import solution` in the tests: every name is asked of the solution.

    def __init__(self, stand_in: Any, classes: set[str]) -> None:
        super().__init__("solution")
        self.__dict__["_cdv_stand_in"] = stand_in
        self.__dict__["_cdv_classes"] = classes

    __doc__ = property(lambda self: getattr(self.__dict__["_cdv_stand_in"], "__doc__"))  # noqa: B009

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in operations.READABLE:
            raise AttributeError(name)
        own = self.__dict__
        return remote.declare(getattr(own["_cdv_stand_in"], name), name, name in own["_cdv_classes"])

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_cdv_stand_in"])

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_cdv_stand_in"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self.__dict__["_cdv_stand_in"], name, value)


def _expect_ends() -> None:
    """`assertRaises(StopIteration)` takes the end that a call of the solution came to, as `pytest.raises` does."""
    context: Any = vars(sys.modules["unittest.case"])["_AssertRaisesContext"]
    leave = context.__exit__

    def left(self: Any, kind: Any, error: Any, traceback: Any) -> Any:
        error = error and standin.meant(error, self.expected)
        return leave(self, error and type(error), error, traceback)

    context.__exit__ = left


def _same(value: Any, other: Any) -> bool:
    return value is other or (type(value) is type(other) and bool(value == other))


def _expects_failure(test: Any) -> bool:
    return bool(getattr(test, "__unittest_expecting_failure__", False))


def _left_out_by_the_solution() -> None:
    raise standin.Failed("left out on a condition that the program may have decided")


def _lines_in(traceback: Any) -> Iterator[int]:
    """The lines of the test file that a traceback goes through."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _FILE:
            yield traceback.tb_lineno
        traceback = traceback.tb_next


def _lines_of(error: BaseException) -> set[int]:
    return set(_lines_in(error.__traceback__))


def _super(cls: type, self_or_class: Any) -> Any:
    """`super()`, also above classes that have a stand-in."""
    owner = self_or_class if isinstance(self_or_class, type) else type(self_or_class)
    if any(remote.link_of(base) is not None for base in owner.__mro__[owner.__mro__.index(cls) + 1 :]):
        return remote.Parent(cls, self_or_class)
    return super(cls, self_or_class)


def _run_case(owner: Any, name: str) -> None:
    if not owner.__dict__.get("_cdv_class_is_set_up"):
        owner._cdv_class_is_set_up = True
        owner.setUpClass()
    owner(name).debug()


def _call_if_there(function: Any, *args: Any) -> None:
    if function is not None:
        function(*[*args, None][: len(parameters.parameters(function))])


def _of_unittest(name: str) -> tuple[type, ...]:
    """That class of unittest, if the tests have imported it."""
    module = sys.modules.get("unittest")
    return (getattr(module, name),) if module else ()


def _line_numbers(lines: Any) -> list[int]:
    return [line for line in lines if type(line) is int] if isinstance(lines, list) else []


def came_over(error: BaseException) -> bool:
    """Whether an exception was raised by the solution."""
    return raised.line_of(error) is not None
