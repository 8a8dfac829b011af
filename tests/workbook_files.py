"""Workbooks written by hand, so that a test says exactly what is in them."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

Cell = str | int | float | bool | None
Sheets = Mapping[str, Sequence[Sequence[Cell]]]
_TYPES = "http://schemas.openxmlformats.org"


def write_xlsx(
    path: Path,
    sheets: Sheets,
    merged: Sequence[str] = (),
    extra: Mapping[str, bytes] | None = None,
    charts: Sequence[str] = (),
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """Write a workbook. A text that begins with `<` is the XML of its cell; `merged` is of the
    first sheet."""
    names = [*sheets, *charts]
    main = f"{_TYPES}/spreadsheetml/2006/main"
    relation = f"{_TYPES}/officeDocument/2006/relationships"
    rows = "".join(f'<sheet name="{escape(n)}" sheetId="{k}" r:id="rId{k}"/>' for k, n in enumerate(names, start=1))
    places = [
        f"{'chartsheets' if name in charts else 'worksheets'}/sheet{k}.xml" for k, name in enumerate(names, start=1)
    ]
    links = "".join(
        f'<Relationship Id="rId{k}" Type="{relation}/{place.partition("s/")[0]}" Target="{place}"/>'
        for k, place in enumerate(places, start=1)
    )
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_TYPES}/package/2006/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{_TYPES}/package/2006/relationships"><Relationship Id="rId1" '
        f'Type="{relation}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{relation}"><sheets>{rows}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_TYPES}/package/2006/relationships">{links}'
        "</Relationships>",
    }
    for number, (name, place) in enumerate(zip(names, places, strict=True)):
        if name in charts:
            parts[f"xl/{place}"] = f'<chartsheet xmlns="{main}"/>'
        else:
            of_first = merged if not number else ()
            parts[f"xl/{place}"] = f'<worksheet xmlns="{main}">{_sheet(sheets[name], of_first)}</worksheet>'
    with zipfile.ZipFile(path, "w", compression) as archive:
        for part, text in parts.items():
            archive.writestr(part, text)
        for part, content in (extra or {}).items():
            archive.writestr(part, content)
    return path


def _sheet(rows: Sequence[Sequence[Cell]], merged: Sequence[str]) -> str:
    lines = "".join(
        f'<row r="{r}">{"".join(_cell(place(r, c), value) for c, value in enumerate(row))}</row>'
        for r, row in enumerate(rows, start=1)
    )
    merges = "".join(f'<mergeCell ref="{each}"/>' for each in merged)
    return f"<sheetData>{lines}</sheetData>" + (f"<mergeCells>{merges}</mergeCells>" if merges else "")


def place(row: int, column: int) -> str:
    """`B3` of row 3, column 1 (from 0; up to 25)."""
    return f"{chr(65 + column)}{row}"


def _cell(at: str, value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f'<c r="{at}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float):
        return f'<c r="{at}"><v>{value}</v></c>'
    if value.startswith("<"):
        return value.replace("<c", f'<c r="{at}"', 1)
    return f'<c r="{at}" t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'


def write_ods(path: Path, name: str, rows: Sequence[Sequence[Cell]]) -> Path:
    """Write an OpenDocument spreadsheet with one sheet, padded with empty cells as LibreOffice
    does."""
    urn = "urn:oasis:names:tc:opendocument:xmlns"
    lines = "".join(
        "<table:table-row>"
        + "".join(_ods_cell(value) for value in row)
        + '<table:table-cell table:number-columns-repeated="16000"/></table:table-row>'
        for row in rows
    )
    empty = '<table:table-row table:number-rows-repeated="1048000"><table:table-cell/></table:table-row>'
    content = (
        f'<office:document-content xmlns:office="{urn}:office:1.0" xmlns:table="{urn}:table:1.0" '
        f'xmlns:text="{urn}:text:1.0"><office:body><office:spreadsheet><table:table table:name="{name}">'
        f"{lines}{empty}</table:table></office:spreadsheet></office:body></office:document-content>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("META-INF/manifest.xml", f'<m:manifest xmlns:m="{urn}:manifest:1.0"/>')
        archive.writestr("content.xml", content)
    return path


def _ods_cell(value: Cell) -> str:
    if isinstance(value, int | float):
        return f'<table:table-cell office:value-type="float" office:value="{value}"/>'
    text = escape(str(value or ""))
    return f'<table:table-cell office:value-type="string"><text:p>{text}</text:p></table:table-cell>'
