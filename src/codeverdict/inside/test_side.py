"""The process that holds the tests and, alone, the verdict. Functions are called here; other tests
are run by pytest itself (suite.py)."""

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
NOTE = "__cdv_note__"

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
"""Functions that look into an object, and are done where it lives."""
_ASKING = {"isinstance", "issubclass", "IsInstance"}
_LOGS = {"caplog", "assertLogs", "logging"}
MENTIONS = ("hread", "seed", *_ASKING, *_LOGS, *_LOOK_INTO, *peer.SILENT)
"""Words in a test file that matter to those who run it."""


class Operands:
    """The assertion that failed last: the call, what it gave, what was expected."""

    def __init__(self) -> None:
        self.last: dict[str, str] = {}

    def note(self, call: str, symbol: str, left: Any, right: Any = None) -> bool:
        """Whether what an assert states is true: that `left` is, without a symbol. Asserts are
        rewritten to it."""
        result = bool(_OPERATORS[symbol](left, right))  # once: an object may say now this and now that
        if not result:
            wanted = f"{symbol} {shown(right)}" if symbol else "a true value"
            self.last = {"call": call, "got": shown(left), "expected": wanted.removeprefix("== ")}
        return result


def shown(value: Any) -> str:
    """A value as text, shortened."""
    try:
        return repr(value)[: values.TEXT_LIMIT]
    except Exception as error:  # a `__repr__` of the program, or of the tests, may raise anything
        return type(error).__name__


class _Stop(Exception):
    """The job ends here with this outcome."""

    def __init__(self, outcome: str, error: str = "", line: int | None = None) -> None:
        super().__init__(outcome)
        self.outcome, self.error, self.line = outcome, error, line


