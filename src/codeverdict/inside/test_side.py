"""The process that holds the tests and, alone, the verdict. What runs the tests is pytest itself."""

from __future__ import annotations

import ast
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.config import _prepareconfig

from codeverdict.inside import frames, objects, peer, reading, values

_FILE = "<tests>"
_OFF = (
    "terminal cacheprovider junitxml pastebin doctest setuponly setupplan stepwise faulthandler "
    "threadexception unraisableexception"
)
_TOOLS = "math cmath re itertools functools collections operator string random json heapq bisect statistics copy"
_COMMON = {**{name: name for name in _TOOLS.split()}, "numpy": "numpy", "np": "numpy"}
"""Names of modules that a test file has from a star import: it gets the modules themselves."""

_LOOK_INTO = {
    "inspect": (
        "iscoroutinefunction isgeneratorfunction isasyncgenfunction ismethod isfunction isroutine isabstract "
        "isgenerator isasyncgen isclass isbuiltin isdatadescriptor isawaitable iscoroutine getdoc getmembers"
    ),
    "asyncio": "iscoroutinefunction",
    "dataclasses": "asdict astuple is_dataclass fields replace",
    "typing": "get_type_hints",
}
"""Functions that look into an object, and are done where it lives."""


class _Stop(Exception):
    """The job ends here with this outcome."""

    def __init__(self, outcome: str, error: str = "", line: int | None = None) -> None:
        super().__init__(outcome)
        self.outcome, self.error, self.line = outcome, error, line


class Session:
    """A session of pytest, made ready before the fork: that takes longer than most jobs."""

    def __init__(self) -> None:
        off = [word for name in _OFF.split() for word in ("-p", f"no:{name}")]
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        words = ["-c", os.devnull, "--rootdir", "/", "--noconftest", "--assert=plain", "--capture=sys", *off]
        self._config = _prepareconfig(words)
        self._config._do_configure()
        self.made = pytest.Session.from_config(self._config)
        self._config.hook.pytest_sessionstart(session=self.made)

    def collect(self, module: types.ModuleType, plugin: Any) -> list[pytest.Item]:
        """The tests of a module that has been loaded."""
        self._config.option.basetemp = str(Path.cwd() / "pytest")
        self._config.pluginmanager.register(plugin, "judge")
        made = _Module.from_parent(self.made, path=Path("/tests.py"))
        made.loaded = module
        return list(self.made.genitems(made))

    def run(self, item: Any, following: Any) -> None:
        """Run one test, its fixtures, and the ends of fixtures that the next one does not share."""
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class _Module(pytest.Module):
    loaded: types.ModuleType

    def _getobj(self) -> types.ModuleType:
        return self.loaded


def judge(session: Session, source: int, reader: int, writer: int, verdict: int) -> None:
    """Run the tests that come from `source` against the solution at the other end, and write results to `verdict`
    as they come.

    Frames on `verdict`: `{"collected": n, "early": bool}`, `{"result": {...}}` or `{"skipped": name}` for a test,
    `{"end": {outcome, error, line}}`.
    """
    job = frames.receive_once(source)
    sys.setrecursionlimit(peer.DEEP)
    to_solution = peer.Peer(reader, writer, 0, peer.guard)
    to_solution.lenient = job["lenient"]
    judging = Judging(session, to_solution, verdict, job["coverage"])
    try:
        judging.read(job["tests"])
        judging.load()
        end = judging.run()
    except _Stop as stop:
        end = stop
    except (peer.Gone, peer.Refused):
        end = _Stop("failed")
    if judging.peer.broken:
        gone = judging.peer.broken
        words = "the program ended its process before a verdict"
        end = _Stop("crashed", words if "is gone" in gone else f"the program broke off: {gone}")
    elif judging.peer.refused:
        what, by_nature = judging.peer.refused
        end = _Stop("unsupported" if by_nature else "failed", f"cannot be judged: {what}")
    frames.send(verdict, {"end": {"outcome": end.outcome, "error": end.error, "line": end.line}})


