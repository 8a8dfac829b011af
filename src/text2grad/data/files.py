"""Rows of files, the first of three passes: rows -> opinions -> records.

A file is JSON Lines, JSON or a table (`data.spreadsheets`), detected by its content rather than its
name. Rows may also come from a data set on the Hugging Face hub.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from text2grad.data.spreadsheets.sheets import is_workbook, sheet_lines
from text2grad.data.spreadsheets.tables import bad_rows, decode, is_filled, is_table, line_rows, table_rows
from text2grad.errors import UserError, first_error, first_line, optional_packages
from text2grad.json_text import json_values
from text2grad.jsonl import json_lines, reading
from text2grad.unicode_words import pieces

Row = dict[str, Any]
LocatedRow = tuple[str, Row]
"""(location, row): `line 3` of JSON Lines, `record 3` of JSON, `row 3` of a table."""
T = TypeVar("T")
_LINES = "to_json('{path}.jsonl', orient='records', lines=True)"
_LOAD = "python -c \"from datasets import Dataset; Dataset.from_file('{path}').to_json('{path}.jsonl')\""
_PANDAS = "python -c \"import pandas; pandas.read_%s('{path}').%s\""
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_SQLITE = "sqlite3 -json '{path}' 'SELECT * FROM TABLE' > '{path}.json'"
_UNSUPPORTED: Sequence[tuple[str, tuple[bytes, ...], str, str]] = (
    (".feather", (b"ARROW1",), "is an Arrow file, not text", _PANDAS % ("feather", _LINES)),
    ("", (b"\xff\xff\xff\xff",), "is an Arrow file, not text", _LOAD),
    (".parquet", (b"PAR1",), "is a Parquet file, not text", _PANDAS % ("parquet", _LINES)),
    (".pkl .pickle .pt .pth .joblib", _PICKLES, "is a pickle, which can run code", f"where it was made: {_LINES}"),
    (".sqlite .sqlite3 .db", (b"SQLite format 3",), "is a database, not text", _SQLITE),
    (".zst", (b"\x28\xb5\x2f\xfd",), "is packed by zstd", "zstd -d '{path}'"),
    (".bz2", (b"BZh",), "is packed by bzip2", "bunzip2 -k '{path}'"),
    (".xz", (b"\xfd7zXZ",), "is packed by xz", "unxz -k '{path}'"),
    (".numbers", (), "is a spreadsheet of Numbers", "export it as Excel or CSV"),
    (".xlsb", (), "is a binary workbook", "save it as .xlsx"),
    (".zip .tar .tgz .7z", (b"PK\x03\x04",), "is an archive", "unpack it, and give one of its files"),
    (".docx .doc .odt .pdf .html .htm", (b"%PDF",), "is a document", "save its table as CSV"),
    (".diff .patch", (), "is a diff", "write the text before it as response, after it as corrected"),
    (".md .markdown", (), "is Markdown", "save its table as CSV (UTF-8)"),
    (".xml .xmi", (), "is XML", "export JSON"),
    (".conll .iob .bio .conllu", (), "has tokens and no text", "export JSON with offsets"),
)
"""Unsupported files: suffixes, magic bytes, kind, and how to convert them."""
_NO_FEEDBACK = re.compile(
    r"[~.].*|.*~|.*\.(part|partial|crdownload|download|tmp|lock|bak|xml)|(desktop\.ini|thumbs\.db|settings\.json)",
    re.IGNORECASE,
)
"""Names of temporary and system files, and of the settings that tools export."""
_LISTS = ("examples", "records", "rows", "items", "tasks", "runs", "results", "annotations", "conversations")
"""Keys under which tools put the list of rows."""
MIN_LIMIT, MAX_RATIO = 64 << 20, 100
"""A gzip file may unpack to 64 MiB or to 100 times its size (text: 10 times, a bomb: 1,000)."""


class RowError(ValueError):
    """An unusable row, with a cure that holds for all such rows of the file."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure


@dataclass(frozen=True)
class HubData:
    """The splits of a hub data set for training and for evaluation ("" without one).

    A split that ends in .json or .jsonl is a file of the data set: `datasets` no longer runs
    loading scripts. Where a data set has several configurations, write "configuration/split".
    """

    train: str = "train"
    heldout: str = ""


