"""Reading published data: rows from a local file or from the Hugging Face hub, and their shapes.

A `Shape` says by which keys a row is known and how it becomes an `Example`. Each task lists its shapes; the
first whose keys the first row has is taken for the whole file, and a row that does not fit is an error that
names it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from text2grad.errors import UserError, optional_packages, warn_once
from text2grad.feedback import Example, Message, first_error, from_json, json_lines, reading
from text2grad.tasks.base import Split, TaskSettings, in_split, refuse_shared_ids, refuse_shares, rouge_l_scores
from text2grad.tasks.sheets import decode, is_table, table_rows

Row = dict[str, Any]
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
_OTHER_KINDS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(SPREADSHEETS, ("is a spreadsheet, not text", "save it as CSV (UTF-8) first")),
    **dict.fromkeys(
        (".diff", ".patch"), ("is a diff", "write the text before it as response, after it as corrected")
    ),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z"), ("is an archive", "unpack it, and give one of its files")),
    **dict.fromkeys((".docx", ".doc", ".odt", ".pdf", ".html", ".htm"), ("is a document", "save its table as CSV")),
    **dict.fromkeys((".xml", ".xmi"), ("is XML", "export JSON")),
    **dict.fromkeys((".conll", ".iob", ".bio", ".conllu"), ("has tokens and no text", "export JSON with offsets")),
    ".parquet": (
        "is a Parquet file, not text",
        "python -c \"import pandas; pandas.read_parquet('{path}').to_json("
        "'{path}.jsonl', orient='records', lines=True)\"",
    ),
}
_LISTS = ("examples", "records", "rows", "items", "tasks", "runs", "results", "annotations", "conversations")
"""Keys under which tools put the one list of an export."""
T = TypeVar("T")
LEAST_UNPACKED, MOST_TIMES = 64 << 20, 100
"""A packed file may unpack to 64 MiB, or to 100 times its own size: text of tasks packs to a tenth, a bomb to a
thousandth."""


class RowError(ValueError):
    """A row that cannot be used, with what cures it: the cure is of the file where all rows are alike."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.cure = cure


@dataclass(frozen=True)
class Shape:
    """A published kind of row, known by `keys`. `example(row, id)` raises ValueError on a bad row."""

    name: str
    keys: frozenset[str]
    example: Callable[[Row, str], Example]


@dataclass(frozen=True)
class HubData:
    """A data set on the hub: the split to train on, and the one it comes with to measure on ("": none).

    A split that ends in .json or .jsonl is a file of the data set, for sets that have a loading script and nothing
    else: `datasets` no longer runs those. Of a set with several configurations, "configuration/split".
    """

    train: str = "train"
    heldout: str = ""


HUB: Mapping[str, HubData] = {
    "JeremyAlain/SLF5K": HubData("train.jsonl", "validation.jsonl"),
    "HuggingFaceH4/ultrafeedback_binarized": HubData("train_prefs", "test_prefs"),
    "openai/openai_humaneval": HubData("test"),
    "google-research-datasets/mbpp": HubData("train", "test"),
}


def hub_data(name: str) -> HubData:
    """The splits of a data set on the hub; of one that is not known here, `train` alone."""
    return HUB.get(name, HubData())


class DataTask:
    """Base of tasks on published data: examples by split, and ROUGE-L against the reference.

    Held out are those of `task.heldout_data`, else those of the split that the data set comes with (`HUB`), else a
    share of the questions (`in_split`).

    Raises:
        UserError: see `read_examples`.
    """

    def __init__(
        self,
        settings: TaskSettings,
        default: str,
        shapes: Sequence[Shape],
        kept: Callable[[list[Example], str], list[Example]] = lambda examples, data: examples,
    ) -> None:
        def read(data: str, split: str) -> list[Example]:
            return kept(read_examples(data, shapes, settings.limit, split), data)

        data = settings.data or default
        beside = settings.heldout_data or data
        hub = hub_data(beside)
        heldout = hub.heldout or (hub.train if settings.heldout_data else "")
        self._settings = settings
        self._examples = read(data, hub_data(data).train)
        self._heldout = read(beside, heldout) if heldout else None

    def examples(self, split: Split) -> list[Example]:
        """The examples of one split, with the reference where the data has one."""
        return in_split(self._examples, split, self._settings, self._heldout)

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """ROUGE-L F1 against the reference; empty without one."""
        return rouge_l_scores(example.reference, response) if example.reference else {}


class Benchmark:
    """A published benchmark: every question is held out, and `evaluate` counts its answers in a way of its own.

    Raises:
        UserError: `task.split` or `task.heldout_data` is set, or the questions cannot be read.
    """

    name: str
    critic_prompt = "qa"

    def __init__(self, settings: TaskSettings) -> None:
        refuse_shares(settings)
        self._questions = self.read(settings)

    def read(self, settings: TaskSettings) -> list[Example]:
        """All questions of `task.data`, else of the data set that the benchmark has on the hub."""
        raise NotImplementedError

    def examples(self, split: Split) -> list[Example]:
        """Every question for `heldout`, none for the others."""
        return self._questions if split == "heldout" else []

    def scores(self, example: Example, response: str) -> dict[str, float]:
        """None without a model, a judge or a sandbox."""
        return {}