class Judging:
    """One job; a plugin of pytest's while it lasts."""

    def __init__(self, session: Session, to_solution: peer.Peer, verdict: int, coverage: bool) -> None:
        self.peer, self._session, self._verdict, self._coverage = to_solution, session, verdict, coverage
        self._operands = reading.Operands()
        self._places: set[int] = set()
        self._reports: list[pytest.TestReport] = []
        self._error: BaseException | None = None
        self._uncollected: BaseException | None = None
        to_solution.swallowed = self._swallowed
        to_solution.heard = _hear

    def read(self, tests: str) -> None:
        """Read the test file, before anything of the solution is known."""
        try:
            self._tree = ast.parse(tests)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _Stop("bad_tests", values.describe(error)) from error
        self._text, self._nodes = tests, reading.nodes_of(self._tree)
        self._wanted = reading.wanted_names(self._tree, self._nodes)
        self._fixed = reading.has_static_skips(self._tree, self._nodes)
        if what := reading.refused(self._tree, self._nodes, self._wanted):
            raise _Stop("unsupported", what)

    def load(self) -> None:
        """Wait for the solution to have loaded, then load the test file."""
        message = self.peer.receive()
        if "e" in message:
            error = self.peer.read_error(message["e"])
            raise _Stop("broken", values.describe(error), peer.line_of(error) or None)
        module = sys.modules["tests"] = types.ModuleType("tests")
        _SolutionModule._cdv_module = message["v"]
        sys.modules["solution"] = _SolutionModule("solution")
        self._space = module.__dict__
        self._prepare()
        try:
            for node in self._nodes:
                if type(node) is ast.Assert:
                    node.test = self._operands.note(node.test)
            exec(compile(self._tree, _FILE, "exec", dont_inherit=True), self._space)
        except (peer.Gone, peer.Refused):
            raise
        except BaseException as error:  # whatever the test file raises, or the program in it
            raise self._load_failure(error) from error

    def _prepare(self) -> None:
        reading.without_star_imports(self._tree)
        used = self._wanted
        for name in [each for each in used if each in _COMMON and reading.only_for_attributes(each, self._nodes)]:
            used.remove(name)
            self._space[name] = __import__(_COMMON[name])
        found = self.peer.request("names", None, args=(used,)) if used else []
        if not all(type(name) is str and name in used for name in found):
            raise peer.Gone("names that nobody asked for")
        self._space |= {name: getattr(sys.modules["solution"], name) for name in found}
        self._space |= self._operands.names()
        if "isinstance" in self._text or "issubclass" in self._text or "IsInstance" in self._text:
            asking = {"isinstance": objects.is_a(isinstance), "issubclass": objects.is_a(issubclass)}
            self._space |= asking
            if "unittest" in sys.modules:
                vars(sys.modules["unittest.case"]).update(asking)
        for module, names in _LOOK_INTO.items():
            for name in names.split() if module in self._text else ():
                holder = __import__(module)
                setattr(holder, name, objects.asking(getattr(holder, name), module, name))
        self.peer.named = {name for name in peer.SILENT if name in self._text}
        if "hread" in self._text:
            self._watch_threads()
        if "seed" in self._text:
            _seed_both(self.peer)
        if "caplog" in self._text or "assertLogs" in self._text or "logging" in self._text:
            self.peer.request("log", None)

    def _watch_threads(self) -> None:
        """What ends a thread of the tests is the failure of the test."""
        import threading

        def ended(args: Any) -> None:
            self.peer.dropped[id(args.exc_value)] = args.exc_value

        threading.excepthook = ended

    def _load_failure(self, error: BaseException) -> _Stop:
        """Who is at fault when the test file does not load."""
        text = values.describe(error)
        ours = isinstance(error, ImportError | NameError | pytest.skip.Exception) or not self.peer.requests
        if getattr(error, "_cdv_line", None) is not None or self.peer.asked or not ours:
            return _Stop("broken", text, peer.line_of(error) or None)
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "solution":
            return _Stop("broken", text)  # the program lacks what was asked
        if isinstance(error, ImportError | pytest.skip.Exception):
            return _Stop("unsupported", text)
        return _Stop("bad_tests", text)

    # How it runs

    def run(self) -> _Stop:
        """Run every test; the outcome of all."""
        module = sys.modules["tests"]
        theirs = (each for each, value in vars(module).items() if objects.link_of(value) is not None)
        if name := next((each for each in theirs if each[:4] == "test" and each not in self._wanted), ""):
            self.peer.refuse(f"the test {name} of the solution's making", True)
        plain = reading.is_plain(self._text, self._tree, self._nodes)
        items = _functions(module) if plain else self._session.collect(module, self)
        if self._uncollected is not None:
            raise self._load_failure(self._uncollected)
        self._send({"collected": len(items), "early": bool(self.peer.asked)})
        early, passed, run = self.peer.asked, 0, 0
        for item, following in zip(items, [*items[1:], None], strict=False):
            result = self._result(item, following)
            if self.peer.refused or self.peer.broken:
                break
            if result is None:
                self._send({"skipped": _name(item)})
                continue
            run += 1
            passed += result["passed"] and not result["swallowed"]
            self._send({"result": result})
        if not run and (early or any(not self._is_fixed(item) for item in items if isinstance(item, pytest.Item))):
            return _Stop("failed", "no test is left with what the program defines")
        if not run:
            return _Stop("no_tests", "no test in the test file")
        return _Stop("passed" if passed == run else "failed")

    def _result(self, item: Test, following: Any) -> dict[str, Any] | None:
        """What came of a test; None if it was left out before the solution was asked for anything."""
        self._operands.last, self._error, self._reports = {}, None, []
        self._places.clear()
        self.peer.dropped.clear()
        self._coverage and self.peer.request("begin", None)
        try:
            item() if isinstance(item, types.FunctionType) else self._session.run(item, following)
        except BaseException as caught:  # whatever the test raises; Gone and Refused are noted by the peer
            self._error = caught
        outcome = self._outcome(item)
        if outcome == "skipped":
            return None
        if not self.peer.lenient:
            self._places |= {_raised_at(error) for error in self.peer.dropped.values()}
        lines = [] if self.peer.broken or not self._coverage else self.peer.request("lines", None)
        error = self._error
        result = {"name": _name(item), "passed": outcome == "passed"}
        result |= {"lines": [line for line in lines if type(line) is int], "swallowed": sorted(self._places)}
        if outcome != "passed":
            text = values.describe(error) if error is not None else "left out after the program was asked"
            result |= {"error": text, "line": (peer.line_of(error) or None) if error is not None else None}
            if isinstance(error, AssertionError) and getattr(error, "_cdv_line", None) is None:
                result |= self._operands.last
        return result

    def _outcome(self, item: Test) -> str:
        """`passed`, `failed`, or `skipped`: left out, with nothing that the solution could have done to it."""
        if isinstance(self._error, pytest.skip.Exception) and getattr(self._error, "_cdv_line", None) is None:
            return "failed" if self.peer.asked else "skipped"  # out of a plain function
        if self._error is not None or any(each.failed for each in self._reports):
            return "failed"
        if isinstance(item, types.FunctionType):
            return "passed"
        left_out = [each for each in self._reports if each.skipped]
        if not left_out:
            return "passed" if self._reports else "failed"
        fixed = self._is_fixed(item)
        known = all(_expected(item) if hasattr(each, "wasxfail") else fixed for each in left_out)
        return "skipped" if known else "failed"

    def _is_fixed(self, item: Any) -> bool:
        """Whether a test is left out by a mark in which nothing of the solution's stands, or unasked."""
        marked = item.get_closest_marker("skip") or item.get_closest_marker("skipif")
        by_unittest = getattr(item.obj, "__unittest_skip__", False) or getattr(item.cls, "__unittest_skip__", False)
        if marked and str(marked.kwargs.get("reason", "")).startswith("got empty parameter set"):
            return False
        return self._fixed if marked or by_unittest else not self.peer.asked

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A class or the module could not be collected."""
        if not report.passed:
            self._uncollected = self._uncollected or RuntimeError(str(report.longrepr)[-peer.TEXT_LIMIT :])

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        """A report without the text of the failure, which takes longer to make than a test to run."""
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, pytest.FixtureLookupError):
            self.peer.refused = self.peer.refused or (f"the fixture {error.argname!r}", True)
        skips = isinstance(error, pytest.skip.Exception) and getattr(error, "_cdv_line", None) is None
        outcome = "passed" if error is None else "skipped" if skips else "failed"
        self._error = self._error or (error if outcome == "failed" else None)
        keywords = {name: 1 for name in item.keywords}
        where = ("tests.py", 0, str(error))
        made: Any = pytest.TestReport
        return cast(
            pytest.TestReport, made(item.nodeid, where, keywords, outcome, where if skips else None, call.when)
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of a test has ended; what was to fail and did has not failed."""
        self._reports.append(report)
        if not report.failed and hasattr(report, "wasxfail"):
            self._error = None

    def _swallowed(self, error: BaseException) -> None:
        """The solution swallowed an exception in a `with` block: one that the tests raise there it may."""
        line = _raised_at(error, last=True)
        if self.peer.lenient:
            return
        if not reading.is_own(self._nodes, line) or peer.is_verdict(error):
            self._places.add(_line_now())

    def _send(self, message: dict[str, Any]) -> None:
        frames.send(self._verdict, message)


