"""Stop at the next boundary when a signal asks this process to stop.

Long work has many boundaries, each a call of `stop_here` between two short pieces: a pass of a
model, an answer of a server, a run of a program. After a signal the next boundary raises `Stopped`.
Work is never interrupted between two boundaries, so its state is known where `Stopped` is caught.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn

from text2grad.errors import EXIT_TERMINATED

LOOK_SECONDS = 0.2
"""How often a thread that waits for something outside of this process checks for a signal."""


class Stopped(BaseException):
    """Work was stopped at a boundary, by `signal`. Not an Exception: code that recovers from
    failures must not."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class StopRequest:
    """SIGTERM and Ctrl-C inside this context: the first stops at the next boundary, the second at
    once.

    `signal`: the one received, or 0, which ends the process at the end of the context. `patience`:
    seconds to wait for answers already paid for. Ignored signals (nohup) stay ignored. Outside the
    main thread, and inside another request, this does nothing.
    """

    def __init__(self, patience: float = math.inf) -> None:
        self.signal = 0
        self.patience = patience
        self._asked_at = 0.0
        self._holds = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        global _listening
        if _listening is None and threading.current_thread() is threading.main_thread():
            _listening = self
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        global _listening
        if _listening is not self:
            return
        _listening = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, Stopped) or (kind is None and self.signal):  # after the last boundary
            leave(self.signal)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            leave(number)
        self.signal, self._asked_at = number, time.monotonic()
        os.write(2, b"stopping; again: at once\n")

    @property
    def obeyed(self) -> bool:
        """Whether the next boundary stops."""
        return self.signal != 0 and not self._holds

    @property
    def seconds_left(self) -> float:
        """The rest of `patience`."""
        return self._asked_at + self.patience - time.monotonic()

    def hold(self) -> None:
        """Let boundaries ignore the signal until `release`; may be nested."""
        self._holds += 1

    def release(self) -> None:
        """End a `hold`."""
        self._holds -= 1


_listening: StopRequest | None = None


def stop_here() -> None:
    """A boundary: work may be stopped here.

    Raises:
        Stopped: a signal was received.
    """
    if _listening is not None and _listening.obeyed:
        raise Stopped(_listening.signal)


def stop_wanted() -> StopRequest | None:
    """The request that the next boundary obeys, for a thread that has to clean up first."""
    return _listening if _listening is not None and _listening.obeyed else None


@contextmanager
def held() -> Iterator[None]:
    """Work that may not stop half-way: its boundaries ignore a signal."""
    request = _listening
    if request is None:
        yield
        return
    request.hold()
    try:
        yield
    finally:
        request.release()


def leave(number: int) -> NoReturn:
    """End as the signal asks: KeyboardInterrupt (exit code 130), or exit code 143."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(EXIT_TERMINATED)
