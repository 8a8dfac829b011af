"""Limit the number of open requests, and reduce it while the server is overloaded."""

from __future__ import annotations

import random
import time
from threading import Condition

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Limits of the delay between retries in seconds, which doubles each time and has jitter."""


def retry_delay(retry: int, wait: float | None) -> float:
    """Return the seconds before a retry, with jitter: `wait` of the server, else exponential.

    A wait of 0 says nothing, because the server is overloaded.
    """
    if wait:
        return wait + random.uniform(0, min(0.1 * wait, 1.0))
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**retry)
    return random.uniform(longest / 2, longest)


class Pace:
    """A limit of open requests with additive increase, multiplicative decrease and global pauses.

    The limit starts at `most`. "Too many requests" halves it, once per round of requests, and
    nothing is sent until the pause is over. Each answer then raises it by 1/limit, up to `most`.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self.limit = float(most)  # how many requests may be open now
        self._open = 0
        self._paused_until = 0.0
        self._slowed_at = 0.0
        self._stopped = False
        self._free = Condition()

    def enter(self) -> bool:
        """Wait until a request may be opened; return False after `stop`."""
        with self._free:
            while not self._stopped:
                wait = self._paused_until - time.monotonic()
                if wait <= 0 and self._open < max(1, int(self.limit)):
                    self._open += 1
                    return True
                self._free.wait(wait if wait > 0 else None)
            return False

    def leave(self, answered: bool) -> None:
        """Count a request as closed; raise the limit if it was answered."""
        with self._free:
            self._open -= 1
            if answered and self.limit < self._most:
                self.limit = min(self._most, self.limit + 1 / self.limit)
            self._free.notify_all()  # one thread alone may be asleep before a retry

    def slow_down(self, sent_at: float, pause: float) -> None:
        """Halve the limit and pause all requests, because the server was overloaded.

        `sent_at` (monotonic seconds) is when the rejected request was sent: one sent before the
        last reduction does not halve the limit again.
        """
        with self._free:
            if sent_at >= self._slowed_at:
                self.limit = max(1.0, self.limit / 2)
                self._slowed_at = time.monotonic()
            self._paused_until = max(self._paused_until, time.monotonic() + pause)
            self._free.notify_all()

    def sleep(self, seconds: float) -> bool:
        """Sleep before a retry; return False if `stop` was called meanwhile."""
        end = time.monotonic() + seconds
        with self._free:
            while not self._stopped and (remaining := end - time.monotonic()) > 0:
                self._free.wait(remaining)
            return not self._stopped

    def stop(self) -> None:
        """Allow no further requests."""
        with self._free:
            self._stopped = True
            self._free.notify_all()

    def resume(self) -> bool:
        """Allow requests again; return True if they were stopped."""
        with self._free:
            was_stopped, self._stopped = self._stopped, False
            return was_stopped
