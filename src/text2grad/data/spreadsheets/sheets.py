"""Workbooks of Excel and LibreOffice as tables: one sheet as text, formulas as their saved values.

`python-calamine` reads .xlsx, .xlsm (without running macros), .xls and .ods. Before it sees a file,
anything that could exhaust memory or lose data is refused: archives that unpack to too much, cells
far below or right of the others, formulas without a value, errors of formulas.
"""

from __future__ import annotations

import io
import re
import shlex
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from python_calamine import CalamineError, CalamineSheet, PasswordError, SheetTypeEnum, load_workbook

from text2grad.data.spreadsheets.columns import names_feedback, profile_column
from text2grad.data.spreadsheets.tables import WORKBOOKS, Line, bad_rows
from text2grad.errors import UserError, first_line, warn_once

MAX_BYTES, MAX_UNPACKED, MAX_CELLS = 64 << 20, 512 << 20, 10_000_000
"""Limits: 64 MiB for a workbook, 512 MiB unpacked (without pictures), ten million cells a sheet."""
MIN_LIMIT, MAX_RATIO = 64 << 20, 200
"""A part may unpack to 64 MiB or to 200 times its size."""
HEADER_ROWS = 10
"""The header is one of the first rows that are not blank."""
MAX_NAME = 200
"""Characters of a header cell; some are questions of a survey."""
_OLE = b"\xd0\xcf\x11\xe0"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_NOT_READ = re.compile(
    r"xl/(media|drawings|charts|embeddings|ctrlProps|theme|vbaProject)|(Pictures|Thumbnails)/|Object "
)
"""Parts of a workbook that hold no cells."""
_CELL = re.compile(r"([A-Z]{1,3})(\d{1,7})")
_EXACT = 1e15
"""Spreadsheets keep fifteen digits of a number."""


@dataclass
class _Cells:
    """The extent of a sheet, and its cells with errors and with formulas without a value."""

    rows: int = 0
    columns: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)


def is_workbook(path: Path, data: bytes) -> bool:
    """True for a workbook by its suffix, or an archive with the parts of one."""
    suffix = path.suffix.lower()
    if suffix in WORKBOOKS:
        return True
    return suffix not in (".numbers", ".xlsb") and data.startswith(b"PK\x03\x04") and b"xl/workbook.xml" in data


def sheet_lines(path: Path, data: bytes, sheet: str = "") -> list[Line]:
    """Return the rows of a sheet that are not blank, from its header on.

    Warns of rows above the header, and of cells merged over several rows. `sheet` is the name of a
    sheet, "" for the only one with a table of answers.

    Raises:
        UserError: the workbook is damaged, protected or too large, the sheet is missing or
            ambiguous, or cells have no value.
    """
    if len(data) > MAX_BYTES:
        size = f"{len(data) >> 20} MiB, more than {MAX_BYTES >> 20}"
        raise UserError(f"{path} has {size}", "save the sheet alone as CSV (UTF-8)")
    if data.startswith(_OLE) and _ENCRYPTED in data:
        raise _password_error(path)
    parts = _unpack_parts(path, data) if data.startswith(b"PK") else {}
    try:
        cells = {name: _parse_cells(part) for name, part in _sheet_parts(parts)}
        for name, extent in cells.items():
            _refuse_extent(path, name, extent.rows, extent.columns)
        with load_workbook(io.BytesIO(_pack(parts) if parts else data)) as workbook:
            tables = [meta.name for meta in workbook.sheets_metadata if meta.typ == SheetTypeEnum.WorkSheet]
            names = _candidates(path, workbook.sheet_names, tables, sheet)
            sheets = {name: _read_sheet(path, workbook.get_sheet_by_name(name)) for name in names}
    except PasswordError as error:
        raise _password_error(path) from error
    except (CalamineError, ElementTree.ParseError, zipfile.BadZipFile, ValueError) as error:
        raise _damage_error(path, error) from error
    name = _choose_sheet(path, sheets)
    if name in cells:
        _refuse_valueless(path, name, cells[name])
    return sheets[name].lines


def _password_error(path: Path) -> UserError:
    cure = "save it without one (Excel: File, Info, Protect Workbook), or one sheet as CSV (UTF-8)"
    return UserError(f"{path} is protected by a password", cure)


