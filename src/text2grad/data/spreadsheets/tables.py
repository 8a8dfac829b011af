"""Tables as people and spreadsheets write them.

Cells are separated by commas, semicolons or tabs, as the header shows or a first line `sep=;`
says. A cell that contains one of them, a line break or a quotation mark is quoted; a file with tabs
may quote nothing. Nothing is padded, cut or joined: rows whose number of cells differs from the
header's are refused, all in one error.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import UserError, warn_once

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
_TABBED = (".tsv", ".tab", ".txt")
_MAX_NAMED = 5
_SHEET_ERROR = re.compile(r"#[A-ZÀ-Ý0/¿_]+[!?]|#N/?[ADV]|Err:5\d\d")
"""The value of a failed formula, in the languages of Excel, Sheets and LibreOffice."""
_FORMULA_OF_TEXT = re.compile(r'="([^"]*)"')
_SHORTENED = re.compile(r"\d[.,]\d+E\+\d+", re.IGNORECASE)
_IMPORT_ID = re.compile(r'\s*$|\{"ImportId":')
CODE_PAGES = (
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
    *("cp932", "gb18030", "big5", "euc_kr", "mac_roman"),
)
"""The code pages in which spreadsheets save a table."""
_WESTERN = frozenset("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜßàáâãäåæçèéêëìíîïñòóôõöøùúûüÿŒœŠšŽž")
_SIGNS = frozenset("“”‘’„‚‹›«»–—…€£¿¡°·§©®™²³½¼¾×•ªº±´\xa0\xad")
_SIGN_IN_WORD = re.compile(r"(?<=[^\W\d_])[“”„‚‹›«»…€£¿¡°§©®™²³½¼¾×•±](?=[^\W\d_])")
_SEPARATOR = re.compile(r"sep=([^\r\n])(?:\r\n|\r|\n)", re.IGNORECASE)


class Line(NamedTuple):
    """The cells of a row, its number in the spreadsheet (the header is 1), and its first line."""

    row: int
    line: int
    cells: list[str]

    @property
    def place(self) -> str:
        """The row as a spreadsheet counts, with the line of the file where that differs."""
        return f"row {self.row}" + (f" (line {self.line})" if self.line != self.row else "")


def is_table(path: Path, text: str = "") -> bool:
    """True for a table or workbook by its suffix, or Excel's "Unicode text" with tabs."""
    suffix = _suffix(path)
    tabs = suffix == ".txt" and "\t" in text.partition("\n")[0] and not text.startswith(("{", "["))
    return tabs or suffix in (".csv", ".tsv", ".tab", *WORKBOOKS)


def _suffix(path: Path) -> str:
    """Return the suffix of a file name in lower case, without `.gz`."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def decode(path: Path, data: bytes) -> str:
    """Decode a file: UTF-8, UTF-16 or 32 by its first bytes, else a code page.

    No file names its code page. Windows-1252 is used if it yields the words of a Western language,
    else the guess of charset-normalizer; one line on stderr names it, with an example word.

    Raises:
        UserError: the file is not text, or in an unknown code page.
    """
    try:
        return data.decode(json.detect_encoding(data)).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise UserError(f"{path} is not text", "export it as CSV, JSON or JSON Lines") from error
        line = data.count(b"\n", 0, error.start) + 1
        # Mostly UTF-8 beyond ASCII: mixed encodings, or a missing byte.
        beyond = [character for character in data.decode("utf-8", "replace") if not character.isascii()]
        is_damaged = beyond.count("\ufffd") < len(beyond) / 2
        page = "" if is_damaged else _code_page(data)
        if not page:
            name = shlex.quote(str(path))
            new = shlex.quote(str(path.with_name(f"{path.stem}-utf8{path.suffix}")))
            cure = f"save it as UTF-8, or name its code page: iconv -f CP1252 -t UTF-8 {name} > {new}"
            problem = f"{path}: not UTF-8 text in line {line}, and in no known code page"
            raise UserError(problem, cure) from error
        around = data[max(0, error.start - 20) : error.start + 20].decode(page, "replace")
        word = next((word for word in re.split(r'[\s,;"]+', around) if not word.isascii()), around)
        warn_once(
            f"{path}: not UTF-8; read as {page}, line {line} has {word!r} (if that is wrong: save it as UTF-8)"
        )
        return data.decode(page)


def _code_page(data: bytes) -> str:
    """Return the likely code page of a text, or ""."""
    try:
        if _reads_as_western(data.decode("cp1252")):
            return "cp1252"
    except UnicodeDecodeError:
        pass
    from charset_normalizer import from_bytes

    match = from_bytes(data, cp_isolation=[*CODE_PAGES]).best()
    return match.encoding if match else ""


def _reads_as_western(text: str) -> bool:
    """True if the characters beyond ASCII are few, Western, and no signs inside words."""
    letters = sum(map(str.isalpha, text))
    beyond = [character for character in text if not character.isascii()]
    likely = all(character in _WESTERN or character in _SIGNS for character in beyond)
    return likely and not _SIGN_IN_WORD.search(text) and sum(map(str.isalpha, beyond)) <= 0.3 * letters


def is_filled(value: Any) -> bool:
    """True for a cell with content: not an empty list, blank text or NaN."""
    is_missing = value is None or (isinstance(value, float) and math.isnan(value))
    return not is_missing and str(value).strip() not in ("", "[]")


def table_rows(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a table that are not blank, with their locations.

    Raises:
        UserError: the table is malformed, has a column twice, or rows with too many or few cells.
    """
    return line_rows(path, _split_lines(path, text))


