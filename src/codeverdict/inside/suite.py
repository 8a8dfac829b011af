"""Run the tests of a job with pytest, prepared in the server before the fork.

The preparation takes longer than most jobs. Only servers for such tests import this module.
"""

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
    """Return a session of pytest that is ready to collect."""
    off = [word for name in _OFF.split() for word in ("-p", f"no:{name}")]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    config = _prepareconfig(
        ["-c", os.devnull, "--rootdir", "/", "--noconftest", "--assert=plain", "--capture=sys", *off]
    )
    config._do_configure()
    _compare_arrays_strictly()
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    return session


def _compare_arrays_strictly() -> None:
    """Make an empty array differ from any `approx`; pytest considers it equal to every number."""
    kind: Any = type(pytest.approx(0.0))
    plain = kind.__eq__
    kind.__eq__ = lambda self, actual: not values.is_empty_array(actual) and plain(self, actual)


class _Module(pytest.Module):
    loaded: types.ModuleType

    def _getobj(self) -> types.ModuleType:
        return self.loaded


class Suite(test_side.Judging):
    """One job whose tests pytest runs, with this object as a plugin."""

    def __init__(self, session: pytest.Session, *job: Any) -> None:
        super().__init__(*job)
        self.session = session

    def collect(self) -> list[pytest.Item]:
        """Return the tests that pytest collects."""
        config = self.session.config
        config.option.basetemp = str(Path.cwd() / "pytest")
        config.pluginmanager.register(self, "judge")
        module = _Module.from_parent(self.session, path=Path("/tests.py"))
        module.loaded = sys.modules["tests"]
        return list(self.session.genitems(module))

    def run_one(self, item: Any, following: Any) -> None:
        """Run one test with its fixtures, and tear down those that the next one does not share."""
        self._reports: list[pytest.TestReport] = []
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def name_of(self, item: Any) -> str:
        """Return the name of a test with its class and parameters."""
        return str(item.nodeid.partition("::")[2])

    def outcome(self, item: Any) -> str:
        """Return `passed`, `failed`, or `skipped` if the solution has not caused the skip."""
        if self.error is not None or any(report.failed for report in self._reports):
            return "failed"
        left_out = [report for report in self._reports if report.skipped]
        if not left_out:
            return "passed" if self._reports else "failed"
        fixed = self.is_fixed(item)
        is_known = all(_is_expected_failure(item) if hasattr(report, "wasxfail") else fixed for report in left_out)
        return "skipped" if is_known else "failed"

    def is_fixed(self, item: Any) -> bool:
        """Return True if the solution cannot have caused a test to be skipped."""
        mark = item.get_closest_marker("skip") or item.get_closest_marker("skipif")
        by_unittest = getattr(item.obj, "__unittest_skip__", False) or getattr(item.cls, "__unittest_skip__", False)
        if mark and str(mark.kwargs.get("reason", "")).startswith("got empty parameter set"):
            return False
        return self.words["fixed"] if mark or by_unittest else not self.peer.asked

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a class or module that could not be collected."""
        if not report.passed:
            self.uncollected = self.uncollected or RuntimeError(str(report.longrepr)[-peer.TEXT_LIMIT :])

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
        """Return a report without the text of the failure, which takes longer than a test."""
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, pytest.FixtureLookupError):
            self.peer.refused = self.peer.refused or (f"the fixture {error.argname!r}", True)
        skips = test_side.is_skip(error)
        outcome = "passed" if error is None else "skipped" if skips else "failed"
        self.error = self.error or (error if outcome == "failed" else None)
        keywords = {name: 1 for name in item.keywords}
        where = ("tests.py", 0, str(error))
        report_type: Any = pytest.TestReport
        return cast(
            pytest.TestReport,
            report_type(item.nodeid, where, keywords, outcome, where if skips else None, call.when),
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the report of a phase; an expected failure is not an error."""
        self._reports.append(report)
        if not report.failed and hasattr(report, "wasxfail"):
            self.error = None


def _is_expected_failure(item: Any) -> bool:
    """Return True if a test is marked as an expected failure independently of the solution."""
    mark = item.get_closest_marker("xfail")
    if mark is not None:
        return not (mark.args or "condition" in mark.kwargs)
    holders = (getattr(item, "obj", None), getattr(item, "cls", None))
    return any(getattr(holder, "__unittest_expecting_failure__", False) for holder in holders)
