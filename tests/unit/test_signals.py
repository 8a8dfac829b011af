"""Where a signal is obeyed, and where it waits."""

from __future__ import annotations

import os
import signal
from threading import Thread

import pytest

from text2grad.signals import Stopped, StopRequest, no_stop, pending_stop, stop_here


def ask(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def test_the_first_signal_stops_at_the_next_boundary() -> None:
    passed = []
    with pytest.raises(SystemExit) as left, StopRequest():
        stop_here()
        passed.append("before")
        ask()
        passed.append("between")
        stop_here()
        passed.append("after")
    assert passed == ["before", "between"] and left.value.code == 143
    stop_here()  # nobody listens any more


def test_a_signal_after_the_last_boundary_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest():
        ask(signal.SIGINT)


def test_the_second_signal_stops_at_once() -> None:
    with pytest.raises(SystemExit), StopRequest(), no_stop():
        ask()
        with pytest.raises(KeyboardInterrupt):
            ask(signal.SIGINT)
        stop_here()


def test_work_without_stops_is_finished_first() -> None:
    assert not issubclass(Stopped, Exception)  # no handler of failures catches it
    with pytest.raises(SystemExit), StopRequest() as request:
        with no_stop():
            ask()
            with no_stop():
                stop_here()
            stop_here()
            assert pending_stop() is None
        assert pending_stop() is request
        with pytest.raises(Stopped) as stopped:
            stop_here()
        assert stopped.value.signal == signal.SIGTERM


def test_an_inner_request_leaves_the_decision_to_the_outer_one() -> None:
    with pytest.raises(SystemExit), StopRequest(patience=8) as outer, pytest.raises(Stopped), StopRequest():
        ask()
        assert pending_stop() is outer and 7 < outer.seconds_left <= 8
        stop_here()


def test_boundaries_in_threads_stop_but_requests_there_do_nothing() -> None:
    found: list[BaseException] = []

    def work() -> None:
        with StopRequest():
            try:
                stop_here()
            except Stopped as error:
                found.append(error)

    with pytest.raises(SystemExit), StopRequest():
        ask()
        thread = Thread(target=work)
        thread.start()
        thread.join()
    assert len(found) == 1


def test_handlers_are_restored_and_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with StopRequest():
            ask()
            stop_here()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