def line_rows(path: Path, lines: Sequence[Line]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows by the names in the first of the `lines`; see `table_rows`."""
    lines = _without_qualtrics(path, lines)
    if not lines:
        return
    names = _names(path, lines)
    _refuse_ragged(path, lines)
    _refuse_artefacts(path, lines, names)
    for line in lines[1:]:
        yield line.place, {name: plain_cell(line.cells[column]) for column, name in names.items()}


def as_cell(value: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would run as a formula.

    `plain_cell` removes it.
    """
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def plain_cell(cell: str) -> str:
    """Unwrap a cell that is protected from being a number or a formula: `="0012"`, `'=1+2`."""
    if formula := _FORMULA_OF_TEXT.fullmatch(cell):
        return formula[1]
    return cell[1:] if cell.startswith("'") and as_cell(cell[1:]) == cell else cell


def _without_qualtrics(path: Path, lines: Sequence[Line]) -> Sequence[Line]:
    """Drop the two rows below the header in which Qualtrics writes questions and their ids."""
    ids = [
        n for n, line in enumerate(lines[:3]) if n and line.cells and all(_IMPORT_ID.match(c) for c in line.cells)
    ]
    if ids:
        warn_once(f"{path}: {lines[1].place} to {lines[ids[0]].place}: Qualtrics' own headers, not read")
    return [*lines[:1], *lines[ids[0] + 1 :]] if ids else lines


def _refuse_artefacts(path: Path, lines: Sequence[Line], names: Mapping[int, str]) -> None:
    """Refuse cells that a spreadsheet replaced: errors of formulas, and shortened ids."""
    bad = []
    for line in lines[1:]:
        for column, name in names.items():
            cell = line.cells[column].strip()
            if _SHEET_ERROR.fullmatch(cell):
                bad.append((line.place, f"{name!r} is the spreadsheet's error {cell}"))
            elif name.casefold() in ("id", "annotator") and _SHORTENED.fullmatch(cell):
                bad.append((line.place, f"{name!r} is a number shortened by the spreadsheet: {cell}"))
    if bad:
        raise bad_rows(path, bad, "correct the formula, or make the column text, and export again")


def bad_rows(path: str | Path, problems: Sequence[tuple[str, str]], cure: str) -> UserError:
    """Return an error of one line for all unusable rows; `problems` are (location, problem)."""
    by_problem: dict[str, list[str]] = {}
    for location, problem in problems:
        by_problem.setdefault(problem, []).append(location)
    lines = []
    for problem, locations in by_problem.items():
        more = f" and {len(locations) - _MAX_NAMED} more" if len(locations) > _MAX_NAMED else ""
        lines.append(f"{', '.join(locations[:_MAX_NAMED])}{more}: {problem}")
    more = f"; and {len(lines) - _MAX_NAMED} more" if len(lines) > _MAX_NAMED else ""
    return UserError(f"{path}: {'; '.join(lines[:_MAX_NAMED])}{more}", cure)


def _names(path: Path, lines: Sequence[Line]) -> dict[int, str]:
    """Return the name of each column that has a name or filled cells."""
    width = len(lines[0].cells)
    names = [name.strip(" \t\xa0\ufeff") for name in lines[0].cells]
    for column, name in enumerate(names):
        if name and name in names[:column]:
            numbers = f"columns {names.index(name) + 1} and {column + 1}"
            raise UserError(f"{path}: the column {name!r} occurs twice ({numbers})", "rename or remove one of them")
    filled = {column for line in lines[1:] for column, cell in enumerate(line.cells[:width]) if cell.strip()}
    return {n: name or f"column {n + 1}" for n, name in enumerate(names) if name or n in filled}


def _refuse_ragged(path: Path, lines: Sequence[Line]) -> None:
    """Refuse rows with another number of cells than the header, apart from trailing blanks."""
    width = len(lines[0].cells)
    bad = [
        (line.place, f"not as many cells as the header ({len(line.cells)}, not {width})")
        for line in lines
        if len(line.cells) < width or any(cell.strip() for cell in line.cells[width:])
    ]
    if bad:
        cure = 'quote a cell that contains a line break or a separator: "one, two"'
        raise bad_rows(path, bad, cure)


def _split_lines(path: Path, text: str) -> list[Line]:
    """Split a table into rows that are not blank, the header first."""
    declared = _SEPARATOR.match(text)
    text = text[declared.end() :] if declared else text
    before = int(declared is not None)  # lines before the header
    header = text.lstrip("\r\n").partition("\n")[0]
    is_tabbed = _suffix(path) in _TABBED and ("\t" in header or not re.search("[,;]", header))
    if declared:
        separator = declared[1]
    elif is_tabbed:
        separator = "\t"
    else:  # the most frequent outside quotation marks
        separator = max(",;\t", key=re.sub(r'"[^"]*"', "", header).count)
    if separator == "\t" and (lines := _unquoted_lines(text, before)):
        return lines
    lines = list(_quoted_lines(path, text, separator, before))
    if re.search(rf'{re.escape(separator)} +"', text):
        _refuse_space(path, text, separator, lines)
    return lines


def _unquoted_lines(text: str, before: int) -> list[Line]:
    """Split a file with tabs that quotes nothing; empty for any other file.

    All its rows have as many cells, and a quotation mark that opens a cell does not close it.
    """
    split = [line.removesuffix("\r").split("\t") for line in text.split("\n")]
    lines = [Line(n, n + before, cells) for n, cells in enumerate(split, start=1) if any(map(str.strip, cells))]
    opened = [cell for line in lines for cell in line.cells if cell.startswith('"')]
    quotes_nothing = any(len(cell) == 1 or not cell.endswith('"') for cell in opened)
    return lines if quotes_nothing and len({len(line.cells) for line in lines}) == 1 else []


def _quoted_lines(path: Path, text: str, separator: str, before: int) -> Iterator[Line]:
    """Split a table whose cells may be quoted; `before` is the number of lines before the header.

    Raises:
        UserError: a quotation mark is not closed, or text follows a closing one.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    row = first_line = 1
    try:
        for row, cells in enumerate(reader, start=1):
            if any(cell.strip() for cell in cells):
                yield Line(row, first_line + before, cells)
            first_line = reader.line_num + 1
    except csv.Error as error:
        location = Line(row + (first_line > 1), first_line + before, []).place
        cure = 'close it, and double each one inside: "he said ""no"""'
        problem = "a quotation mark at the start of a cell is not closed where the cell ends"
        raise UserError(f"{path}: {location}: {problem}", cure) from error


def _refuse_space(path: Path, text: str, separator: str, lines: Sequence[Line]) -> None:
    """Refuse a space before an opening quotation mark: it would make the mark part of the text."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    rows = (cells for cells in reader if any(cell.strip() for cell in cells))
    for line, cells in islice(zip(lines, rows, strict=False), 1, None):  # names are stripped of both
        if [cell.lstrip(" ") for cell in line.cells] != [cell.lstrip(" ") for cell in cells]:
            cure = f'remove the space: {separator}"one, two"'
            raise UserError(f"{path}: {line.place}: a space before a quotation mark", cure)
