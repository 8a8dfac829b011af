"""Exceptions that cross: the line they came through, their text, and making them again."""

from __future__ import annotations

from typing import Any

TEXT_LIMIT = 2000
SOLUTION_FILE = "<solution>"
LINE = "_cdv_line"
"""Attribute of an exception that came from the other side: the last solution line it passed through, or 0."""


def solution_line(error: BaseException) -> int | None:
    """The last line of the solution that an exception passed through, from 1."""
    if (line := line_of(error)) is not None:
        return line or None
    if isinstance(error, SyntaxError) and error.filename == SOLUTION_FILE:
        return error.lineno
    found, passed = None, error.__traceback__
    while passed is not None:
        if passed.tb_frame.f_code.co_filename == SOLUTION_FILE:
            found = passed.tb_lineno
        passed = passed.tb_next
    return found


def line_of(error: BaseException) -> int | None:
    """The line that came with an exception from the other side, 0 for none; None for an exception of our own."""
    try:
        line: int = object.__getattribute__(error, LINE)
    except AttributeError:
        return None
    return line


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:TEXT_LIMIT]
    except Exception:
        return ""


def rebuilt(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception of a class of the standard library, whatever its constructor wants."""
    try:
        return kind(*args) if kind.__module__ == "builtins" else kind.__new__(kind, *args)
    except Exception:
        made = kind.__new__(kind)
        made.args = args
        return made
