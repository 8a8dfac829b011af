"""The error that a caller can act on."""

from __future__ import annotations


class NotSafeError(Exception):
    """None of the requested protection works on this machine. `cure` says what to install."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message} ({cure})")
        self.message, self.cure = message, cure
