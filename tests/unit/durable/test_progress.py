"""What a person, or a log file, sees of a run that is under way."""

from __future__ import annotations

import pytest

from text2grad.durable import progress
from text2grad.durable.progress import CountLine, ProgressLine, in_words


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


def steps(line: ProgressLine, clock: Clock, numbers: range, sampling: float, update: float) -> None:
    for step in numbers:
        line.doing(step, "sampling")
        clock.now += sampling
        line.doing(step, "update")
        clock.now += update
        line.done(step, "score 0.5")


def test_long_steps_are_told_by_phase_with_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("text2grad", 4) as line:
        steps(line, clock, range(4), sampling=100.0, update=20.0)
    assert capsys.readouterr().err.splitlines() == [
        "text2grad: step 1 of 4, update",
        "text2grad: 1/4 score 0.5, 6 min left",
        "text2grad: step 2 of 4, update, 4 min left",
        "text2grad: step 3 of 4, update, 2 min left",
        "text2grad: step 4 of 4, update, 20 s left",
        "text2grad: 4/4 score 0.5",
    ]


def test_quick_steps_share_a_line_every_so_often(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("sft", 1000) as line:
        steps(line, clock, range(1000), sampling=0.5, update=0.5)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "sft: 1/1000 score 0.5, 17 min left" and shown[-1] == "sft: 1000/1000 score 0.5"
    assert len(shown) == 2 + 999 // progress.LINE_SECONDS
    assert "left" in shown[-2]


def test_what_is_left_is_told_from_the_steps_done_here(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """A resumed run has ninety steps behind it that took no time of this process."""
    with ProgressLine("x", 100) as line:
        steps(line, clock, range(90, 91), sampling=10.0, update=10.0)
    assert capsys.readouterr().err == "x: 91/100 score 0.5, 3 min left\n"


def test_a_bar_has_the_time_left_of_all_steps_done(clock: Clock) -> None:
    """Five steps of 34 seconds: not what the last half minute shows."""
    line = ProgressLine("x", 20)
    shown = []
    with line:
        for step in range(5):
            line.doing(step, "update")
            shown.append(line._bar.tasks[0].description)
            clock.now += 34.0
            line.done(step, "")
    assert shown[0] == "x (update)"
    assert [text.rpartition(", ")[2] for text in shown[1:]] == [f"{n} min left" for n in (11, 10, 10, 9)]


def test_a_silent_one_prints_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("x", 2, silent=True) as line:
        steps(line, clock, range(2), sampling=100.0, update=100.0)
    assert capsys.readouterr().err == ""


def test_durations_are_rounded() -> None:
    durations = {0: "0 s", 89: "89 s", 91: "2 min", 3000: "50 min", 9000: "2.5 h"}
    assert {seconds: in_words(seconds) for seconds in durations} == durations


def test_a_count_is_told_now_and_then_and_not_of_what_is_quick(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = CountLine("sampling", 400)
    for count in (100, 200, 300, 400):
        clock.now += 20.0
        line.reached(count)
    assert capsys.readouterr().err == "sampling: 200/400, 40 s left\n"
