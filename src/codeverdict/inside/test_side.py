"""The process of the tests, which alone writes the verdict.

Plain test functions are called here; other tests are run by pytest (suite.py).
"""

from __future__ import annotations

import marshal
import operator
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from codeverdict.inside import frames, lent, objects, peer, values

Send = Callable[[dict[str, Any]], object]
TEST_FILE = "<tests>"
CHECK_NAME = "__cdv_note__"

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le},
    **{">": operator.gt, ">=": operator.ge, "is": operator.is_, "is not": operator.is_not},
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
    "": lambda a, b: a,
}
_LOOK_INTO = {
    "inspect": (
        "iscoroutinefunction isgeneratorfunction isasyncgenfunction ismethod isfunction isroutine isabstract "
        "isgenerator isasyncgen isclass isbuiltin isdatadescriptor isawaitable iscoroutine getdoc getmembers"
    ),
    "asyncio": "iscoroutinefunction",
    "dataclasses": "asdict astuple is_dataclass fields replace",
    "typing": "get_type_hints",
}
"""Functions that inspect an object and run where it lives."""
_ASKING = {"isinstance", "issubclass", "IsInstance"}
_LOGS = {"caplog", "assertLogs", "logging"}
MENTIONS = ("hread", "seed", *_ASKING, *_LOGS, *_LOOK_INTO, *peer.SILENT)
"""Words in a test file that require preparation."""


class Operands:
    """The operands of the assertion that failed last."""

    def __init__(self) -> None:
        self.last: dict[str, str] = {}

    def check(self, call: str, symbol: str, left: Any, right: Any = None) -> bool:
        """Evaluate the condition of a rewritten assert; an empty symbol tests `left` alone."""
        result = bool(_OPERATORS[symbol](left, right))  # only once, because an object may change its answer
        if not result:
            expected = f"{symbol} {short_repr(right)}" if symbol else "a true value"
            self.last = {"call": call, "got": short_repr(left), "expected": expected.removeprefix("== ")}
        return result


def short_repr(value: Any) -> str:
    """Return the shortened `repr` of a value."""
    try:
        return repr(value)[: values.TEXT_LIMIT]
    except Exception as error:  # a `__repr__` of the program or the tests may raise anything
        return type(error).__name__


class _Stop(Exception):
    """Ends the job with an outcome."""

    def __init__(self, outcome: str, error: str = "", line: int | None = None) -> None:
        super().__init__(outcome)
        self.outcome, self.error, self.line = outcome, error, line


def judge(suite: Any, source: int, reader: int, writer: int, verdict: int) -> None:
    """Run the tests in `source` against the solution, and write each result to `verdict`.

    `suite` creates the `Judging` for tests that pytest runs; None in a server without pytest.
    `verdict` initially holds a key, which is erased. Each line is sealed with it, so that nothing
    else the tests write there counts as a line. Lines are `{"collected": n, "early": bool}`,
    `{"result": {...}}` or `{"skipped": name}` for each test, and `{"end": {outcome, error, line}}`.
    """
    job = frames.read_once(source)
    sys.setrecursionlimit(peer.DEEP)
    to_solution = peer.Peer(reader, writer, 0, lent.guard)
    to_solution.lenient = job["lenient"]
    send = _writer(verdict)
    judging: Judging = (Judging if job["plain"] else suite)(to_solution, send, job)
    try:
        judging.load()
        end = judging.run()
    except _Stop as stop:
        end = stop
    except (peer.Gone, peer.Refused):
        end = _Stop("failed")
    if to_solution.broken:
        gone = to_solution.broken
        words = "the program ended its process before a verdict"
        end = _Stop("crashed", words if "is gone" in gone else f"the program broke off: {gone}")
    elif to_solution.refused:
        what, by_nature = to_solution.refused
        end = _Stop("unsupported" if by_nature else "failed", f"cannot be judged: {what}")
    send({"end": {"outcome": end.outcome, "error": end.error, "line": end.line}})


def _writer(verdict: int) -> Send:
    """Return a function that writes a message as the next line of the verdict."""
    seal, write = frames.Seal(os.read(verdict, frames.KEY_BYTES)), os.write
    os.ftruncate(verdict, 0)
    os.lseek(verdict, 0, os.SEEK_SET)
    return lambda message: write(verdict, seal.line(message))