def judge(suite: Any, source: int, reader: int, writer: int, verdict: int) -> None:
    """Run the tests that come from `source` against the solution at the other end, and write
    results to `verdict` as they come. `suite` makes the `Judging` of tests that pytest runs; None
    in a server without it.

    `verdict` holds a key, which is erased. With it each line is sealed: what the tests could be
    made to write there is no line. Lines: `{"collected": n, "early": bool}`, `{"result": {...}}` or
    `{"skipped": name}` for a test, `{"end": {outcome, error, line}}`.
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
    """Return the function that writes a message as the next line of the verdict."""
    seal, write = frames.Seal(os.read(verdict, frames.KEY_BYTES)), os.write
    os.ftruncate(verdict, 0)
    os.lseek(verdict, 0, os.SEEK_SET)
    return lambda message: write(verdict, seal.line(message))


class Judging:
    """One job, whose tests are functions to be called in turn. `words`: what reading.py says of
    them."""

    def __init__(self, to_solution: peer.Peer, send: Send, words: dict[str, Any]) -> None:
        self.peer, self.words, self._send = to_solution, words, send
        self.error: BaseException | None = None
        self.uncollected: BaseException | None = None
        self._operands = Operands()
        self._places: set[int] = set()
        to_solution.swallowed = self._swallowed
        to_solution.heard = _hear

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
            exec(marshal.loads(self.words["code"].encode("latin-1")), self._space)
        except (peer.Gone, peer.Refused):
            raise
        except BaseException as error:  # a test file may raise anything, and so may the program in it
            raise self._load_failure(error) from error

    def _prepare(self) -> None:
        modules, mentions = self.words["modules"], set(self.words["mentions"])
        self._space |= {name: __import__("numpy" if name == "np" else name) for name in modules}
        used = [name for name in self.words["wanted"] if name not in modules]
        found = self.peer.request("names", None, (used,)) if used else []
        if not all(type(name) is str and name in used for name in found):
            raise peer.Gone("names that nobody asked for")
        self._space |= {name: getattr(sys.modules["solution"], name) for name in found}
        self._space[NOTE] = self._operands.note
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
        """Have the solution see what the tests have replaced since it was last asked."""
        for name, before in self._mirrored.items():
            now = _state(name)
            if now is not before and (type(now) not in (list, dict, str) or now != before):
                self._mirrored[name] = now
                given = () if now is self._originals[name] else (now,)
                self.peer.request("replace", None, (name, *given))

    def _watch_threads(self) -> None:
        """What ends a thread of the tests is the failure of the test."""
        import threading

        def ended(args: Any) -> None:
            self.peer.dropped[id(args.exc_value)] = args.exc_value

        threading.excepthook = ended

    def _load_failure(self, error: BaseException) -> _Stop:
        """Who is at fault when the test file does not load."""
        text = values.describe(error)
        ours = isinstance(error, ImportError | NameError) or is_skip(error) or not self.peer.requests
        if getattr(error, "_cdv_line", None) is not None or self.peer.asked or not ours:
            return _Stop("broken", text, peer.line_of(error) or None)
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "solution":
            return _Stop("broken", text)  # the program lacks what was asked
        if isinstance(error, ImportError) or is_skip(error):
            return _Stop("unsupported", text)
        return _Stop("bad_tests", text)

    # How it runs

    def run(self) -> _Stop:
        """Run every test; the outcome of all."""
        found = vars(sys.modules["tests"]).items()
        theirs = (name for name, value in found if name[:4] == "test" and objects.link_of(value) is not None)
        if name := next((each for each in theirs if each not in self.words["wanted"]), ""):
            self.peer.refuse(f"the test {name} of the solution's making", True)
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
        """The tests of the module."""
        found = vars(sys.modules["tests"]).items()
        return [value for name, value in found if name.startswith("test") and isinstance(value, types.FunctionType)]

    def run_one(self, item: Any, following: Any) -> None:
        """Run one test; what it raises is not held up."""
        item()

    def name_of(self, item: Any) -> str:
        """The name of a test."""
        return str(item.__name__)

    def outcome(self, item: Any) -> str:
        """`passed`, `failed`, or `skipped`: left out, with nothing that the solution could have
        done to it."""
        if is_skip(self.error):
            return "failed" if self.peer.asked else "skipped"
        return "passed" if self.error is None else "failed"

    def is_fixed(self, item: Any) -> bool:
        """Whether a test is left out by a mark in which nothing of the solution's stands, or
        unasked."""
        return True

    def _result(self, item: Any, following: Any) -> dict[str, Any] | None:
        """What came of a test; None if it was left out before the solution was asked for
        anything."""
        coverage = self.words["coverage"]
        self._operands.last, self.error = {}, None
        self._places.clear()
        self.peer.dropped.clear()
        coverage and self.peer.request("begin", None)
        try:
            self.run_one(item, following)
        except BaseException as caught:  # a test may raise anything; Gone and Refused are noted by the peer
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
        """The solution swallowed an exception in a `with` block: one that the tests raise there it
        may."""
        line = _raised_at(error, last=True)
        if self.peer.lenient:
            return
        if line not in self.words["own"] or peer.is_verdict(error):
            self._places.add(_line_now())


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


def is_skip(error: Any) -> bool:
    """Whether a test was left out by raising this, and not by the solution."""
    kind = type(error)
    return kind.__name__ == "Skipped" and peer.is_verdict(error) and getattr(error, "_cdv_line", None) is None


def _raised_at(error: BaseException, last: bool = False) -> int:
    """The line of the test file where an exception was raised; with `last`, 0 if it was raised
    deeper."""
    line, passed = 0, error.__traceback__
    while passed is not None:
        here = passed.tb_frame.f_code.co_filename == TEST_FILE
        line = passed.tb_lineno if here else 0 if last else line
        passed = passed.tb_next
    return line


def _line_now() -> int:
    """The line of the test file that is being run, 0 if none is."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != TEST_FILE:
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
            import logging

            level, name, text = int(each[0]), str(each[1]), str(each[2])
            logger = logging.getLogger(name)
            if logger.isEnabledFor(level):
                logger.handle(logger.makeRecord(name, level, peer.SOLUTION_FILE, 0, text, (), None))


def _state(name: str) -> Any:
    """The value in a place of the standard library; a copy where that changes in place."""
    if name == "os.environ":
        return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    if name in ("sys.argv", "os.curdir"):
        return sys.argv[:] if name == "sys.argv" else os.getcwd()
    module, _, part = name.rpartition(".")
    now = getattr(__import__(module, fromlist=[part]), part)
    return sys.__stdin__ if type(now).__module__.startswith("_pytest") else now


def _seed_both(to_solution: peer.Peer) -> None:
    """Make seeds that the tests set hold in the solution too."""

    def both(plain: Callable[..., Any], module: str) -> Callable[..., Any]:
        def seed(*args: Any) -> Any:
            to_solution.request("seed", None, (module, *args))
            return plain(*args)

        return seed

    import random

    for module in (random, *([values.numpy().random] if values.numpy() else [])):
        module.seed = both(module.seed, module.__name__)
