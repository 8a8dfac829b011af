"""The part of pytest that test files of code tasks use, to be imported as `pytest` in the test process.

Not pytest itself: importing it costs more than a whole job, and its collection wants files and plug-ins. What is
not here (plug-ins, `request`, indirect parameters) is reported as unsupported by the test runner.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from codeverdict.inside import values

__version__ = "0.0.codeverdict"


ALWAYS, ON_A_CONDITION = 1, 2


class Skipped(BaseException):
    """The test asked to be skipped."""


class Failed(AssertionError):
    """`pytest.fail`, or an expected exception that was not raised."""


class NotSupported(BaseException):
    """The tests use something of pytest that is not here."""


def skip(reason: str = "", **_: Any) -> None:
    """Skip the test."""
    raise Skipped(reason)


def fail(reason: str = "", **_: Any) -> None:
    """Fail the test."""
    raise Failed(reason)


def importorskip(name: str, *_: Any, **__: Any) -> Any:
    """The module; without it the test is skipped."""
    try:
        return __import__(name)
    except ImportError:
        raise Skipped(f"no module {name}") from None


class ExceptionInfo:
    """What `raises` caught."""

    def __init__(self) -> None:
        self.value: Any = None

    @property
    def type(self) -> Any:
        """Its class."""
        return type(self.value)

    @property
    def typename(self) -> str:
        """The name of its class."""
        return type(self.value).__name__

    def match(self, pattern: str) -> bool:
        """Fails unless the pattern is found in the text."""
        import re

        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{pattern!r} is not in {str(self.value)!r}")
        return True


class _Raises:
    def __init__(self, expected: Any, match: Any) -> None:
        self.expected, self.match, self.info = expected, match, ExceptionInfo()

    def __enter__(self) -> ExceptionInfo:
        return self.info

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if error is None:
            raise Failed(f"DID NOT RAISE {_names(self.expected)}")
        error = meant(error, self.expected)
        if not isinstance(error, self.expected):
            return False
        self.info.value = error
        if self.match is not None:
            self.info.match(self.match)
        return True


def meant(error: BaseException, expected: Any) -> BaseException:
    """The StopIteration that a call of the solution ended with, where one is expected."""
    cause = error.__cause__
    stopped = isinstance(error, RuntimeError) and isinstance(cause, StopIteration | StopAsyncIteration)
    return cause if stopped and cause is not None and isinstance(cause, expected) else error


def _names(expected: Any) -> str:
    kinds = expected if isinstance(expected, tuple) else (expected,)
    return ", ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)


def raises(expected: Any, *args: Any, match: Any = None, **kwargs: Any) -> Any:
    """A context, or a call, in which this exception must be raised."""
    context = _Raises(expected, match)
    if not args:
        return context
    with context as info:
        args[0](*args[1:], **kwargs)
    return info


@contextlib.contextmanager
def warns(expected: Any = Warning, *, match: Any = None) -> Iterator[list[Any]]:
    """A context in which such a warning must be given."""
    import re
    import warnings

    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield given
    found = [each for each in given if issubclass(each.category, expected)]
    if not any(match is None or re.search(match, str(each.message)) for each in found):
        raise Failed(f"DID NOT WARN {_names(expected)}")


def deprecated_call(*, match: Any = None) -> Any:
    """`warns` for warnings about deprecation."""
    return warns((DeprecationWarning, PendingDeprecationWarning, FutureWarning), match=match)


def _is_exact(value: Any) -> bool:
    """Whether a value is a number of the kinds that do not mix with `float`."""
    return type(value).__name__ in ("Decimal", "Fraction") and values.reduced(value) is not None


def _is_number(value: Any) -> bool:
    np = values.numpy()
    plain = type(value) in (int, float, complex, bool) or _is_exact(value)
    return plain or (np is not None and isinstance(value, np.number | np.bool_))


class approx:
    """Equal to within a tolerance: numbers, and sequences, dictionaries and arrays of them."""

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None
    __array_priority__ = 100

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __repr__(self) -> str:
        return f"approx({self.expected!r})"

    def __eq__(self, actual: object) -> bool:
        return self._equal(actual, self.expected)

    def __ne__(self, actual: object) -> bool:
        return not self == actual

    def _equal(self, actual: Any, expected: Any) -> bool:
        np = values.numpy()
        if np is not None and (type(actual) is np.ndarray or type(expected) is np.ndarray):
            if not all(type(each) in (np.ndarray, list, tuple) or _is_number(each) for each in (actual, expected)):
                return False
            left, right = np.asarray(actual), np.asarray(expected)
            return left.shape == right.shape and self._all(left.ravel().tolist(), right.ravel().tolist())
        if isinstance(expected, dict):
            return (
                type(actual) is type(expected)
                and actual.keys() == expected.keys()
                and self._items(actual, expected)
            )
        if isinstance(expected, list | tuple):
            return isinstance(actual, list | tuple) and self._all(_items_of(actual), _items_of(expected))
        if _is_number(actual) and _is_number(expected):
            return self._close(actual, expected)
        return type(actual) is type(expected) and bool(actual == expected)

    def _items(self, actual: dict[Any, Any], expected: dict[Any, Any]) -> bool:
        return all(self._equal(actual[key], expected[key]) for key in expected)

    def _all(self, actual: Sequence[Any], expected: Sequence[Any]) -> bool:
        return len(actual) == len(expected) and all(map(self._equal, actual, expected))

    def _close(self, actual: Any, expected: Any) -> bool:
        if actual == expected:
            return True
        if expected != expected:
            return self.nan_ok and actual != actual
        if isinstance(expected, complex) or isinstance(actual, complex):
            return bool(abs(actual - expected) <= self._tolerance(abs(expected)))
        if math.isinf(expected) or math.isinf(actual):
            return False
        kind: Any = type(expected) if _is_exact(expected) else float
        difference = kind(actual) - kind(expected)
        return bool(abs(difference) <= kind(self._tolerance(abs(expected))))

    def _tolerance(self, size: Any) -> float:
        absolute = 1e-12 if self.abs is None else float(self.abs)
        if self.rel is None and self.abs is not None:
            return absolute
        return max(absolute, (1e-6 if self.rel is None else float(self.rel)) * float(size))


def _items_of(value: Any) -> list[Any]:
    """What a list or tuple, or an object of a class derived from one, holds."""
    return list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))


class Case:
    """One row of `parametrize`."""

    def __init__(self, given: tuple[Any, ...], id: str | None, left_out: int) -> None:
        self.given, self.id, self.left_out = given, id, left_out


class _Param:
    def __init__(self, given: tuple[Any, ...], id: str | None, marks: Any) -> None:
        self.given, self.id = given, id
        self.marks = marks if isinstance(marks, list | tuple) else [marks] if marks else []


def param(*given: Any, id: str | None = None, marks: Any = ()) -> _Param:
    """A row of `parametrize` with a name or marks of its own."""
    return _Param(given, id, marks)


def _case(row: Any, names: list[str], id: Any) -> Case:
    own = row if isinstance(row, _Param) else None
    given = own.given if own else (row,) if len(names) == 1 else tuple(row)
    if len(given) != len(names):
        raise ValueError(f"parametrize: {len(names)} names and {len(given)} values")
    left_out = max((getattr(mark, "leaves_out", 0) for mark in (own.marks if own else ())), default=0)
    return Case(given, (own.id if own else None) or (id if isinstance(id, str) else None), left_out)


class Mark:
    """A mark: a decorator that records itself on the test."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.names: tuple[Any, ...] = ()
        self.leaves_out = ALWAYS if name in ("skip", "xfail") else 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.name == "parametrize":
            return _parametrized(*args, **kwargs)
        if len(args) == 1 and not kwargs and callable(args[0]):
            return self._on(args[0])
        made = Mark(self.name)
        made.names = args
        if self.name in ("skipif", "xfail") and args:
            made.leaves_out = ON_A_CONDITION if args[0] else 0
        return made._on_call()

    def _on_call(self) -> Mark:
        return _Ready(self.name, self.leaves_out, self.names)

    def _on(self, test: Any) -> Any:
        if self.leaves_out:
            test._cdv_left_out = self.leaves_out
        if self.name == "usefixtures":
            test._cdv_uses = (*getattr(test, "_cdv_uses", ()), *self.names)
        return test