class Judging:
    """One job whose tests are functions called one after another.

    `words` is the analysis of the test file (reading.py) and the options of the job.
    """

    def __init__(self, to_solution: peer.Peer, send: Send, words: dict[str, Any]) -> None:
        self.peer, self.words, self._send = to_solution, words, send
        self.error: BaseException | None = None
        self.uncollected: BaseException | None = None
        self._operands = Operands()
        self._places: set[int] = set()
        to_solution.swallowed = self._swallowed
        to_solution.heard = _replay

    def load(self) -> None:
        """Wait until the solution has loaded, then load the test file."""
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
            exec(marshal.loads(self.words["code"].encode("latin-1")), self._space)
        except (peer.Gone, peer.Refused):
            raise
        except BaseException as error:  # the test file, and the program called by it, may raise anything
            raise self._load_failure(error) from error

    def _prepare(self) -> None:
        modules, mentions = self.words["modules"], set(self.words["mentions"])
        self._space |= {name: __import__("numpy" if name == "np" else name) for name in modules}
        used = [name for name in self.words["wanted"] if name not in modules]
        defined = self.peer.request("names", None, (used,)) if used else []
        if not all(type(name) is str and name in used for name in defined):
            raise peer.Gone("names that were not requested")
        self._space |= {name: getattr(sys.modules["solution"], name) for name in defined}
        self._space[CHECK_NAME] = self._operands.check
        if mentions & _ASKING:
            asking = {"isinstance": objects.is_a(isinstance), "issubclass": objects.is_a(issubclass)}
            self._space |= asking
            if "unittest" in sys.modules:
                vars(sys.modules["unittest.case"]).update(asking)
        for module, names in _LOOK_INTO.items():
            for name in names.split() if module in mentions else ():
                holder = __import__(module)
                setattr(holder, name, objects.asking(getattr(holder, name), module, name))
        self._mirrored = {name: _state(name) for name in self.words["replaced"]}
        self._originals = dict(self._mirrored)
        if self._mirrored:
            self.peer.prepare = self._mirror
        self.peer.named = mentions & peer.SILENT
        if "hread" in mentions:
            self._watch_threads()
        if "seed" in mentions:
            _seed_both(self.peer)
        if mentions & _LOGS:
            self.peer.request("log", None)

    def _mirror(self) -> None:
        """Pass on what the tests have replaced since the last request."""
        for name, before in self._mirrored.items():
            now = _state(name)
            if now is not before and (type(now) not in (list, dict, str) or now != before):
                self._mirrored[name] = now
                replacement = () if now is self._originals[name] else (now,)
                self.peer.request("replace", None, (name, *replacement))

    def _watch_threads(self) -> None:
        """Make an exception that ends a thread of the tests fail the test."""
        import threading

        def ended(args: Any) -> None:
            self.peer.dropped[id(args.exc_value)] = args.exc_value

        threading.excepthook = ended

    def _load_failure(self, error: BaseException) -> _Stop:
        """Return the outcome when the test file does not load, depending on who is at fault."""
        text = values.describe(error)
        ours = isinstance(error, ImportError | NameError) or is_skip(error) or not self.peer.requests
        if getattr(error, "_cdv_line", None) is not None or self.peer.asked or not ours:
            return _Stop("broken", text, peer.line_of(error) or None)
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "solution":
            return _Stop("broken", text)  # the program lacks a name
        if isinstance(error, ImportError) or is_skip(error):
            return _Stop("unsupported", text)
        return _Stop("bad_tests", text)

    # Running

    def run(self) -> _Stop:
        """Run every test and return the outcome of the job."""
        members = vars(sys.modules["tests"]).items()
        theirs = (name for name, value in members if name[:4] == "test" and objects.link_of(value) is not None)
        if name := next((test for test in theirs if test not in self.words["wanted"]), ""):
            self.peer.refuse(f"the test {name}, which the solution defined", True)
        items = self.collect()
        if self.uncollected is not None:
            raise self._load_failure(self.uncollected)
        self._send({"collected": len(items), "early": bool(self.peer.asked)})
        early, passed, run = self.peer.asked, 0, 0
        for item, following in zip(items, [*items[1:], None], strict=False):
            result = self._result(item, following)
            if self.peer.refused or self.peer.broken:
                break
            if result is None:
                self._send({"skipped": self.name_of(item)})
                continue
            run += 1
            passed += result["passed"] and not result["swallowed"]
            self._send({"result": result})
        if not run and (early or not all(map(self.is_fixed, items))):
            return _Stop("failed", "no test is left with what the program defines")
        if not run:
            return _Stop("no_tests", "no test in the test file")
        return _Stop("passed" if passed == run else "failed")

    def collect(self) -> list[Any]:
        """Return the tests of the module."""
        members = vars(sys.modules["tests"]).items()
        return [
            value for name, value in members if name.startswith("test") and isinstance(value, types.FunctionType)
        ]

    def run_one(self, item: Any, following: Any) -> None:
        """Run one test and let its exceptions pass."""
        item()

    def name_of(self, item: Any) -> str:
        """Return the name of a test."""
        return str(item.__name__)

    def outcome(self, item: Any) -> str:
        """Return `passed`, `failed`, or `skipped` if the solution has not caused the skip."""
        if is_skip(self.error):
            return "failed" if self.peer.asked else "skipped"
        return "passed" if self.error is None else "failed"

    def is_fixed(self, item: Any) -> bool:
        """Return True if the solution cannot have caused a test to be skipped."""
        return True

    def _result(self, item: Any, following: Any) -> dict[str, Any] | None:
        """Run a test and return its result; None if it was skipped."""
        coverage = self.words["coverage"]
        self._operands.last, self.error = {}, None
        self._places.clear()
        self.peer.dropped.clear()
        coverage and self.peer.request("begin", None)
        try:
            self.run_one(item, following)
        except BaseException as caught:  # a test may raise anything; the peer records Gone and Refused
            self.error = caught
        outcome = self.outcome(item)
        if outcome == "skipped":
            return None
        if not self.peer.lenient:
            self._places |= {_raised_at(error) for error in self.peer.dropped.values()}
        lines = [] if self.peer.broken or not coverage else self.peer.request("lines", None)
        error = self.error
        result = {"name": self.name_of(item), "passed": outcome == "passed"}
        result |= {"lines": [line for line in lines if type(line) is int], "swallowed": sorted(self._places)}
        if outcome != "passed":
            text = values.describe(error) if error is not None else "left out after the program was asked"
            result |= {"error": text, "line": (peer.line_of(error) or None) if error is not None else None}
            if isinstance(error, AssertionError) and getattr(error, "_cdv_line", None) is None:
                result |= self._operands.last
        return result

    def _swallowed(self, error: BaseException) -> None:
        """Record an exception that the solution swallowed in a `with` block.

        It may swallow those that the tests raise there deliberately.
        """
        line = _raised_at(error, last=True)
        if self.peer.lenient:
            return
        if line not in self.words["own"] or peer.is_verdict(error):
            self._places.add(_line_now())