def _damage_error(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read: {first_line(error)}", "open it, and save it again as .xlsx")


# The archive.


def _unpack_parts(path: Path, data: bytes) -> dict[str, bytes]:
    """Unpack the parts of a workbook that may hold cells, within limits.

    Raises:
        UserError: it unpacks to too much, or is damaged.
    """
    parts: dict[str, bytes] = {}
    total = 0
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if entry.is_dir() or _NOT_READ.match(entry.filename):
                    continue
                most = min(max(MIN_LIMIT, MAX_RATIO * entry.compress_size), MAX_UNPACKED - total)
                with archive.open(entry) as file:
                    part = file.read(most + 1)
                total += len(part)
                if len(part) > most:
                    problem = f"{path} unpacks to more than {most >> 20} MiB ({entry.filename})"
                    raise UserError(problem, "save the sheet alone as CSV (UTF-8), if you trust it")
                parts[entry.filename] = part
    except RuntimeError as error:  # an archive with a password
        raise _password_error(path) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError) as error:
        raise _damage_error(path, error) from error
    return parts


def _pack(parts: Mapping[str, bytes]) -> bytes:
    """Pack checked parts into an archive, so that nothing unchecked is read."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return buffer.getvalue()


def _refuse_extent(path: Path, name: str, rows: int, columns: int) -> None:
    if rows * columns > MAX_CELLS:
        problem = f"{path}: the sheet {name!r} ends in row {rows:,} and column {columns:,}"
        raise UserError(problem, "delete the empty rows and columns after the table, and save it")


def _sheet_parts(parts: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the names of the sheets of an .xlsx and their XML."""
    if "xl/workbook.xml" not in parts:
        return
    links = ElementTree.fromstring(parts.get("xl/_rels/workbook.xml.rels", b"<none/>"))
    targets = {link.get("Id"): (link.get("Target") or "").removeprefix("/xl/") for link in links}
    for element in ElementTree.fromstring(parts["xl/workbook.xml"]).iter():
        if _tag(element) == "sheet":
            target = next((value for key, value in element.items() if key.endswith("}id")), "")
            part = parts.get(f"xl/{targets.get(target, '')}")
            if part is not None:
                yield element.get("name") or "", part


def _parse_cells(part: bytes) -> _Cells:
    cells = _Cells()
    for _, element in ElementTree.iterparse(io.BytesIO(part)):
        tag = _tag(element)
        if tag == "c":
            place = _CELL.fullmatch(element.get("r") or "")
            inside = {_tag(child): child.text or "" for child in element}
            if place:
                cells.columns = max(cells.columns, _column_number(place[1]))
                cells.rows = max(cells.rows, int(place[2]))
            if element.get("t") == "e":
                cells.errors.append((element.get("r") or "", inside.get("v", "")))
            elif "f" in inside and not inside.get("v") and element.get("t") is None:
                cells.unsaved.append(element.get("r") or "")
            element.clear()
        elif tag == "row":
            element.clear()
    return cells


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _column_number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number


def _refuse_valueless(path: Path, name: str, cells: _Cells) -> None:
    """Refuse cells that hold an error of a formula, or a formula that was never computed.

    Raises:
        UserError: names all of them.
    """
    if cells.errors:
        places = [(place, f"the spreadsheet's error {error}") for place, error in cells.errors]
        raise bad_rows(f"{path}, sheet {name!r}", places, "correct the formula, or clear the cell, and save it")
    if cells.unsaved:
        places = [(place, "a formula without a value") for place in cells.unsaved]
        raise bad_rows(f"{path}, sheet {name!r}", places, "open it in Excel or LibreOffice, and save it")


# Sheets.


@dataclass(frozen=True)
class _Sheet:
    """The rows of a sheet from its header on, its problem if any, and notes on merged cells."""

    lines: list[Line]
    problem: str = ""
    notes: tuple[str, ...] = ()


def _candidates(path: Path, names: Sequence[str], tables: Sequence[str], sheet: str) -> list[str]:
    """Return the named sheet, else all sheets with cells.

    Raises:
        UserError: the workbook has no such sheet.
    """
    if sheet and sheet not in names:
        raise UserError(f"{path} has no sheet {sheet!r}", f"sheets: {', '.join(map(repr, names))[:200]}")
    if sheet and sheet not in tables:
        raise UserError(f"{path}: the sheet {sheet!r} is a chart, not a table", "choose another with --sheet")
    if not tables:
        raise UserError(f"{path} has charts and no table", "put the feedback into a sheet with cells")
    return [sheet] if sheet else list(tables)


