"""The estimated time of `improve` is corrected by the first updates, once it is wrong enough."""

from __future__ import annotations

import pytest

from text2grad.config.estimate import LOAD_SECONDS, Estimate
from text2grad.stages.improve import steps
from text2grad.stages.improve.steps import Forecast

MINUTE = 60.0
EXPECTED = Estimate({"sft": 2 * MINUTE + LOAD_SECONDS, "evaluate base": 2 * MINUTE}, {"sft": 6.0}, 3.0)


class Clock:
    """The clock of a forecast, and the lines that it prints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.now = 100.0
        self._capsys = capsys
        monkeypatch.setattr(steps.time, "perf_counter", lambda: self.now)

    def update(self, forecast: Forecast, step: str, count: int, seconds: float) -> str:
        """Report updates at a pace; return what is printed."""
        measure = forecast.on_update(step)
        for number in range(count):
            self.now += seconds
            measure(number, {})
        return self._capsys.readouterr().err

    def finish(self, forecast: Forecast, step: str, seconds: float) -> str:
        self.now += seconds
        forecast.finish(step)
        return self._capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Clock:
    return Clock(monkeypatch, capsys)


@pytest.mark.parametrize(("pace", "minutes"), [(1.0, 0), (1.25, 0), (3.0, 12), (0.5, 2)])
def test_a_total_that_changes_by_more_than_a_third_is_printed(clock: Clock, pace: float, minutes: int) -> None:
    printed = clock.update(Forecast(EXPECTED), "sft", 3, 6 * pace)
    assert printed.count("in all") == bool(minutes) and (
        not minutes or f"about {minutes} minutes in all" in printed
    )


def test_one_correction_is_enough_at_a_steady_pace(clock: Clock) -> None:
    forecast = Forecast(EXPECTED)
    assert clock.update(forecast, "sft", 20, 18.0).count("in all") == 1
    assert clock.finish(forecast, "sft", 0.0) == ""


def test_two_updates_are_needed(clock: Clock) -> None:
    assert clock.update(Forecast(EXPECTED), "sft", 2, 60.0) == ""


def test_a_step_of_an_earlier_process_does_not_count(clock: Clock) -> None:
    forecast = Forecast(EXPECTED)
    forecast.finish("evaluate base", earlier=True)
    assert clock.update(forecast, "sft", 20, 6.0) == ""


def test_a_short_run_is_not_corrected(clock: Clock) -> None:
    assert clock.update(Forecast(Estimate({"sft": 10.0}, {"sft": 2.0}, 1.0)), "sft", 4, 6.0) == ""
