"""Files as they lie around: other kinds by name and content, tables of pandas and spreadsheets,
folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.export import export
from text2grad.data.files import read_rows
from text2grad.data.records import import_feedback
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Feedback
from text2grad.jsonl import read_jsonl

ROWS = [{"prompt": "When?", "response": f"In {n} days.", "critique": "No."} for n in (1, 2)]
OTHERS = {
    "a.arrow": (b"ARROW1\0\0", "read_feather"),
    "b.jsonl": (b"\xff\xff\xff\xff\x10\0", "from_file"),
    "c.pkl": (b"\x80\x04\x95", "pickle"),
    "d.csv.zst": (b"\x28\xb5\x2f\xfd", "zstd -d"),
    "e.jsonl.bz2": (b"BZh9", "bunzip2"),
    "f.db": (b"SQLite format 3\0", "sqlite3 -json"),
    "g.csv": (b"PK\x03\x04", "unpack"),
    "h.docx": (b"PK\x03\x04", "save its table"),
    "i.xlsx": (b"PK\x03\x04", "save it again as .xlsx"),
    "j.arrow": (b"\xff\xff\xff\xff\x10\0", "from_file"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_kind_of_file_is_named_with_its_cure(name: str, tmp_path: Path) -> None:
    content, words = OTHERS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(read_rows(tmp_path / name))
    assert words in str(caught.value) and "iconv" not in str(caught.value)


def by_columns(rows: list[Any]) -> dict[str, Any]:
    return {name: {str(n): row[name] for n, row in enumerate(rows)} for name in rows[0]}


FORMS = {
    "jq": "\n".join(json.dumps(row, indent=2) for row in ROWS),
    "pandas by columns": json.dumps(by_columns(ROWS)),
    "pandas split": json.dumps({"columns": list(ROWS[0]), "index": [0, 1], "data": [[*r.values()] for r in ROWS]}),
    "pandas table": json.dumps({"schema": {"fields": []}, "data": ROWS}),
    "a second byte order mark": "\ufeff\ufeff" + "\n".join(map(json.dumps, ROWS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_json_that_hold_the_same_rows(form: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(FORMS[form], encoding="utf-8")
    assert list(read_rows(file)) == ROWS
    (tmp_path / "own.jsonl").write_text("\ufeff\ufeff\n", encoding="utf-8")
    assert list(read_jsonl(tmp_path / "own.jsonl", Feedback)) == []


def table(folder: Path, text: str) -> Path:
    (folder / "t.csv").write_text(text, encoding="utf-8")
    return folder / "t.csv"


def test_the_headers_of_qualtrics_are_no_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warn_once.cache_clear()
    ids = ",".join(f'"{{""ImportId"":""{name}""}}"' for name in ("p", "r", "c"))
    text = f"prompt,response,critique\nThe question,The answer,Your remark\n{ids}\nWhen?,Soon.,No.\n"
    (record,) = import_feedback(table(tmp_path, text)).records
    assert record.response == "Soon." and "Qualtrics" in capsys.readouterr().err


@pytest.mark.parametrize(
    "cells", ["p,#NAME?,c,1", "p,r,#N/A,1", "p,r,#BEZUG!,1", "p,r,Err:508,1", "p,r,c,1.23457E+18"]
)
def test_what_a_spreadsheet_wrote_is_nobodys_words(cells: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 3: "):
        import_feedback(table(tmp_path, f"prompt,response,critique,annotator\np,r,c,1\n{cells}\n"))


def test_a_formula_that_keeps_zeros_is_its_text(tmp_path: Path) -> None:
    file = table(tmp_path, 'prompt,response,critique,annotator\np,r,c,="0012"\n')
    (record,) = import_feedback(file).records
    assert record.meta["annotator"] == "0012"
    formula = record.model_copy(update={"response": '="a"'})
    export([formula], "csv", file)
    assert import_feedback(file).records[0].response == '="a"'


def test_a_folder_is_all_its_files_but_leftovers(tmp_path: Path) -> None:
    leftovers = ["~$remarks.csv", "desktop.ini", "half.jsonl.part", "Thumbs.db", ".DS_Store"]
    for name in leftovers:
        (tmp_path / name).write_bytes(b"\0\1")
    for number, row in enumerate(ROWS):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row), encoding="utf-8")
    found = import_feedback(tmp_path)
    assert [record.response for record in found.records] == [row["response"] for row in ROWS]
    assert found.report.records == 2 and {loss.partition(":")[0] for loss in found.losses} == set(leftovers)
    (tmp_path / "bad.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.jsonl"):
        import_feedback(tmp_path)


def test_a_saved_data_set_is_named(tmp_path: Path) -> None:
    (tmp_path / "data-00000-of-00001.arrow").write_bytes(b"\xff\xff\xff\xff")
    (tmp_path / "dataset_info.json").write_text("{}", encoding="utf-8")
    for read in (import_feedback, lambda path: list(read_rows(path))):
        with pytest.raises(UserError, match="load_from_disk"):
            read(tmp_path)
