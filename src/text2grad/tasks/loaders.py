"""Reading published data: rows from a local file or from the Hugging Face hub, and their shapes.

A `Shape` says by which keys a row is known and how it becomes an `Example`. Each task lists its shapes; the
first whose keys the first row has is taken for the whole file, and a row that does not fit is an error that
names it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from text2grad.errors import UserError
from text2grad.feedback import Example, first_error, from_json

Row = dict[str, Any]
LEAST_UNPACKED, MOST_TIMES = 64 << 20, 100
"""A packed file may unpack to 64 MiB, or to 100 times its own size: text of tasks packs to a tenth, a bomb to a
thousandth."""


@dataclass(frozen=True)
class Shape:
    """A published kind of row, known by `keys`. `example(row, id)` raises ValueError on a bad row."""

    name: str
    keys: frozenset[str]
    example: Callable[[Row, str], Example]


@dataclass(frozen=True)
class HubData:
    """A data set on the hub: one of its splits, or one of its files where it has a loading script."""

    split: str = "train"
    file: str = ""


HUB: Mapping[str, HubData] = {
    # `datasets` no longer runs loading scripts, and this set has nothing else: its file is read directly.
    "JeremyAlain/SLF5K": HubData(file="train.jsonl"),
    "HuggingFaceH4/ultrafeedback_binarized": HubData(split="train_prefs"),
    "KodCode/KodCode-Light-RL-10K": HubData(),
    "openai/openai_humaneval": HubData(split="test"),
    "google-research-datasets/mbpp": HubData(split="test"),
    "KodCode/KodCode-V1-SFT-4o": HubData(),
}


def read_examples(data: str, shapes: Sequence[Shape], limit: int | None = None) -> list[Example]:
    """The examples of a local file (.json, .jsonl) or a hub data set, in order, each id once.

    `limit` counts rows. Where several rows ask the same (UltraFeedback has one per response), the first that
    brings a reference answer is kept, in the place of the first.

    Raises:
        UserError: the data cannot be had, has no rows or an unknown shape, or a row is bad (which one).
    """
    rows = load_rows(data, limit)
    shape = _shape_of(rows[0], shapes, data)
    kept: dict[str, Example] = {}
    for number, row in enumerate(rows, start=1):
        example = _converted(row, shape, data, number)
        if example.id not in kept or (example.reference and not kept[example.id].reference):
            kept[example.id] = example
    return list(kept.values())


def load_rows(data: str, limit: int | None = None) -> list[Row]:
    """Rows of a local file if it is one (or is named like one), else of the hub data set of that name.

    Raises:
        UserError: the file or data set cannot be had, or has no rows.
    """
    path = Path(data)
    local = path.exists() or path.name.endswith((".json", ".jsonl", ".jsonl.gz"))
    rows = list(islice(read_rows(path) if local else _hub_rows(data), limit))
    if not rows:
        raise UserError(f"{data} has no records", "check that it is the right file")
    return rows


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a .jsonl (or .jsonl.gz) file, or of a .json file with a list of objects or of objects by id.

    Raises:
        UserError: the file is missing, is not UTF-8 JSON, has something else than objects, or unpacks to more than
            any data do (`LEAST_UNPACKED`, `MOST_TIMES`); says where.
    """
    try:
        text = (_unpacked(path) if path.suffix == ".gz" else path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise UserError(f"{path}: not UTF-8 text at byte {error.start}", "save the file as UTF-8") from error
        reason = getattr(error, "strerror", None)
        raise UserError(f"cannot read {path}: {reason or 'not a whole gzip file'}", "check the path") from error
    rows = _json_lines(path, text) if ".jsonl" in path.suffixes else _json_rows(path, text)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{path}: record {number} is not an object", "one object per record")
        yield row


def _unpacked(path: Path) -> bytes:
    most = max(LEAST_UNPACKED, MOST_TIMES * path.stat().st_size)
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UserError(f"{path} unpacks to more than {most >> 20} MiB", "unpack it yourself, if you trust it")
    return data


def text_of(row: Mapping[str, Any], *keys: str) -> str:
    """The first of `keys` that holds non-empty text.

    Raises:
        ValueError: none does.
    """
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value
    raise ValueError(f"no text in {' or '.join(map(repr, keys))}")


def optional_text(row: Mapping[str, Any], *keys: str) -> str:
    """The first of `keys` that holds non-empty text, else ""."""
    try:
        return text_of(row, *keys)
    except ValueError:
        return ""


def bad_record(data: str | Path, number: int, error: ValueError) -> UserError:
    """One line that names the file and the record (from 1) that cannot be used."""
    detail = first_error(error) if isinstance(error, ValidationError) else str(error)
    return UserError(f"{data}: record {number}: {detail}", f"fix or remove record {number}")


def _json_lines(path: Path, text: str) -> Iterator[Any]:
    # Not splitlines(): JSON allows U+2028 inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield from_json(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON: {error.msg}", "one JSON object per line") from error


def _json_rows(path: Path, text: str) -> list[Any]:
    try:
        content = from_json(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}", "is it a .jsonl file?") from error
    if isinstance(content, dict):
        return [{"id": key, **row} if isinstance(row, dict) else row for key, row in content.items()]
    if not isinstance(content, list):
        raise UserError(f"{path} is neither a list nor an object", "a list of objects is expected")
    return content


def _shape_of(row: Row, shapes: Sequence[Shape], data: str) -> Shape:
    for shape in shapes:
        if shape.keys <= row.keys():
            return shape
    known = "; ".join(f"{shape.name}: {', '.join(sorted(shape.keys))}" for shape in shapes)
    raise UserError(f"{data}: unknown shape with keys {', '.join(sorted(row))}", f"known shapes: {known}")


def _converted(row: Row, shape: Shape, data: str, number: int) -> Example:
    try:
        if missing := sorted(shape.keys - row.keys()):
            raise ValueError(f"no {missing[0]!r}")
        return shape.example(row, f"{Path(data).stem}-{number}")
    except ValueError as error:
        raise bad_record(data, number, error) from error


def _hub_rows(name: str) -> Iterator[Row]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import hf_hub_download

    known = HUB.get(name, HubData())
    try:
        if known.file:
            return read_rows(Path(hf_hub_download(name, known.file, repo_type="dataset")))
        return iter(load_dataset(name, split=known.split))
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"cannot load {name!r} from the hub: {reason}",
            "is there a network? or give a local .json or .jsonl file of the same shape as task.data",
        ) from error
