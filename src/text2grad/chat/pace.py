"""How many requests are open at once: as many as are allowed, fewer while the server asks for
patience."""

from __future__ import annotations

import random
import time
from threading import Condition

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between retries where the server does not say: doubled each time, and drawn from the
upper half."""


def pause(retry: int, wait: float | None) -> float:
    """Seconds before the next try: what the server asked for, a little late, else doubling from
    0.5."""
    if wait is not None:
        return wait + random.uniform(0, min(0.1 * wait, 1.0))
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**retry)
    return random.uniform(longest / 2, longest)


class Pace:
    """Additive increase, multiplicative decrease, and pauses that hold for everybody.

    Starts at `most` open requests. A "too many requests" halves the number, once in a round of
    requests, and nothing is sent until the pause is over; each answer then raises it by 1/number,
    up to `most` again.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self.limit = float(most)  # how many requests may be open now
        self._open = 0
        self._until = 0.0
        self._slowed = 0.0
        self._stopped = False
        self._free = Condition()

    def enter(self) -> bool:
        """Wait for a place; False when everything has been stopped."""
        with self._free:
            while not self._stopped:
                wait = self._until - time.monotonic()
                if wait <= 0 and self._open < max(1, int(self.limit)):
                    self._open += 1
                    return True
                self._free.wait(wait if wait > 0 else None)
            return False

    def leave(self, answered: bool) -> None:
        """Give the place back."""
        with self._free:
            self._open -= 1
            if answered and self.limit < self._most:
                self.limit = min(self._most, self.limit + 1 / self.limit)
            self._free.notify()

    def slow_down(self, asked_at: float, pause: float) -> None:
        """The server had enough when it got a request of `asked_at` (monotonic seconds): halve, and
        pause."""
        with self._free:
            if asked_at >= self._slowed:
                self.limit = max(1.0, self.limit / 2)
                self._slowed = time.monotonic()
            self._until = max(self._until, time.monotonic() + pause)
            self._free.notify_all()

    def sleep(self, seconds: float) -> bool:
        """Wait on behalf of one request; False when everything has been stopped meanwhile."""
        end = time.monotonic() + seconds
        with self._free:
            while not self._stopped and (left := end - time.monotonic()) > 0:
                self._free.wait(left)
            return not self._stopped

    def stop(self) -> None:
        """Admit no further requests."""
        with self._free:
            self._stopped = True
            self._free.notify_all()
