"""The two ways a program ends early: a user's mistake (one line) or a bug (a traceback)."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SOME_RECORDS_FAILED = 3
EXIT_BUDGET = 4
EXIT_BATCH_PENDING = 75
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class UserError(Exception):
    """A mistake the user can mend: shown as one line, never as a traceback.

    `cure` names the command, key or file that mends it; `exit_code` is what the program leaves with
    (1 failed, 2 usage, 3 some records failed, 4 budget reached). `shown` is false where another process of the
    same run says it.
    """

    shown = True

    def __init__(self, message: str, cure: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(f"{message} ({cure})" if cure else message)
        self.exit_code = exit_code


class UsageError(UserError):
    """The command line or the configuration cannot be understood (exit code 2)."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message, cure, EXIT_USAGE)


class CritiquesFailed(UserError):
    """More critiques of a batch failed than a policy may learn without (`ppo.max_failed`)."""


class Diverged(UserError):
    """A training that left numbers, its reference or sense behind: its batch is kept, it is not saved."""
