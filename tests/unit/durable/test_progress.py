"""What a person, or a log file, sees of a run that is under way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from text2grad.durable import progress
from text2grad.durable.progress import CountLine, ProgressLine, format_duration


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


Shown = Callable[..., list[str]]


@pytest.fixture
def shown(clock: Clock, capsys: pytest.CaptureFixture[str]) -> Shown:
    """The lines that are told of some steps, each so many seconds of sampling and of updates."""

    def lines(line: ProgressLine, numbers: range, sampling: float, update: float) -> list[str]:
        with line:
            for step in numbers:
                line.begin_phase(step, "sampling")
                clock.now += sampling
                line.begin_phase(step, "update")
                clock.now += update
                line.finish_step(step, "score 0.5")
        return capsys.readouterr().err.splitlines()

    return lines


def test_long_steps_are_told_by_phase_with_the_time_left(shown: Shown) -> None:
    assert shown(ProgressLine("text2grad", 4), range(4), 100.0, 20.0) == [
        "text2grad: step 1 of 4, update",
        "text2grad: 1/4 score 0.5, 6 min left",
        "text2grad: step 2 of 4, update, 4 min left",
        "text2grad: step 3 of 4, update, 2 min left",
        "text2grad: step 4 of 4, update, 20 s left",
        "text2grad: 4/4 score 0.5",
    ]
    assert shown(ProgressLine("x", 2, silent=True), range(2), 100.0, 100.0) == []
    # A resumed run has ninety steps behind it that took no time of this process.
    assert shown(ProgressLine("x", 100), range(90, 91), 10.0, 10.0) == ["x: 91/100 score 0.5, 3 min left"]


def test_quick_steps_share_a_line_every_so_often(shown: Shown) -> None:
    lines = shown(ProgressLine("sft", 1000), range(1000), 0.5, 0.5)
    assert lines[0] == "sft: 1/1000 score 0.5, 17 min left" and lines[-1] == "sft: 1000/1000 score 0.5"
    assert len(lines) == 2 + 999 // progress.LINE_SECONDS and "left" in lines[-2]


def test_a_bar_has_the_time_left_of_all_steps_done(clock: Clock) -> None:
    """Five steps of 34 seconds: not what the last half minute shows."""
    line = ProgressLine("x", 20)
    shown = []
    with line:
        for step in range(5):
            line.begin_phase(step, "update")
            shown.append(line._bar.tasks[0].description)
            clock.now += 34.0
            line.finish_step(step, "")
    assert shown[0] == "x (update)"
    assert [text.rpartition(", ")[2] for text in shown[1:]] == [f"{n} min left" for n in (11, 10, 10, 9)]


def test_durations_are_rounded() -> None:
    durations = {0: "0 s", 89: "89 s", 91: "2 min", 3000: "50 min", 9000: "2.5 h"}
    assert {seconds: format_duration(seconds) for seconds in durations} == durations


def test_a_count_is_told_now_and_then_and_not_of_what_is_quick(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = CountLine("sampling", 400)
    for count in (100, 200, 300, 400):
        clock.now += 20.0
        line.update(count)
    assert capsys.readouterr().err == "sampling: 200/400, 40 s left\n"
