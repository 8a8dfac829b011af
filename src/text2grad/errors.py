"""The two ways a program ends early: a user's mistake (one line) or a bug (a traceback)."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SOME_RECORDS_FAILED = 3
EXIT_BUDGET = 4
EXIT_BATCH_PENDING = 75
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class UserError(Exception):
    """A mistake the user can correct: shown as one line, never as a traceback.

    `problem` is the line without its cure; `cure` names the command, key or file that fixes it;
    `exit_code` is one of the codes above.
    """

    def __init__(self, message: str, cure: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(f"{message} ({cure})" if cure else message)
        self.problem, self.cure = message, cure
        self.exit_code = exit_code


class UsageError(UserError):
    """The command line or the configuration cannot be understood (exit code 2)."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message, cure, EXIT_USAGE)


class NotFinite(UserError, FloatingPointError):
    """A model whose probabilities are not finite: nothing can be sampled from it."""


@contextmanager
def full_disk_as_user_error() -> Iterator[None]:
    """Turn a full disk into a mistake of the user, whatever the code within was writing when it
    filled.

    Raises:
        UserError: the disk is full.
    """
    try:
        yield
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if not full and not (type(error).__name__ == "SafetensorError" and "os error 28" in str(error)):
            raise
        what = f" {error.filename}" if isinstance(error, OSError) and error.filename else ""
        raise UserError(f"cannot write{what}: no space left on the disk", "make room, and run it again") from error


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Around a program: a user's mistake is one line on stderr, and ends it with its exit code.

    Raises:
        SystemExit: a `UserError` was raised.
    """
    try:
        with full_disk_as_user_error():
            yield
    except UserError as error:
        line = " ".join(re.split(r"[\r\n]+", str(error)))
        print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)


@cache
def warn_once(message: str) -> None:
    """Print one line on stderr, once."""
    print(message, file=sys.stderr)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, else its type."""
    return re.split("[\r\n]", str(error).strip())[0][:200] or type(error).__name__


class InvalidFields(ValueError):
    """What a record or settings were made of in Python does not fit; `problem` is the line without
    their name."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.problem = problem


class InvalidCritique(UserError):
    """What was said of one response does not fit it: a mistake of its row, and not of the
    set-up."""


def first_error(error: ValueError) -> str:
    """Return an error as one line: the place and the problem of a pydantic error, else its
    message."""
    from pydantic import ValidationError

    if isinstance(error, InvalidFields):
        return error.problem
    if not isinstance(error, ValidationError):
        return str(error)
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


class MissingPackageError(UserError, ImportError):
    """An optional package that is not installed; an extra brings it."""


EXTRAS = {
    **dict.fromkeys(("datasets", "peft", "psutil", "safetensors", "torch", "transformers"), "train"),
    "gguf": "gguf",
    "llguidance": "grounded",
    "sacrebleu": "evaluate",
    **dict.fromkeys(("starlette", "uvicorn"), "page"),
    **{name: name for name in ("tensorboard", "trackio", "trl", "verl", "wandb")},
}
"""The extra of each package that the core of text2grad does not need."""


@contextmanager
def optional_packages() -> Iterator[None]:
    """Around code that imports packages of `EXTRAS`. Any other missing module stays a
    `ModuleNotFoundError`.

    Raises:
        MissingPackageError: one of them is not installed; names the extra that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        line = f"this needs {package}: pip install 'text2grad[{EXTRAS[package]}]'"
        raise MissingPackageError(line) from error


class CritiquesFailed(UserError):
    """More critiques of a batch failed than a policy may learn without (`ppo.max_failed`)."""


class Diverged(UserError):
    """Training that diverged (not finite, or too far from its reference): its batch is kept, it is
    not saved."""
