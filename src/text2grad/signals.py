"""Stop at the next boundary after SIGTERM or Ctrl-C.

Long work calls `stop_here` at boundaries between short pieces, such as a forward pass, a server's
answer or a program's run. After a signal the next boundary raises `Stopped`. Work is never
interrupted between boundaries, so its state is well defined where `Stopped` is caught.
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

POLL_SECONDS = 0.2
"""Interval at which a thread that waits for another process checks for a signal."""


class Stopped(BaseException):
    """Raised at a boundary after `signal`; not an Exception, so error handlers do not catch it."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class StopRequest:
    """A context in which SIGTERM or Ctrl-C stops work at the next boundary; a second stops at once.

    Ignored signals (nohup) stay ignored. Outside the main thread, or inside another request, the
    context does nothing.

    Attributes:
        signal: the signal received, or 0. Once received, the process exits when the context ends.
        patience: seconds to wait for answers that are already paid for.
    """

    def __init__(self, patience: float = math.inf) -> None:
        self.signal = 0
        self.patience = patience
        self._received_at = 0.0
        self._holds = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        global _active
        if _active is None and threading.current_thread() is threading.main_thread():
            _active = self
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        global _active
        if _active is not self:
            return
        _active = None
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, Stopped) or (kind is None and self.signal):  # after the last boundary
            exit_for_signal(self.signal)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            exit_for_signal(number)
        self.signal, self._received_at = number, time.monotonic()
        os.write(2, b"stopping at the next safe point; a second signal stops at once\n")

    @property
    def is_pending(self) -> bool:
        """True if the next boundary stops."""
        return self.signal != 0 and not self._holds

    @property
    def seconds_left(self) -> float:
        """The seconds of `patience` that remain."""
        return self._received_at + self.patience - time.monotonic()

    def hold(self) -> None:
        """Let boundaries ignore the signal until `release`; may be nested."""
        self._holds += 1

    def release(self) -> None:
        """End a `hold`."""
        self._holds -= 1


_active: StopRequest | None = None


def stop_here() -> None:
    """Mark a boundary, where work may be stopped.

    Raises:
        Stopped: a signal was received.
    """
    if _active is not None and _active.is_pending:
        raise Stopped(_active.signal)


def pending_stop() -> StopRequest | None:
    """Return the request that stops the next boundary, for a thread that has to clean up first."""
    return _active if _active is not None and _active.is_pending else None


@contextmanager
def no_stop() -> Iterator[None]:
    """Ignore signals at the boundaries inside this context, for work that must not be cut short."""
    request = _active
    if request is None:
        yield
        return
    request.hold()
    try:
        yield
    finally:
        request.release()


def exit_for_signal(number: int) -> NoReturn:
    """Exit as a signal requires: KeyboardInterrupt (exit code 130), or exit code 143."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(EXIT_TERMINATED)