HUB: Mapping[str, HubData] = {
    "JeremyAlain/SLF5K": HubData("train.jsonl", "validation.jsonl"),
    "HuggingFaceH4/ultrafeedback_binarized": HubData("train_prefs", "test_prefs"),
}


def hub_data(name: str) -> HubData:
    """Return the splits of a hub data set; `train` alone for one that `HUB` does not list."""
    return HUB.get(name, HubData())


def load_rows(data: str, limit: int | None = None, split: str = "") -> list[Row]:
    """Load the rows of a local file, or of a hub data set.

    Args:
        data: a file that exists or is named like one, else the name of a hub data set.
        limit: the number of rows to read, None for all.
        split: the split of the hub data set, "" for the one to train on.

    Raises:
        UserError: the data cannot be loaded, or has no rows.
    """
    path = Path(data)
    local = path.exists() or is_table(path) or path.name.lower().endswith((".json", ".jsonl", ".jsonl.gz"))
    split = split or hub_data(data).train
    loaded = list(islice(read_rows(path) if local else _hub_rows(data, split), limit))
    if not loaded:
        raise UserError(f"{data} has no records", "check that it is the right file")
    return loaded


def read_rows(path: Path, sheet: str = "") -> Iterator[Row]:
    """Yield the rows of a file; see `read_located_rows`."""
    return (row for _, row in read_located_rows(path, sheet))


def read_located_rows(path: Path, sheet: str = "") -> Iterator[LocatedRow]:
    """Yield the rows of a file with their locations.

    The file is JSON Lines (gzipped or not), JSON with a list of objects or objects by id, or a
    table with a header. `sheet` is the sheet of a workbook, "" for the only one with a table of
    answers.

    Raises:
        UserError: the file is missing, malformed or of an unsupported kind, has something other
            than objects, or unpacks to more than `MIN_LIMIT` and `MAX_RATIO` allow.
    """
    if path.is_dir():
        raise _folder_error(path)
    with reading(path):
        data = path.read_bytes()
    if is_workbook(path, data):
        yield from line_rows(path, sheet_lines(path, data, sheet))
        return
    if sheet:
        raise UserError(f"{path} has no sheet {sheet!r}: it is not a workbook", "leave out --sheet")
    kinds = [kind for kind in _UNSUPPORTED if path.suffix.lower() in kind[0].split()]
    kinds += [kind for kind in _UNSUPPORTED if data.startswith(kind[1])]
    for _, _, kind, cure in kinds[:1]:
        raise UserError(f"{path} {kind}", cure.replace("{path}", str(path)))
    text = decode(path, _unpack(path) if data.startswith(b"\x1f\x8b") or path.suffix == ".gz" else data)
    if is_table(path, text):
        yield from table_rows(path, text)
        return
    for location, row in _json_values(path, text) if text.strip() else ():
        if not isinstance(row, dict):
            raise UserError(f"{path}: {location} is not an object", "one object per record")
        yield location, row


def _folder_error(path: Path) -> UserError:
    names = sorted(file.name for file in path.iterdir() if file.is_file())
    if _holds_data_set(path):
        load = f"from datasets import load_from_disk; load_from_disk('{path}').to_json('{path}.jsonl')"
        return UserError(f"{path} is a data set that `datasets` saved", f'python -c "{load}" (of one split)')
    return UserError(
        f"cannot read {path}: Is a directory", f"give one of its files: {', '.join(names[:6]) or 'there are none'}"
    )


def _holds_data_set(folder: Path) -> bool:
    return any(path.suffix == ".arrow" or path.name == "dataset_dict.json" for path in folder.iterdir())


def list_files(folder: Path) -> tuple[list[Path], list[str]]:
    """List the files of a folder that may hold feedback, and the names of the others.

    Others are partial downloads, locks of editors and files of the system.

    Raises:
        UserError: the folder is a data set that `datasets` saved.
    """
    paths = sorted(folder.iterdir())
    files = [path for path in paths if path.is_file() and not _NO_FEEDBACK.fullmatch(path.name)]
    if _holds_data_set(folder):
        raise _folder_error(folder)
    return files, [path.name for path in paths if path not in files]


