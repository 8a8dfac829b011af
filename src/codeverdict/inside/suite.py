"""The tests of a job run by pytest itself, made ready in the server before the fork: that takes
longer than most jobs. Only a server for such tests imports this."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.config import _prepareconfig

from codeverdict.inside import peer, test_side, values

_OFF = (
    "terminal cacheprovider junitxml pastebin doctest setuponly setupplan stepwise faulthandler "
    "threadexception unraisableexception"
)


def session() -> pytest.Session:
    """A session of pytest, ready to collect."""
    off = [word for name in _OFF.split() for word in ("-p", f"no:{name}")]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    config = _prepareconfig(
        ["-c", os.devnull, "--rootdir", "/", "--noconftest", "--assert=plain", "--capture=sys", *off]
    )
    config._do_configure()
    _compare_arrays_strictly()
    made = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=made)
    return made


def _compare_arrays_strictly() -> None:
    """Have an array without elements be approximately no number: pytest takes it for any."""
    kind: Any = type(pytest.approx(0.0))
    plain = kind.__eq__
    kind.__eq__ = lambda self, actual: not values.is_empty_array(actual) and plain(self, actual)


class _Module(pytest.Module):
    loaded: types.ModuleType

    def _getobj(self) -> types.ModuleType:
        return self.loaded


class Suite(test_side.Judging):
    """One job whose tests pytest runs; a plugin of pytest's while it lasts."""

    def __init__(self, session: pytest.Session, *job: Any) -> None:
        super().__init__(*job)
        self.session = session

    def collect(self) -> list[pytest.Item]:
        """The tests of the module, found by pytest."""
        config = self.session.config
        config.option.basetemp = str(Path.cwd() / "pytest")
        config.pluginmanager.register(self, "judge")
        made = _Module.from_parent(self.session, path=Path("/tests.py"))
        made.loaded = sys.modules["tests"]
        return list(self.session.genitems(made))

    def run_one(self, item: Any, following: Any) -> None:
        """Run one test, its fixtures, and the ends of fixtures that the next one does not share."""
        self._reports: list[pytest.TestReport] = []
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def name_of(self, item: Any) -> str:
        """The name of a test, with its class and its parameters."""
        return str(item.nodeid.partition("::")[2])

    def outcome(self, item: Any) -> str:
        """`passed`, `failed`, or `skipped`: left out, with nothing that the solution could have
        done to it."""
        if self.error is not None or any(each.failed for each in self._reports):
            return "failed"
        left_out = [each for each in self._reports if each.skipped]
        if not left_out:
            return "passed" if self._reports else "failed"
        fixed = self.is_fixed(item)
        known = all(_expected(item) if hasattr(each, "wasxfail") else fixed for each in left_out)
        return "skipped" if known else "failed"

    def is_fixed(self, item: Any) -> bool:
        """Whether a test is left out by a mark in which nothing of the solution's stands, or
        unasked."""
        marked = item.get_closest_marker("skip") or item.get_closest_marker("skipif")
        by_unittest = getattr(item.obj, "__unittest_skip__", False) or getattr(item.cls, "__unittest_skip__", False)
        if marked and str(marked.kwargs.get("reason", "")).startswith("got empty parameter set"):
            return False
        return self.words["fixed"] if marked or by_unittest else not self.peer.asked

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A class or the module could not be collected."""
        if not report.passed:
            self.uncollected = self.uncollected or RuntimeError(str(report.longrepr)[-peer.TEXT_LIMIT :])

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        """A report without the text of the failure, which takes longer to make than a test to
        run."""
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, pytest.FixtureLookupError):
            self.peer.refused = self.peer.refused or (f"the fixture {error.argname!r}", True)
        skips = test_side.is_skip(error)
        outcome = "passed" if error is None else "skipped" if skips else "failed"
        self.error = self.error or (error if outcome == "failed" else None)
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
            self.error = None


def _expected(item: Any) -> bool:
    """Whether a test that has failed was to fail, whatever the solution says."""
    mark = item.get_closest_marker("xfail")
    if mark is not None:
        return not (mark.args or "condition" in mark.kwargs)
    holders = (getattr(item, "obj", None), getattr(item, "cls", None))
    return any(getattr(each, "__unittest_expecting_failure__", False) for each in holders)