class _SolutionModule(types.ModuleType):
    # `import solution` in the tests: every name is asked of the solution.

    _cdv_module: Any = None
    __doc__ = property(lambda self: self._cdv_module.__doc__)
    __dict__ = property(lambda self: self._cdv_module.__dict__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__", "__author__"):
            raise AttributeError(name)
        found = getattr(self._cdv_module, name)
        return objects.of_class(found) if name.lstrip("_")[:1].isupper() else found

    def __dir__(self) -> Any:
        return dir(self._cdv_module)

    def __delattr__(self, name: str) -> None:
        delattr(self._cdv_module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._cdv_module, name, value)


Test = pytest.Item | types.FunctionType


def _functions(module: types.ModuleType) -> list[Any]:
    """The tests of a module in which they are plain functions."""
    found = vars(module).items()
    return [value for name, value in found if name.startswith("test") and isinstance(value, types.FunctionType)]


def _name(item: Any) -> str:
    return item.__name__ if isinstance(item, types.FunctionType) else str(item.nodeid.partition("::")[2])


def _expected(item: Any) -> bool:
    """Whether a test that has failed was to fail, whatever the solution says."""
    mark = item.get_closest_marker("xfail")
    if mark is not None:
        return not (mark.args or "condition" in mark.kwargs)
    holders = (getattr(item, "obj", None), getattr(item, "cls", None))
    return any(getattr(each, "__unittest_expecting_failure__", False) for each in holders)


def _raised_at(error: BaseException, last: bool = False) -> int:
    """The line of the test file where an exception was raised; with `last`, 0 if it was raised deeper."""
    line, passed = 0, error.__traceback__
    while passed is not None:
        here = passed.tb_frame.f_code.co_filename == _FILE
        line = passed.tb_lineno if here else 0 if last else line
        passed = passed.tb_next
    return line


def _line_now() -> int:
    """The line of the test file that is being run, 0 if none is."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def _hear(said: list[Any]) -> None:
    """What the solution printed, warned and logged, where the tests expect it."""
    for each in said:
        if isinstance(each, BaseException):
            if isinstance(each, Warning):
                warnings.warn(each, stacklevel=1)
        elif type(each[0]) is bool:
            (sys.stderr if each[0] else sys.stdout).write(str(each[1]))
        else:
            level, name, text = int(each[0]), str(each[1]), str(each[2])
            logger = logging.getLogger(name)
            if logger.isEnabledFor(level):
                logger.handle(logger.makeRecord(name, level, peer.SOLUTION_FILE, 0, text, (), None))


def _seed_both(to_solution: peer.Peer) -> None:
    """Make seeds that the tests set hold in the solution too."""
    import random

    def both(plain: Callable[..., Any], numpy_too: bool) -> Callable[..., Any]:
        def seed(*args: Any, **kwargs: Any) -> Any:
            to_solution.request("seed", None, args=(args[0] if args else None, numpy_too))
            return plain(*args, **kwargs)

        return seed

    random.seed = both(random.seed, False)
    if values.numpy() is not None:
        values.numpy().random.seed = both(values.numpy().random.seed, True)