def _read_sheet(path: Path, sheet: CalamineSheet) -> _Sheet:
    """Read the rows of a sheet that are not blank, with merged cells repeated in each row."""
    end = sheet.end or (-1, -1)
    _refuse_extent(path, sheet.name, end[0] + 1, end[1] + 1)
    rows = [[_text(cell) for cell in row] for row in sheet.to_python(skip_empty_area=False)] if end[0] >= 0 else []
    filled = [number for number, row in enumerate(rows) if any(map(str.strip, row))]
    header = _find_header(rows, filled)
    if header is None:
        return _Sheet([], "is empty" if not filled else "has no row with several cells")
    problem = _header_problem(rows[header])
    below = [number for number in filled if number > header]
    if not problem and not below:
        problem = "has a header and no rows"
    notes: list[str] = []
    if not problem:
        problem, notes = _fill_merged(sheet.merged_cell_ranges or [], rows, header)
    width = max(column + 1 for row in (header, *below) for column, cell in enumerate(rows[row]) if cell.strip())
    rows[header] = [" ".join(cell.split()) for cell in rows[header]]
    filled = [number for number in range(header, len(rows)) if any(map(str.strip, rows[number]))]
    lines = [Line(number + 1, number + 1, rows[number][:width]) for number in filled]
    return _Sheet(lines, problem, tuple(notes))


def _text(cell: Any) -> str:
    """Return a cell as CSV would have it; dates in ISO form."""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < _EXACT:
        return str(int(cell))
    if isinstance(cell, float):
        return f"{cell:.14E}" if abs(cell) >= _EXACT else repr(cell)
    if isinstance(cell, date | datetime | time | timedelta):
        return cell.isoformat(" ") if isinstance(cell, datetime) else str(cell)
    return str(cell)


def _find_header(rows: Sequence[Sequence[str]], filled: Sequence[int]) -> int | None:
    """Return the first row with at least half as many filled cells as the fullest row.

    The rows above it are titles.
    """
    counts = {number: sum(bool(cell.strip()) for cell in rows[number]) for number in filled}
    most = max(counts.values(), default=0)
    return next(
        (number for number in filled[:HEADER_ROWS] if counts[number] > 1 and 2 * counts[number] >= most), None
    )


def _header_problem(row: Sequence[str]) -> str:
    """Return why a row cannot be a header, or ""."""
    for cell in filter(None, map(str.strip, row)):
        is_sentence = cell.endswith(".") and len(cell.split()) > 3
        if re.fullmatch(r"[\d.,:\- ]+", cell) or len(cell) > MAX_NAME or is_sentence:
            return f"has no header: its first row has {cell[:30]!r} where a name belongs"
    return ""


def _fill_merged(
    merged: Sequence[tuple[tuple[int, int], tuple[int, int]]], rows: list[list[str]], header: int
) -> tuple[str, list[str]]:
    """Repeat a cell that is merged over several rows of one column in each of them.

    Returns:
        Why other merged cells cannot be read ("" if all can), and a note on each that was.
    """
    notes: list[str] = []
    for (top, left), (bottom, right) in merged:
        if bottom < header or top >= len(rows):
            continue
        place = f"{_letters(left)}{top + 1}:{_letters(right)}{bottom + 1}"
        if left != right or top <= header:
            return f"has merged cells in {place}: unmerge them", notes
        text = rows[top][left]
        for row in rows[top + 1 : bottom + 1]:
            row[left] = text
        notes.append(f"the merged cells {place} are read as {text[:30]!r} in every row")
    return "", notes


def _letters(column: int) -> str:
    """Return the letters of a column, counted from 0."""
    letters = ""
    number = column + 1
    while number:
        number, index = divmod(number - 1, 26)
        letters = chr(65 + index) + letters
    return letters


def _choose_sheet(path: Path, sheets: Mapping[str, _Sheet]) -> str:
    """Return the only sheet with a table of answers; warn of other sheets and rows above it.

    Raises:
        UserError: no sheet is a table, or several may hold the feedback.
    """
    tables = [name for name, sheet in sheets.items() if not sheet.problem]
    if not tables:
        name, sheet = next(iter(sheets.items()))
        others = f" (sheets: {', '.join(map(repr, sheets))[:200]})" if len(sheets) > 1 else ""
        problem = f"{path}: the sheet {name!r} {sheet.problem}{others}"
        raise UserError(problem, "it needs a row of column names, and below it a row for each answer")
    fitting = [name for name in tables if names_feedback([cell.strip() for cell in sheets[name].lines[0].cells])]
    if not fitting:  # a table with texts of several words
        for name in tables:
            columns = zip(*(line.cells for line in sheets[name].lines[1:]), strict=True)
            fitting += [name] if any(profile_column(column).is_text for column in columns) else []
    if len(fitting) != 1 and len(tables) > 1:
        names = fitting or tables
        raise UserError(
            f"{path}: several sheets may hold the feedback: {', '.join(names)}", f"--sheet {shlex.quote(names[0])}"
        )
    name = (fitting if len(fitting) == 1 else tables)[0]
    first = sheets[name].lines[0].row
    above = f"; the rows above row {first} are not read" if first > 1 else ""
    if len(sheets) > 1 or above:
        warn_once(f"{path}: the sheet {name!r} is read{above}")
    for note in sheets[name].notes:
        warn_once(f"{path}: {note}")
    return name