class _Ready(Mark):
    def __init__(self, name: str, leaves_out: int, names: tuple[Any, ...]) -> None:
        super().__init__(name)
        self.leaves_out, self.names = leaves_out, names

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._on(args[0])


def _parametrized(argnames: Any, argvalues: Any, ids: Any = None, indirect: Any = False, **_: Any) -> Any:
    names = [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
    names = [name for name in names if name]
    rows = list(argvalues)
    given_ids = (
        [ids(row) for row in rows] if callable(ids) else list(ids) if ids is not None else [None] * len(rows)
    )
    cases = [_case(row, names, id) for row, id in zip(rows, given_ids, strict=True)]
    for_fixtures = names if indirect is True else list(indirect or ())
    for case in cases:
        values = zip(names, case.given, strict=True)
        case.given = tuple(Indirect(value) if name in for_fixtures else value for name, value in values)

    def note(test: Any) -> Any:
        test._cdv_parameters = [(names, cases), *getattr(test, "_cdv_parameters", [])]
        return test

    return note


class Indirect:
    """A parameter for the fixture of the same name."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Fixture(NamedTuple):
    """How a fixture is made: for what, whether unasked, under which name, and once for each of its parameters."""

    scope: str
    autouse: bool
    name: str
    params: tuple[Any, ...]


class _Annotation:
    """A type of pytest that is used in annotations."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


MonkeyPatch = CaptureFixture = FixtureRequest = LogCaptureFixture = TempPathFactory = _Annotation


class _Marks:
    def __getattr__(self, name: str) -> Mark:
        return Mark(name)


mark = _Marks()


def fixture(
    function: Any = None,
    *,
    scope: Any = "function",
    autouse: bool = False,
    name: str | None = None,
    params: Any = (),
    ids: Any = None,
) -> Any:
    """Register a function that makes a value for tests that name it."""
    given = tuple(each.given[0] if isinstance(each, _Param) else each for each in params or ())

    def note(made: Any) -> Any:
        made._cdv_fixture = Fixture(scope, autouse, name or made.__name__, given)
        return made

    return note if function is None else note(function)


def expanded(test: Any, outer: Any = None) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(suffix of the name, parameters, whether it is left out: 0, ALWAYS, ON_A_CONDITION) of each case."""
    axes = [*getattr(outer, "_cdv_parameters", []), *getattr(test, "_cdv_parameters", [])]
    left_out = max(getattr(test, "_cdv_left_out", 0), getattr(outer, "_cdv_left_out", 0))
    if not axes:
        yield "", {}, left_out
        return
    seen: dict[str, int] = {}
    for number, row in enumerate(itertools.product(*(cases for _, cases in axes))):
        given: dict[str, Any] = {}
        words: list[str] = []
        for (names, _), case in zip(axes, row, strict=True):
            given.update(zip(names, case.given, strict=True))
            words += (
                [case.id] if case.id else [_word(*pair, number) for pair in zip(names, case.given, strict=True)]
            )
        name = "-".join(words)
        seen[name] = seen.get(name, -1) + 1
        suffix = f"[{name}{seen[name] or ''}]"
        yield suffix, given, max(left_out, *(case.left_out for case in row))


def _word(name: str, value: Any, number: int) -> str:
    if isinstance(value, str | int | float | bool | None):
        return str(value)[:60]
    return value.__name__ if isinstance(value, type) else f"{name}{number}"