def _json_values(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of JSON Lines or JSON with their locations.

    The content decides: a list, or an object over several lines, is JSON under any file name.
    """
    is_named_lines = any(suffix.lower() in (".jsonl", ".ndjson") for suffix in path.suffixes)
    # Not splitlines(): JSON allows U+2028 inside a string.
    lines = text.split("\n")
    head = [line.strip() for line in lines[:3] if line.strip()]
    is_lines = len(head) > 1 and all(line[0] == "{" and line[-1] == "}" for line in head)
    if is_lines or (is_named_lines and not text.lstrip().startswith(("[", "{\n", "{\r"))):
        yield from ((f"line {number}", row) for number, row in json_lines(lines, path, _invalid_json_cure(path)))
    else:
        yield from ((f"record {number}", row) for number, row in enumerate(_json_rows(path, text), start=1))


def _json_rows(path: Path, text: str) -> list[Any]:
    try:
        values = list(json_values(text))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}", _invalid_json_cure(path)) from error
    if len(values) != 1:  # concatenated values, as jq prints them
        return values
    content = values[0]
    if isinstance(content, dict) and (table := _pandas_rows(content)) is not None:
        return table
    if isinstance(content, dict):
        if content.keys() == {"data", "meta"} and isinstance(content["data"], list):  # a page of an API
            return list(content["data"])
        lists = (content[key] for key in _LISTS if isinstance(content.get(key), list))
        rows = next((items for items in lists if items and all(isinstance(item, dict) for item in items)), None)
        if rows is not None and not {"data", "content", "response", "text"} & content.keys():
            return list(rows)
        if all(isinstance(row, dict) for row in content.values()):
            return [{"id": key, **row} for key, row in content.items()]
        return [content]
    if not isinstance(content, list):
        raise UserError(f"{path} is neither a list nor an object", "a list of objects is expected")
    return content


def _pandas_rows(content: Mapping[str, Any]) -> list[Row] | None:
    """Return the rows of pandas' `to_json()`: by columns, or with `orient` "split" or "table"."""
    if {"columns", "data"} <= content.keys() and isinstance(content["columns"], list):
        return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
    if {"schema", "data"} == content.keys():
        return list(content["data"])
    columns = [column for column in content.values() if isinstance(column, dict) and column]
    numbers = [str(number) for number in range(len(columns[0]))] if columns else []
    if not columns or len(columns) < len(content) or any(list(column) != numbers for column in columns):
        return None
    return [{name: column[number] for name, column in content.items()} for number in numbers]


def _invalid_json_cure(path: Path) -> str:
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson", ".gz"):
        return "correct that line, or export the file again"
    return "import reads .json, .jsonl, .csv or .tsv: rename it, or save it as one of these"


def _unpack(path: Path) -> bytes:
    limit = max(MIN_LIMIT, MAX_RATIO * path.stat().st_size)
    try:
        with gzip.open(path) as file:
            data = file.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"cannot read {path}: the gzip file is incomplete or damaged", "download or copy it again"
        ) from error
    if len(data) > limit:
        raise UserError(f"{path} unpacks to more than {limit >> 20} MiB", "unpack it yourself, if you trust it")
    return data


def _hub_rows(name: str, split: str) -> Iterator[Row]:
    with optional_packages():
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
        from huggingface_hub import hf_hub_download

    try:
        if split.endswith((".json", ".jsonl")):
            return read_rows(Path(hf_hub_download(name, split, repo_type="dataset")))
        configuration, _, split = split.rpartition("/")
        return iter(load_dataset(name, *filter(None, [configuration]), split=split))
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"cannot load {name!r} from the hub: {first_line(error)}",
            "check the network, or set task.data to a local .json or .jsonl file of the same shape",
        ) from error


# Rows that cannot be used.


def convert_rows(
    rows: Iterable[Row],
    data: str | Path,
    keys: frozenset[str],
    convert: Callable[[Row, str], Iterable[T]],
    noun: str,
) -> Iterator[T]:
    """Yield the items that `convert(row, fallback_id)` makes of the rows.

    Args:
        rows: the rows of one file.
        data: the file or data set, for errors and fallback ids.
        keys: every row must have these.
        convert: raises ValueError on an unusable row.
        noun: the kind of record, for errors.

    Raises:
        UserError: names all unusable rows and why, after the usable ones.
    """
    located = ((f"record {number}", row) for number, row in enumerate(rows, start=1))
    return (item for _, item in convert_located_rows(located, data, keys, convert, noun))