def read_examples(data: str, shapes: Sequence[Shape], limit: int | None = None, split: str = "") -> list[Example]:
    """The examples of a local file (`read_rows`) or of a split of a hub data set, in order, each id once.

    `limit` counts rows. Where several rows ask the same (UltraFeedback has one per response), the first that
    brings a reference answer is kept, in the place of the first; other reference answers are counted on stderr.

    Raises:
        UserError: the data cannot be loaded, has no rows or an unknown format, a row is bad (which one), or two
            prompts have one id.
    """
    rows = load_rows(data, limit, split)
    shape = _shape_of(rows[0], shapes, data)
    convert = convert_rows(rows, data, shape.keys, lambda *row: [shape.example(*row)], f"row of {shape.name}")
    found = list(convert)
    refuse_shared_ids(found, data)
    kept: dict[str, Example] = {}
    for example in found:
        if example.id not in kept or (example.reference and not kept[example.id].reference):
            kept[example.id] = example
    other = sum(bool(each.reference) and each.reference != kept[each.id].reference for each in found)
    if other:
        warn_once(f"{data}: {other} rows have another reference answer to a prompt and id seen before: not used")
    return list(kept.values())


def load_rows(data: str, limit: int | None = None, split: str = "") -> list[Row]:
    """Rows of a local file if it is one (or is named like one), else of the hub data set of that name.

    `split` is of the hub data set; "": the one to train on.

    Raises:
        UserError: the file or data set cannot be loaded, or has no rows.
    """
    path = Path(data)
    local = path.exists() or is_table(path) or path.name.lower().endswith((".json", ".jsonl", ".jsonl.gz"))
    split = split or hub_data(data).train
    rows = list(islice(read_rows(path) if local else _hub_rows(data, split), limit))
    if not rows:
        raise UserError(f"{data} has no records", "check that it is the right file")
    return rows


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of JSON Lines (packed or not), of JSON with a list of objects or objects by id, or of a table with a
    header (`tasks.sheets`).

    Raises:
        UserError: the file is missing, is not UTF-8 or not of its kind, has something else than objects, or unpacks
            to more than any data do (`LEAST_UNPACKED`, `MOST_TIMES`); says where.
    """
    return (row for _, row in placed_rows(path))


def placed_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """`read_rows`, each with where it is: `line 3`, `record 3` of a .json file, `row 3` of a table."""
    suffix = path.suffix.lower()
    if suffix in _OTHER_KINDS:
        what, cure = _OTHER_KINDS[suffix]
        raise UserError(f"{path} {what}", cure.replace("{path}", str(path)))
    if path.is_dir():
        inside = ", ".join(sorted(each.name for each in path.iterdir() if each.is_file())[:6]) or "there are none"
        raise UserError(f"cannot read {path}: Is a directory", f"give one of its files: {inside}")
    with reading(path):
        text = decode(path, _unpacked(path) if suffix == ".gz" else path.read_bytes())
    if is_table(path, text):
        yield from table_rows(path, text)
        return
    for what, number, row in _objects(path, text) if text.strip() else ():
        if not isinstance(row, dict):
            raise UserError(f"{path}: {what} {number} is not an object", "one object per record")
        yield f"{what} {number}", row


def _objects(path: Path, text: str) -> Iterator[tuple[str, int, Any]]:
    """The objects of JSON Lines or of JSON, each with what it is and its number. What is in the file decides: a
    list, or an object over several lines, is JSON under any name, and so are lines of objects JSON Lines.
    """
    named_lines = any(suffix.lower() in (".jsonl", ".ndjson") for suffix in path.suffixes)
    # Not splitlines(): JSON allows U+2028 inside a string.
    lines = text.split("\n")
    filled = [line for line in lines[:3] if line.strip()]
    one_each = len(filled) > 1 and all(line.strip()[0] == "{" and line.strip()[-1] == "}" for line in filled)
    if one_each or (named_lines and not text.lstrip().startswith(("[", "{\n", "{\r"))):
        yield from (("line", number, row) for number, row in json_lines(lines, path, _not_json(path)))
    else:
        yield from (("record", number, row) for number, row in enumerate(_json_rows(path, text), start=1))


def _unpacked(path: Path) -> bytes:
    most = max(LEAST_UNPACKED, MOST_TIMES * path.stat().st_size)
    try:
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"cannot read {path}: not a whole gzip file", "check the path") from error
    if len(data) > most:
        raise UserError(f"{path} unpacks to more than {most >> 20} MiB", "unpack it yourself, if you trust it")
    return data


def convert_rows(
    rows: Iterable[Row],
    data: str | Path,
    keys: frozenset[str],
    convert: Callable[[Row, str], Iterable[T]],
    what: str,
) -> Iterator[T]:
    """What `convert(row, id where it has none)` makes of every row, which has at least `keys`.

    Raises:
        UserError: rows are no records of `what`: which, and why; where all are alike, what is wrong with the file.
    """
    faults: dict[int, ValueError] = {}
    number = 0
    for number, row in enumerate(rows, start=1):
        try:
            found = _converted(row, keys, convert, f"{Path(data).stem}-{number}", what)
        except ValueError as error:
            faults[number] = error
        else:
            yield from () if faults else found
    if faults:
        raise _bad_records(data, faults, number)


def _converted(
    row: Row, keys: frozenset[str], convert: Callable[[Row, str], Iterable[T]], id: str, what: str
) -> list[T]:
    try:
        if missing := sorted(keys - row.keys()):
            raise ValueError(f"no {missing[0]!r}")
        return list(convert(row, id))
    except (AttributeError, KeyError, TypeError) as error:
        # Only shapes are wrong here: a list where an object belongs, or a key that is not there.
        raise ValueError(f"not a {what}: {error}") from error


def _bad_records(data: str | Path, faults: Mapping[int, ValueError], of: int) -> UserError:
    """One line for all rows that cannot be used."""
    (first, error), *others = faults.items()
    if not others:
        return bad_record(data, first, error)
    detail = _detail(error)
    if len(faults) == of:
        said = f"{data}: none of its {of} records can be read, the first: record {first}: {detail}"
        return UserError(said, getattr(error, "cure", "") or "is it the right file?")
    more = ", ".join(map(str, list(faults)[1:20])) + (" ..." if len(faults) > 20 else "")
    where = f"{len(faults)} of {of} records cannot be read, the first: record {first}: {detail}"
    return UserError(f"{data}: {where}", f"fix or remove record {first}, and look at {more}")


def _detail(error: ValueError) -> str:
    return first_error(error) if isinstance(error, ValidationError) else str(error)


def text_of(row: Mapping[str, Any], *keys: str) -> str:
    """The first of `keys` that holds non-empty text.

    Raises:
        ValueError: none does.
    """
    if text := optional_text(row, *keys):
        return text
    raise ValueError(f"no text in {' or '.join(map(repr, keys))}")


def optional_text(row: Mapping[str, Any], *keys: str) -> str:
    """The first of `keys` that holds non-empty text, else ""."""
    return next((text for key in keys if isinstance(text := row.get(key), str) and text.strip()), "")


def reference_of(row: Mapping[str, Any], *keys: str) -> str:
    """The reference answer under the first of `keys` with text or a list of one text; else "".

    Raises:
        ValueError: a list has several.
    """
    for key in keys:
        value = row.get(key)
        several = value if isinstance(value, list) else [value]
        if len(several) > 1:
            raise ValueError(f"{key!r} is a list of {len(several)} answers: put the one to learn or compare with")
        if text := optional_text({key: several[0]} if several else {}, key):
            return text
    return ""


def one_turn(id: str, content: str, reference: str, meta: Mapping[str, str]) -> Example:
    """An example that is one user turn; of `meta`, what is empty is left out."""
    kept = {name: text for name, text in meta.items() if text}
    return Example(id=id, prompt=(Message(role="user", content=content),), reference=reference, meta=kept)


def bad_record(data: str | Path, number: int, error: ValueError) -> UserError:
    """One line that names the file and the record (from 1) that cannot be used."""
    cure = getattr(error, "cure", "") or f"fix or remove record {number}"
    return UserError(f"{data}: record {number}: {_detail(error)}", cure)


def _json_rows(path: Path, text: str) -> list[Any]:
    try:
        content = from_json(text, keys_once=True)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}", _not_json(path)) from error
    if isinstance(content, dict):
        listed = next((content[key] for key in _LISTS if _is_list_of_objects(content.get(key))), None)
        if listed is not None and not {"data", "content", "response", "text"} & content.keys():
            return list(listed)
        if all(isinstance(row, dict) for row in content.values()):
            return [{"id": key, **row} for key, row in content.items()]
        return [content]
    if not isinstance(content, list):
        raise UserError(f"{path} is neither a list nor an object", "a list of objects is expected")
    return content


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _not_json(path: Path) -> str:
    """The cure for a file that is not JSON."""
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson", ".gz"):
        return "correct that line, or export the file again"
    return "import reads .json, .jsonl, .csv, .tsv or .md: rename it, or save it as one of these"


def _shape_of(row: Row, shapes: Sequence[Shape], data: str) -> Shape:
    for shape in shapes:
        if shape.keys <= row.keys():
            return shape
    known = "; ".join(f"{shape.name}: {', '.join(sorted(shape.keys))}" for shape in shapes)
    raise UserError(f"{data}: unknown shape with keys {', '.join(sorted(row))}", f"known shapes: {known}")


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
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"cannot load {name!r} from the hub: {reason}",
            "is there a network? or give a local .json or .jsonl file of the same shape as task.data",
        ) from error