class _SolutionModule(types.ModuleType):
    # The module behind `import solution` in the tests; every name is a request to the solution.

    _cdv_module: Any = None
    __doc__ = property(lambda self: self._cdv_module.__doc__)
    __dict__ = property(lambda self: self._cdv_module.__dict__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__", "__author__"):
            raise AttributeError(name)
        value = getattr(self._cdv_module, name)
        return objects.of_class(value) if name.lstrip("_")[:1].isupper() else value

    def __dir__(self) -> Any:
        return dir(self._cdv_module)

    def __delattr__(self, name: str) -> None:
        delattr(self._cdv_module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._cdv_module, name, value)


def is_skip(error: Any) -> bool:
    """Return True if this exception skips a test and was not raised by the solution."""
    kind = type(error)
    return kind.__name__ == "Skipped" and peer.is_verdict(error) and getattr(error, "_cdv_line", None) is None


def _raised_at(error: BaseException, last: bool = False) -> int:
    """Return the line of the test file that raised; with `last`, 0 if it was raised deeper."""
    line, passed = 0, error.__traceback__
    while passed is not None:
        here = passed.tb_frame.f_code.co_filename == TEST_FILE
        line = passed.tb_lineno if here else 0 if last else line
        passed = passed.tb_next
    return line


def _line_now() -> int:
    """Return the line of the test file that is running, or 0."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != TEST_FILE:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def _replay(printed: list[Any]) -> None:
    """Repeat the output, warnings and log records of the solution in this process."""
    for item in printed:
        if isinstance(item, BaseException):
            if isinstance(item, Warning):
                warnings.warn(item, stacklevel=1)
        elif type(item[0]) is bool:
            (sys.stderr if item[0] else sys.stdout).write(str(item[1]))
        else:
            import logging

            level, name, text = int(item[0]), str(item[1]), str(item[2])
            logger = logging.getLogger(name)
            if logger.isEnabledFor(level):
                logger.handle(logger.makeRecord(name, level, peer.SOLUTION_FILE, 0, text, (), None))


def _state(name: str) -> Any:
    """Return the value of a part of the standard library; a copy if it is changed in place."""
    if name == "os.environ":
        return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    if name in ("sys.argv", "os.curdir"):
        return sys.argv[:] if name == "sys.argv" else os.getcwd()
    module, _, part = name.rpartition(".")
    now = getattr(__import__(module, fromlist=[part]), part)
    return sys.__stdin__ if type(now).__module__.startswith("_pytest") else now


def _seed_both(to_solution: peer.Peer) -> None:
    """Apply seeds that the tests set to the solution too."""

    def seed_both(plain: Callable[..., Any], module: str) -> Callable[..., Any]:
        def seed(*args: Any) -> Any:
            to_solution.request("seed", None, (module, *args))
            return plain(*args)

        return seed

    import random

    for module in (random, *([values.numpy().random] if values.numpy() else [])):
        module.seed = seed_both(module.seed, module.__name__)
