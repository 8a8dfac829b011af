"""The two ways a program ends early: a user's mistake (one line) or a bug (a traceback)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

    `cure` names the command, key or file that mends it; `exit_code` is one of the codes above. `shown` is false
    where another process of the same run says it.
    """

    shown = True

    def __init__(self, message: str, cure: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(f"{message} ({cure})" if cure else message)
        self.exit_code = exit_code


class UsageError(UserError):
    """The command line or the configuration cannot be understood (exit code 2)."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message, cure, EXIT_USAGE)


class MissingPackageError(UserError, ImportError):
    """A package that text2grad is installed without: an extra brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}: pip install 'text2grad[{extra}]'")


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Around imports of what only `text2grad[extra]` brings: what is not installed becomes one line with its cure.

    A module of text2grad that is missing stays a `ModuleNotFoundError`: that is a bug.

    Raises:
        MissingPackageError: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "text2grad"):
            raise
        raise MissingPackageError(package, extra) from error


class CritiquesFailed(UserError):
    """More critiques of a batch failed than a policy may learn without (`ppo.max_failed`)."""


class Diverged(UserError):
    """Training that diverged (not finite, or too far from its reference): its batch is kept, it is not saved."""
