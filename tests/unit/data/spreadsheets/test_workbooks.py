"""Workbooks and code pages: what people save is read, and what cannot be is one line with its
cure."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.files import read_located_rows, read_rows
from text2grad.data.records import import_feedback
from text2grad.data.responses import read_items
from text2grad.data.spreadsheets import sheets, tables
from text2grad.errors import UserError, warn_once
from workbook_files import Sheets, write_ods, write_xlsx

HEADER = ("prompt", "response", "critique", "score")
ROWS = (("When?", "Next week.", "The mail says Friday.", -1), ("Who?", "Ann\nor Bo.", None, 0.5))
TABLE = [dict(zip(HEADER, ("When?", "Next week.", "The mail says Friday.", "-1"), strict=True)),
         dict(zip(HEADER, ("Who?", "Ann\nor Bo.", "", "0.5"), strict=True))]  # fmt: skip


@pytest.fixture(autouse=True)
def _warn_again() -> None:
    warn_once.cache_clear()


def book(folder: Path, content: Sheets | None = None, name: str = "feedback.xlsx", **others: Any) -> Path:
    return write_xlsx(folder / name, content or {"Feedback": [HEADER, *ROWS]}, **others)


@pytest.mark.parametrize("name", ["feedback.xlsx", "feedback.XLSM", "feedback.download"])
def test_a_workbook_is_read_as_a_table(tmp_path: Path, name: str) -> None:
    assert list(read_located_rows(book(tmp_path, name=name))) == [("row 2", TABLE[0]), ("row 3", TABLE[1])]


def test_an_ods_is_read_as_a_table(tmp_path: Path) -> None:
    path = write_ods(tmp_path / "feedback.ods", "Feedback", [HEADER, *ROWS[:1]])
    assert list(read_rows(path)) == TABLE[:1]


def test_import_and_annotate_read_the_same_workbook(tmp_path: Path) -> None:
    imported = import_feedback(book(tmp_path))
    assert [(each.response, each.score) for each in imported.records] == [("Next week.", -1), ("Ann\nor Bo.", 0.5)]
    answers = book(tmp_path, {"A": [HEADER[:2], *[row[:2] for row in ROWS]]}, "answers.xlsx")
    assert [item.response for item in read_items(answers)] == ["Next week.", "Ann\nor Bo."]


def test_titles_above_the_header_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = book(tmp_path, {"Feedback": [("Feedback of the third quarter",), (), HEADER, *ROWS]}, merged=["A1:D1"])
    assert list(read_located_rows(path)) == [("row 4", TABLE[0]), ("row 5", TABLE[1])]
    assert "above row 3" in capsys.readouterr().err


def test_values_are_as_the_spreadsheet_shows_them(tmp_path: Path) -> None:
    computed = "<c><f>1+1</f><v>2</v></c>"
    text = '<c t="str"><f>A1</f><v></v></c>'
    path = book(tmp_path, {"Feedback": [HEADER, ("q", "r", "3", 4.0), (text, "r", computed, True)]})
    assert [list(row.values()) for row in read_rows(path)] == [["q", "r", "3", "4"], ["", "r", "2", "TRUE"]]


def test_cells_merged_downwards_hold_for_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = book(tmp_path, {"Feedback": [HEADER, ROWS[0], (None, *ROWS[1][1:])]}, merged=["A2:A3"])
    assert [row["prompt"] for row in read_rows(path)] == ["When?", "When?"]
    assert "A2:A3" in capsys.readouterr().err


def test_the_sheet_with_answers_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"Legend": [("word", "meaning"), ("poor", "bad")], "Feedback": [HEADER, *ROWS], "Empty": []}
    path = book(tmp_path, content, charts=["Chart"])
    assert list(read_rows(path)) == TABLE
    assert "'Feedback'" in capsys.readouterr().err
    assert list(read_rows(path, "Legend")) == [{"word": "poor", "meaning": "bad"}]


def test_where_no_name_is_known_the_sheet_with_texts_is_chosen(tmp_path: Path) -> None:
    path = book(
        tmp_path, {"Legend": [("x", "y"), ("poor", "bad")], "Other": [("A", "B"), ("q", "It is next year.")]}
    )
    assert list(read_rows(path)) == [{"A": "q", "B": "It is next year."}]


def test_several_sheets_with_answers_are_named(tmp_path: Path) -> None:
    path = book(tmp_path, {"May": [HEADER, *ROWS], "June": [HEADER, *ROWS]})
    with pytest.raises(UserError, match=r"May, June \(--sheet May\)"):
        list(read_located_rows(path))
    assert list(read_rows(path, "June")) == TABLE


def huge(folder: Path) -> Path:
    (folder / "feedback.xlsx").write_bytes(b"PK\x03\x04" + bytes(sheets.MAX_BYTES))
    return folder / "feedback.xlsx"


def bomb(folder: Path) -> Path:
    return book(folder, extra={"xl/bomb.xml": bytes(sheets.MIN_LIMIT + 1)})


def protected(folder: Path) -> Path:
    encrypted = b"\xd0\xcf\x11\xe0" + bytes(600) + "EncryptedPackage".encode("utf-16-le") + bytes(600)
    (folder / "feedback.xlsx").write_bytes(encrypted)
    return folder / "feedback.xlsx"


def damaged(folder: Path) -> Path:
    path = book(folder, compression=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes()[:-300])
    return path


def changed(folder: Path) -> Path:
    path = book(folder, compression=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"</sheetData>", b"</sheetDate>"))
    return path


def far(folder: Path) -> Path:
    return book(folder, {"Feedback": [HEADER, *ROWS, ('<c/><c r="XFD1048576"><v>1</v></c>',)]})


def charts(folder: Path) -> Path:
    return write_xlsx(folder / "feedback.xlsx", {}, charts=["Chart"])


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "too large": (huge, "64 MiB"),
    "a bomb": (bomb, "unpacks to more than"),
    "protected": (protected, "protected by a password"),
    "damaged": (damaged, "cannot be read"),
    "changed": (changed, "cannot be read"),
    "a cell far off": (far, "ends in row 1,048,576 and column 16,384"),
    "empty": (lambda folder: book(folder, {"Feedback": []}), "'Feedback' is empty"),
    "a chart alone": (charts, "charts and no table"),
    "no header": (lambda folder: book(folder, {"A": [("When?", "It is due next week.", 3), *ROWS]}), "no header"),
    "a header alone": (lambda folder: book(folder, {"A": [HEADER]}), "a header and no rows"),
    "merged sideways": (lambda folder: book(folder, merged=["A2:B2"]), "merged cells in A2:B2: unmerge"),
    "an error": (
        lambda folder: book(folder, {"A": [HEADER, ("q", '<c t="e"><v>#REF!</v></c>', "c", 1)]}),
        "B2: .*#REF!",
    ),
    "not computed": (
        lambda folder: book(folder, {"A": [HEADER, ("q", "<c><f>A1</f></c>", "c", 1)]}),
        "B2: a formula",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, kind: str) -> None:
    make, words = REFUSED[kind]
    with pytest.raises(UserError, match=words) as caught:
        list(read_located_rows(make(tmp_path)))
    assert "\n" not in str(caught.value) and caught.value.cure


def test_what_unpacks_otherwise_than_it_says_is_refused(tmp_path: Path) -> None:
    path = book(tmp_path)
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("xl/worksheets/sheet1.xml").file_size
    path.write_bytes(path.read_bytes().replace(size.to_bytes(4, "little"), (size - 9).to_bytes(4, "little")))
    with pytest.raises(UserError, match="cannot be read"):
        list(read_located_rows(path))


def test_a_sheet_is_asked_of_a_workbook_alone(tmp_path: Path) -> None:
    (tmp_path / "feedback.csv").write_text("prompt,response,score\nq,r,1\n", encoding="utf-8")
    for path, sheet in ((tmp_path / "feedback.csv", "Feedback"), (book(tmp_path), "June")):
        with pytest.raises(UserError, match=sheet):
            list(read_located_rows(path, sheet))


# Code pages.

TEXTS = {
    "German": ("Frage;Antwort;Kommentar\nWie groß ist die Tür?;Die Tür ist schön.;zu überschwänglich\n", "cp1252"),
    "French": ("Question;Réponse\nOù est le café ?;À l’étage, c’est génial – 5 €\n", "cp1252"),
    "Spanish": ("Pregunta;Respuesta\n¿Dónde está?;Está aquí, señor\n", "cp1252"),
    "Polish": ("Pytanie;Odpowiedź\nGdzie jest łóżko?;Łóżko jest w pokoju, świetne i piękne\n", "cp1250"),
    "Russian": ("Вопрос;Ответ\nГде стол?;Стол в комнате, он большой\n", "cp1251"),
    "Japanese": ("質問;回答\nどこですか;ここにあります。とても良いです\n", "cp932"),
    "Macintosh": (
        "Frage;Antwort;Kommentar\nWie groß ist die Tür?;Die Tür ist schön.;zu überschwänglich\n",
        "mac_roman",
    ),
}


@pytest.mark.parametrize("language", TEXTS)
def test_a_code_page_is_found_and_named(tmp_path: Path, language: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, page = TEXTS[language]
    assert tables.decode(tmp_path / "feedback.csv", text.encode(page)) == text
    assert f"read as {page}" in capsys.readouterr().err


def test_two_encodings_in_one_text_are_one_line(tmp_path: Path) -> None:
    data = "Größe;für;€\n".encode() + "für\n".encode("cp1252")
    with pytest.raises(UserError, match="not UTF-8 text in line 2") as caught:
        tables.decode(tmp_path / "feedback.csv", data)
    assert "iconv" in caught.value.cure
