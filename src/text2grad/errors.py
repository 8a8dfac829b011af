"""Errors that users can fix are printed as one line; any other exception is a traceback."""

from __future__ import annotations

import difflib
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
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
    """A mistake that the user can correct: shown as one line, never as a traceback.

    `problem` is the message without its `cure`: the command, setting or file that fixes it.
    """

    def __init__(self, message: str, cure: str = "", exit_code: int = EXIT_FAILED) -> None:
        super().__init__(f"{message} ({cure})" if cure else message)
        self.problem, self.cure = message, cure
        self.exit_code = exit_code


class UsageError(UserError):
    """An invalid command line or configuration (exit code 2)."""

    def __init__(self, message: str, cure: str = "") -> None:
        super().__init__(message, cure, EXIT_USAGE)


class NotFinite(UserError, FloatingPointError):
    """A model cannot be sampled because its probabilities are not finite."""


UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Errors of a disk that is full, over a limit or read-only."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if this error or its cause means that a GPU or the CPU ran out of memory."""
    # torch raises RuntimeError, or a subclass for a GPU.
    phrases = ("can't allocate memory", "not enough memory", "out of memory")
    if isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases):
        return True
    return isinstance(error, MemoryError) or (error is not None and is_out_of_memory(error.__cause__))


@contextmanager
def exhausted_machine_as_user_error() -> Iterator[None]:
    """Turn exhausted memory and a full or read-only disk inside this context into user errors.

    Raises:
        UserError: memory ran out, or the disk cannot be written to.
    """
    try:
        yield
    except UserError:  # it has its own cure, also if memory is the cause
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise UserError("out of memory", "close other programs, or use a smaller model or batch") from error
        number = error.errno if isinstance(error, OSError) else None
        is_library = type(error).__name__ == "SafetensorError" or isinstance(error, shutil.Error)
        if is_library and (match := re.search(r"(?:os error |\[Errno )(\d+)", str(error))):
            number = int(match[1])
        if number is None or number not in UNWRITABLE:
            raise
        file = f" {error.filename}" if isinstance(error, OSError) and error.filename else ""
        cure = "make the folder writable" if number == errno.EROFS else "free some space and run it again"
        raise UserError(f"cannot write{file}: {os.strerror(number)}", cure) from error


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a user error as one line on stderr and exit with its code.

    Raises:
        SystemExit: a `UserError` was raised inside the context.
    """
    try:
        with exhausted_machine_as_user_error():
            yield
    except UserError as error:
        line = " ".join(re.split(r"[\r\n]+", str(error)))
        print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)


@cache
def warn_once(message: str) -> None:
    """Print a message on stderr the first time it occurs."""
    print(message, file=sys.stderr)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return re.split("[\r\n]", str(error).strip())[0][:200] or type(error).__name__


def closest(word: str, candidates: Iterable[str]) -> str:
    """Return the candidate that a mistyped word most likely means, or ""."""
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1)), "")


def suggestion(word: str, candidates: Iterable[str], cure: str = "") -> str:
    """Return `did you mean 'x'?` for the closest candidate, if there is one, and then `cure`."""
    match = closest(word, candidates)
    return " ".join(filter(None, [f"did you mean {match!r}?" if match else "", cure]))


class InvalidFields(ValueError):
    """A field of a record or of settings is invalid; `problem` is the message without its class."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.problem = problem


class InvalidCritique(UserError):
    """A critique does not fit its response: a mistake in one row of data, not in the setup."""


def first_error(error: ValueError) -> str:
    """Return an error as one line; of a pydantic error, the first problem and its field."""
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
    """An optional package is not installed; an extra installs it."""


EXTRAS = {
    **dict.fromkeys(("datasets", "gguf", "peft", "psutil", "safetensors", "torch", "transformers"), "train"),
    "llguidance": "grounded",
    "sacrebleu": "evaluate",
    **dict.fromkeys(("starlette", "uvicorn"), "page"),
    **{name: name for name in ("tensorboard", "trackio", "trl", "verl", "wandb")},
}
"""The extra that installs each optional package."""


@contextmanager
def optional_packages() -> Iterator[None]:
    """Report packages of `EXTRAS` that cannot be imported inside this context.

    Any other missing module remains a `ModuleNotFoundError`.

    Raises:
        MissingPackageError: a package is not installed; names the extra that installs it.
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
    """Too many critiques of a batch failed (`ppo.max_failed`)."""


class Diverged(UserError):
    """Training diverged: a number is not finite, or the policy is too far from its reference.

    The batch is written to a file; the policy is not saved.
    """
