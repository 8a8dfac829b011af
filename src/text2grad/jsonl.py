"""Read and write JSON Lines, validating every record.

Errors of the disk and of the text become one line that names the file, the line and the cure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import BaseModel, ValidationError

from text2grad.errors import UserError, first_error
from text2grad.feedback import Feedback, Record
from text2grad.json_text import from_json, record_json

R = TypeVar("R", bound=Record)
Model = TypeVar("Model", bound=BaseModel)
_TURN = {"role", "content"}


# ---- reading


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the disk and of the encoding into user errors.

    Raises:
        UserError: `path` cannot be read or is not UTF-8.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}", "save the file as UTF-8") from error


def json_lines(
    lines: Iterable[str], path: Path, cure: str = "one JSON object per line"
) -> Iterator[tuple[int, Any]]:
    """Yield the number (from 1) and the value of every line that is not blank.

    Raises:
        UserError: a line is not JSON; names the line and `cure`.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip("\ufeff \t\r\n"):
            continue
        try:
            yield number, from_json(line.lstrip("\ufeff"), keys_once=True)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON: {error.msg}", cure) from error


def read_jsonl(path: Path, kind: type[R]) -> Iterator[R]:
    """Read records of `kind` from a JSON Lines file.

    Raises:
        UserError: the file cannot be read, or a line is not a record of this kind.
    """
    is_table = kind is Feedback and path.suffix in (".csv", ".tsv")
    cure = _import_command(path) if is_table else "one JSON object per line"
    with reading(path), path.open(encoding="utf-8-sig") as lines:
        for number, value in json_lines(lines, path, cure):
            try:
                yield kind.model_validate(value, strict=False)
            except ValidationError as error:
                cure = (
                    _import_command(path) if _is_foreign_feedback(kind, value) else f"fix or remove line {number}"
                )
                raise UserError(f"{path}:{number}: {first_error(error)}", cure) from error


def _is_foreign_feedback(kind: type[Record], value: object) -> bool:
    """Return True if an invalid row is probably feedback in another format."""
    response = value.get("response") if isinstance(value, dict) else None
    if isinstance(response, list) and any(isinstance(turn, dict) and turn.keys() - _TURN for turn in response):
        return True
    return kind is Feedback and isinstance(value, dict) and "response" in value and "source" not in value


def _import_command(path: Path) -> str:
    return f"convert other feedback with: text2grad import {path} --out feedback.jsonl"


def read_records(path: str | Path) -> list[Feedback]:
    """Read the feedback records of a JSON Lines file.

    Args:
        path: the file.

    Returns:
        The records in the order of the file.

    Raises:
        UserError: the file cannot be read, or a line is not a feedback record.
    """
    return list(read_jsonl(Path(path), Feedback))


def parse_record(line: bytes, kind: type[Model], path: Path, number: int) -> Model:
    """Parse one line of a file that text2grad wrote.

    Raises:
        UserError: the line is not a record of this kind.
    """
    try:
        return kind.model_validate(from_json(line.decode("utf-8-sig")), strict=False)
    except (json.JSONDecodeError, UnicodeDecodeError, ValidationError) as error:
        problem = first_error(error) if isinstance(error, ValidationError) else "not JSON"
        raise UserError(f"{path}:{number}: {problem}", f"fix or remove line {number}") from error


# ---- writing


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk into user errors.

    Raises:
        UserError: `path` cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", "free some space or choose another path"
        ) from error


def refuse_folder(path: Path) -> None:
    """Check that `path` is not a folder.

    Raises:
        UserError: it is a folder.
    """
    if path.is_dir():
        raise UserError(f"cannot write {path}: Is a directory", "name a file, not a folder")


@contextmanager
def whole_file(path: Path, encoding: str = "utf-8", **options: Any) -> Iterator[TextIO]:
    """Open a text file that replaces `path` once complete, so that a crash keeps the old file.

    A link at `path` is replaced, not followed. `options` are those of `open`.

    Raises:
        UserError: the file cannot be written; the old file is unchanged.
    """
    refuse_folder(path)
    temporary = path.with_name(path.name + ".partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        try:
            with open(temporary, "x", encoding=encoding, **options) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_jsonl(path: Path, records: Iterable[Record]) -> int:
    """Write records atomically, one per line without fields that are None; return their number.

    Raises:
        UserError: the file cannot be written; the old file is unchanged.
    """
    count = 0
    with whole_file(path) as file:
        for record in records:
            file.write(record_json(record, exclude_none=True) + "\n")
            count += 1
    return count


def write_records(path: str | Path, records: Iterable[Feedback]) -> int:
    """Write feedback records atomically as a JSON Lines file; return their number.

    Args:
        path: the file; an old one is replaced.
        records: the records to write.

    Returns:
        The number of records.

    Raises:
        UserError: the file cannot be written; the old file is unchanged.
    """
    return write_jsonl(Path(path), records)
