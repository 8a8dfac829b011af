"""Tables as spreadsheets and people write them: cells with a header, or one line that says what is
wrong and where.

Commas, semicolons or tabs part the cells, as the header shows or `sep=;` in front of it says; a
cell with one of them, a line break or a quotation mark in it stands in quotation marks. A file with
tabs may quote nothing. Nothing is padded, cut or joined: a row without the header's number of cells
is refused, all such rows at once.
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
_MOST_NAMED = 5
_SHEET_ERROR = re.compile(r"#[A-ZÀ-Ý0/¿_]+[!?]|#N/?[ADV]|Err:5\d\d")
"""The cell of a formula that fails, in the languages of Excel, Sheets and LibreOffice."""
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
    """The cells of a row, its number in the spreadsheet (the header's is 1), and the line in which
    it begins."""

    row: int
    line: int
    cells: list[str]

    @property
    def place(self) -> str:
        """Row as a spreadsheet counts; also the editor's line where it differs."""
        return f"row {self.row}" + (f" (line {self.line})" if self.line != self.row else "")


def is_table(path: Path, text: str = "") -> bool:
    """True for a table or workbook: by its suffix, or as Excel's "Unicode text" with tab-separated
    cells."""
    suffix = _suffix(path)
    tabs = suffix == ".txt" and "\t" in text.partition("\n")[0] and not text.startswith(("{", "["))
    return tabs or suffix in (".csv", ".tsv", ".tab", *WORKBOOKS)


def _suffix(path: Path) -> str:
    """The suffix of a file name in lower case, without `.gz`."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def decode(path: Path, data: bytes) -> str:
    """The text of a file in UTF-8, in UTF-16 or 32 where its first bytes say so, else in a code
    page.

    No file names its code page: Windows-1252 is taken where it gives the words of a Western
    language, else what charset-normalizer finds. One line on stderr says which, with a word to look
    at.

    Raises:
        UserError: it is not text, or in no code page that is known.
    """
    try:
        return data.decode(json.detect_encoding(data)).lstrip("\ufeff")
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise UserError(f"{path} is not text", "export it as CSV, JSON or JSON Lines") from error
        line = data.count(b"\n", 0, error.start) + 1
        page = "" if _is_damaged_utf8(data) else _code_page(data)
        if not page:
            name = shlex.quote(str(path))
            new = shlex.quote(str(path.with_name(f"{path.stem}-utf8{path.suffix}")))
            cure = f"save it as UTF-8, or name its code page: iconv -f CP1252 -t UTF-8 {name} > {new}"
            problem = f"{path}: not UTF-8 text in line {line}, and in no code page that is known"
            raise UserError(problem, cure) from error
        around = data[max(0, error.start - 20) : error.start + 20].decode(page, "replace")
        word = next((word for word in re.split(r'[\s,;"]+', around) if not word.isascii()), around)
        warn_once(
            f"{path}: not UTF-8; read as {page}, line {line} has {word!r} (if that is wrong: save it as UTF-8)"
        )
        return data.decode(page)


def _is_damaged_utf8(data: bytes) -> bool:
    """True if most of what is beyond ASCII is UTF-8: two encodings in one file, or a byte that was
    lost."""
    beyond = [character for character in data.decode("utf-8", "replace") if not character.isascii()]
    return beyond.count("\ufffd") < len(beyond) / 2


def _code_page(data: bytes) -> str:
    """The code page of a text that is not UTF-8; "" if none is likely."""
    try:
        if _reads_as_western(data.decode("cp1252")):
            return "cp1252"
    except UnicodeDecodeError:
        pass
    from charset_normalizer import from_bytes

    match = from_bytes(data, cp_isolation=[*CODE_PAGES]).best()
    return match.encoding if match else ""


def _reads_as_western(text: str) -> bool:
    """True if letters beyond ASCII are those of Western languages, among more of ASCII, and signs
    part words."""
    letters = sum(map(str.isalpha, text))
    beyond = [character for character in text if not character.isascii()]
    likely = all(character in _WESTERN or character in _SIGNS for character in beyond)
    return likely and not _SIGN_IN_WORD.search(text) and sum(map(str.isalpha, beyond)) <= 0.3 * letters


def is_filled(value: Any) -> bool:
    """True if a cell says anything: an empty list, blank text and NaN do not."""
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return not missing and str(value).strip() not in ("", "[]")


def table_rows(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table that are not blank, each with its place.

    Raises:
        UserError: the table cannot be read, a column is there twice, or rows have too many or few
            cells (which).
    """
    return line_rows(path, _delimited(path, text))


def line_rows(path: Path, lines: Sequence[Line]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a table by the names in its first line; see `table_rows`."""
    lines = _without_qualtrics(path, lines)
    if not lines:
        return
    names = _names(path, lines)
    _refuse_ragged(path, lines)
    _refuse_artefacts(path, lines, names)
    for line in lines[1:]:
        yield line.place, {name: plain_cell(line.cells[column]) for column, name in names.items()}


def as_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet runs as a formula: a text that begins as one gets an
    apostrophe in front.

    `plain_cell` takes it off again, and so nothing changes on the way there and back.
    """
    starts = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if starts else value


def plain_cell(cell: str) -> str:
    """A cell without what keeps a spreadsheet from reading it as a number or formula: `="0012"`,
    `'=1+2`."""
    if formula := _FORMULA_OF_TEXT.fullmatch(cell):
        return formula[1]
    return cell[1:] if cell.startswith("'") and as_cell(cell[1:]) == cell else cell


def _without_qualtrics(path: Path, lines: Sequence[Line]) -> Sequence[Line]:
    """The rows without the two below the header in which Qualtrics has its questions and their
    ids."""
    ids = [
        n for n, line in enumerate(lines[:3]) if n and line.cells and all(_IMPORT_ID.match(c) for c in line.cells)
    ]
    if ids:
        warn_once(f"{path}: {lines[1].place} to {lines[ids[0]].place}: Qualtrics' own headers, not read")
    return [*lines[:1], *lines[ids[0] + 1 :]] if ids else lines


def _refuse_artefacts(path: Path, lines: Sequence[Line], names: Mapping[int, str]) -> None:
    """Refuse what a spreadsheet wrote in place of a person's words: errors of formulas, and
    shortened ids."""
    bad = []
    for line in lines[1:]:
        for column, name in names.items():
            cell = line.cells[column].strip()
            if _SHEET_ERROR.fullmatch(cell):
                bad.append((line.place, f"{name!r} is the spreadsheet's error {cell}"))
            elif name.casefold() in ("id", "annotator") and _SHORTENED.fullmatch(cell):
                bad.append((line.place, f"{name!r} is a number that the spreadsheet shortened: {cell}"))
    if bad:
        raise bad_rows(path, bad, "correct the formula, or make the column text, and export again")


def bad_rows(path: str | Path, found: Sequence[tuple[str, str]], cure: str) -> UserError:
    """One line that names all rows that cannot be used; `found` has the place of each and what is
    wrong there."""
    by_fault: dict[str, list[str]] = {}
    for place, fault in found:
        by_fault.setdefault(fault, []).append(place)
    named = [f"{_places(places)}: {fault}" for fault, places in by_fault.items()]
    more = len(named) - _MOST_NAMED
    rest = f"; and {more} more" if more > 0 else ""
    return UserError(f"{path}: {'; '.join(named[:_MOST_NAMED])}{rest}", cure)


def _places(places: Sequence[str]) -> str:
    more = len(places) - _MOST_NAMED
    return ", ".join(places[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _names(path: Path, lines: Sequence[Line]) -> dict[int, str]:
    """The name of each column that has one, or has cells that are filled."""
    width = len(lines[0].cells)
    names = [name.strip(" \t\xa0\ufeff") for name in lines[0].cells]
    for column, name in enumerate(names):
        if name and name in names[:column]:
            both = f"columns {names.index(name) + 1} and {column + 1}"
            raise UserError(f"{path}: the column {name!r} is there twice ({both})", "rename or remove one of them")
    filled = {column for line in lines[1:] for column, cell in enumerate(line.cells[:width]) if cell.strip()}
    return {n: name or f"column {n + 1}" for n, name in enumerate(names) if name or n in filled}


def _refuse_ragged(path: Path, lines: Sequence[Line]) -> None:
    """Refuse rows whose number of cells differs from the header's; trailing blank cells are
    ignored."""
    width = len(lines[0].cells)
    bad = [
        (line.place, f"not as many cells as the header ({len(line.cells)}, not {width})")
        for line in lines
        if len(line.cells) < width or any(cell.strip() for cell in line.cells[width:])
    ]
    if bad:
        cure = 'a cell with a line break or a separator in it stands in quotation marks: "one, two"'
        raise bad_rows(path, bad, cure)


def _delimited(path: Path, text: str) -> list[Line]:
    """The rows that are not blank, the header first."""
    declared = _SEPARATOR.match(text)
    text = text[declared.end() :] if declared else text
    before = int(declared is not None)
    header = text.lstrip("\r\n").partition("\n")[0]
    tabbed = _suffix(path) in _TABBED and ("\t" in header or not re.search("[,;]", header))
    mark = declared[1] if declared else "\t" if tabbed else _delimiter(header)
    if mark == "\t" and (bare := _unquoted(text, before)):
        return bare
    lines = list(_quoted(path, text, mark, before))
    if re.search(rf'{re.escape(mark)} +"', text):
        _refuse_space(path, text, mark, lines)
    return lines


def _unquoted(text: str, before: int) -> list[Line]:
    """The rows of a file with tabs that quotes nothing: all have as many cells, and a quotation
    mark that opens a cell does not close it. Empty for any other file."""
    split = [line.removesuffix("\r").split("\t") for line in text.split("\n")]
    lines = [Line(n, n + before, cells) for n, cells in enumerate(split, start=1) if any(map(str.strip, cells))]
    opened = [cell for line in lines for cell in line.cells if cell.startswith('"')]
    quotes_nothing = any(len(cell) == 1 or not cell.endswith('"') for cell in opened)
    return lines if quotes_nothing and len({len(line.cells) for line in lines}) == 1 else []


def _quoted(path: Path, text: str, mark: str, before: int) -> Iterator[Line]:
    """The rows of a table whose cells may be quoted; `before`: lines in front of the header.

    Raises:
        UserError: a quotation mark is not closed, or something stands behind a closing one.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=mark)
    row = begins = 1
    try:
        for row, cells in enumerate(reader, start=1):
            if any(cell.strip() for cell in cells):
                yield Line(row, begins + before, cells)
            begins = reader.line_num + 1
    except csv.Error as error:
        where = Line(row + (begins > 1), begins + before, []).place
        cure = 'close it, and double each one inside: "he said ""no"""'
        fault = "a quotation mark at the start of a cell is not closed where the cell ends"
        raise UserError(f"{path}: {where}: {fault}", cure) from error


def _refuse_space(path: Path, text: str, mark: str, lines: Sequence[Line]) -> None:
    """Refuse a space before a cell's opening quotation mark: it would make the mark part of the
    text."""
    without = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True)
    rows = (cells for cells in without if any(cell.strip() for cell in cells))
    for line, cells in islice(zip(lines, rows, strict=False), 1, None):  # the names are read without both
        if [cell.lstrip(" ") for cell in line.cells] != [cell.lstrip(" ") for cell in cells]:
            cure = f'remove the space: {mark}"one, two"'
            raise UserError(f"{path}: {line.place}: a space stands in front of a quotation mark", cure)


def _delimiter(header: str) -> str:
    """The comma, semicolon or tab that is most often in the header."""
    outside = re.sub(r'"[^"]*"', "", header)
    return max(",;\t", key=outside.count)