def convert_located_rows(
    rows: Iterable[LocatedRow],
    data: str | Path,
    keys: frozenset[str],
    convert: Callable[[Row, str], Iterable[T]],
    noun: str,
) -> Iterator[tuple[str, T]]:
    """Convert rows like `convert_rows`, and yield each item with the location of its row."""
    bad: list[tuple[str, ValueError]] = []
    number = 0
    for number, (location, row) in enumerate(rows, start=1):
        try:
            if missing := sorted(keys - row.keys()):
                raise ValueError(f"no {missing[0]!r}")
            converted = list(convert(row, f"{Path(data).stem}-{number}"))
        except (AttributeError, KeyError, TypeError) as error:
            # Only the shape can be wrong: a list in place of an object, or a missing key.
            bad.append((location, ValueError(f"not a {noun}: {error}")))
        except ValueError as error:
            bad.append((location, error))
        else:
            yield from ((location, item) for item in converted)
    if bad:
        cure = "is it the right file?" if len(bad) == number > 1 else "correct or remove these rows"
        cure = next((error.cure for _, error in bad if isinstance(error, RowError)), cure)
        raise bad_rows(data, [(location, first_error(error)) for location, error in bad], cure)


def place_in(path: Path, location: str) -> str:
    """Return a row's place as editors take it, `file:3`, or `file: record 3` without lines."""
    kind, number, *_ = location.split()
    return f"{path}:{number}" if kind == "line" else f"{path}: {location}"


def bad_record(data: str | Path, number: int, error: ValueError) -> UserError:
    """Return the error for record `number` (from 1) of a file."""
    cure = getattr(error, "cure", "") or f"fix or remove record {number}"
    return bad_rows(data, [(f"record {number}", first_error(error))], cure)


# Texts in a row.


def required_text(row: Mapping[str, Any], *keys: str) -> str:
    """Return the first non-empty text under one of `keys`.

    Raises:
        ValueError: no key holds text.
    """
    if text := optional_text(row, *keys):
        return text
    raise ValueError(f"no text in {' or '.join(map(repr, keys))}")


def holds_text(value: Any) -> bool:
    """True if a value is, or contains, text of several words."""
    if isinstance(value, dict | list):
        return any(map(holds_text, value.values() if isinstance(value, dict) else value))
    if not isinstance(value, str):
        return False
    words = (value[start:end] for start, end in pieces(value))
    return len(list(islice((word for word in words if any(map(str.isalpha, word))), 2))) == 2


def find_texts(row: Mapping[str, Any], exclude: Collection[str] = ()) -> Row:
    """Return the texts of several words in a row, by keys that are not in `exclude`."""
    texts = {key: value for key, value in row.items() if key not in exclude and isinstance(value, str)}
    return {key: text for key, text in texts.items() if holds_text(text)}


def cell_text(row: Mapping[str, Any], name: str, label: str = "") -> str:
    """Return the text of a cell, "" where it is empty. `label` names the cell in the error.

    Raises:
        ValueError: it is not text.
    """
    value = row.get(name)
    if isinstance(value, str):
        return value
    if not is_filled(value):
        return ""
    kind = describe_kind(value)
    raise ValueError(f"the {label or name} is {kind}, not text; write it as text, in quotation marks")


def describe_kind(value: Any) -> str:
    """Describe a JSON value in words, for errors."""
    if isinstance(value, bool):
        return f"the value {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    return "a list" if isinstance(value, list) else "an object"


def name_text(value: Any) -> str:
    """Return a name as text: "7" for 7 and 7.0; "" for anything but text and whole numbers."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def optional_text(row: Mapping[str, Any], *keys: str) -> str:
    """Return the first non-empty text under one of `keys`, or ""."""
    return next((text for key in keys if isinstance(text := row.get(key), str) and text.strip()), "")


def find_reference(row: Mapping[str, Any], *keys: str) -> str:
    """Return the reference answer under the first of `keys` with text or a list of one, or "".

    Raises:
        ValueError: a list has several.
    """
    for key in keys:
        value = row.get(key)
        answers: Sequence[Any] = value if isinstance(value, list) else [value]
        if len(answers) > 1:
            raise ValueError(f"{key!r} is a list of {len(answers)} answers: put the one to learn or compare with")
        if text := optional_text({key: answers[0]} if answers else {}, key):
            return text
    return ""
