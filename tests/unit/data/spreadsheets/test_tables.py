"""Tables as spreadsheets and people write them: right, or one line that names the place and the
cure."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.data import files
from text2grad.errors import UserError

ROW = {"response": "Größe, 5", "critique": "für"}


def rows(folder: Path, name: str, data: str | bytes) -> list[tuple[str, dict[str, Any]]]:
    file = folder / name
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(files.read_located_rows(file))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.csv", 'response,critique\n"Größe, 5",für\n'),
        ("x.CSV", '\ufeffresponse,critique,,\r\n"Größe, 5",für,,\r\n,,,\r\n,,,'),
        ("x.csv", "sep=;\r\nresponse;critique\r\nGröße, 5;für\r\n"),
        ("x.csv", "\n\nresponse;critique\nGröße, 5;für\n\n"),
        ("x.csv", '"response", "critique"\n"Größe, 5",für\n'.replace(", ", ",", 1)),
        ("x.csv", ' response \tcritique\n"Größe, 5"\tfür\n'.replace("critique", "critique ")),
        ("x.csv", 'response,critique\r"Größe, 5",für\r'),
        ("x.tsv", "response\tcritique\nGröße, 5\tfür\n"),
        ("x.tsv", '"response"\t"critique"\r\n"Größe, 5"\t"für"\r\n'),
        ("x.tsv", 'response\tcritique\n"Größe, 5"\t"für"\n'),
        ("x.txt", "response\tcritique\r\nGröße, 5\tfür\r\n".encode("utf-16")),
        ("x.csv", "response;critique\r\nGröße, 5;für\r\n".encode("utf-16")),
        ("x.csv", "response;critique\r\nGröße, 5;für\r\n".encode("utf-16-be")),
        ("x.csv", "response;critique\r\nGröße, 5;für\r\n".encode("utf-32")),
        ("x.json", '[{"response": "Größe, 5", "critique": "für"}]'.encode("utf-16")),
    ],
)
def test_what_is_common_is_read(tmp_path: Path, name: str, data: str | bytes) -> None:
    assert [row for _, row in rows(tmp_path, name, data)] == [ROW]


@pytest.mark.parametrize(
    ("name", "data", "cells"),
    [
        ("x.tsv", 'response\tcritique\n"He said ""no"""\tbad\n', ['He said "no"']),
        ("x.tsv", 'response\tcritique\n"two\nlines"\tbad\n', ["two\nlines"]),
        ("x.tsv", 'response\tcritique\n"a\tb"\tbad\n', ["a\tb"]),
        ("x.tsv", 'response\tcritique\n"No," he said.\tbad\n"No."\tbad\n', ['"No," he said.', '"No."']),
        ("x.tsv", 'response\tcritique\n"open\tbad\n', ['"open']),
        ("x.csv", 'response,b\n"two\r\nlines",b\n" a ",b\n5" pipe,b\n', ["two\r\nlines", " a ", '5" pipe']),
        ("x.csv", 'response,b\n"He said, ""no"", so",b\n', ['He said, "no", so']),
        ("x.csv", "response, critique\n a , b\n", [" a "]),
        ("x.tsv", 'response;critique\n"a;b";c\n', ["a;b"]),
        ("x.csv", "response,b\n=1+1,b\na\0b,b\n", ["=1+1", "a\0b"]),
        ("x.csv", f"response,critique\n{'x' * 200_000},b\n", ["x" * 200_000]),
    ],
)
def test_cells_are_what_was_written(tmp_path: Path, name: str, data: str, cells: list[str]) -> None:
    assert [row["response"] for _, row in rows(tmp_path, name, data)] == cells


def test_places_are_those_of_the_spreadsheet(tmp_path: Path) -> None:
    text = 'sep=;\nprompt;response\np;"two\nlines"\n;\np;r\n'
    assert [place for place, _ in rows(tmp_path, "x.csv", text)] == ["row 2 (line 3)", "row 4 (line 6)"]
    assert [place for place, _ in rows(tmp_path, "y.csv", "a,b\nc,d\n\ne,f\n")] == ["row 2", "row 4"]
    packed = gzip.compress(b",a,,\nc,d,,\n")
    assert rows(tmp_path, "x.csv.gz", packed) == [("row 2", {"column 1": "c", "a": "d"})], "named by its place"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.csv", 'a,b\np,q\np,"It is\np,q\n', "row 3: a quotation mark at the start of a cell is not closed"),
        ("x.csv", 'a,b\np,"It is\np,"q"\np,q\n', "row 2: a quotation mark at the start of a cell is not closed"),
        ("x.csv", 'a,b\np,"x\ny"\np,"It" is\n', r"row 3 \(line 4\): a quotation mark .*not closed"),
        ("x.tsv", 'a\tb\np\t"It is ""so""\n"x\ny"\tz\n', "row 2: a quotation mark .*not closed"),
        ("x.csv", 'a,b\np, "q"\n', "row 2: a space before a quotation mark .remove the space"),
        ("x.csv", 'a,b\np,q\np, "q, r"\n', "row 3: a space before a quotation mark"),
        ("x.csv", "a,b,a\np,q,r\n", r"the column 'a' occurs twice \(columns 1 and 3\) \(rename or remove"),
        ("x.csv", "a,b\np\np,q\np,q,r\n", r"row 2: not as many cells .*\(1, not 2\); row 4: .*\(3, not 2\)"),
        ("x.csv", "a,b\n" + "p\n" * 9, r"row 2, row 3, row 4, row 5, row 6 and 4 more: not as many cells"),
        ("x.jsonl", '{"response": "a", "response": "c"}\n', "x.jsonl:1: .*the key 'response' is repeated"),
        ("x.json", '[{"response": "a", "response": "c"}]', "the key 'response' is repeated"),
    ],
)
def test_what_is_not_clear_is_one_line(tmp_path: Path, name: str, data: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        rows(tmp_path, name, data)
    assert "\n" not in str(caught.value)


CELLS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


@given(
    table=st.lists(st.tuples(CELLS, CELLS.filter(str.strip)), min_size=1, max_size=4), mark=st.sampled_from(",;\t")
)
def test_what_the_csv_module_writes_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]], mark: str
) -> None:
    import csv

    file = tmp_path_factory.mktemp("csv") / "x.csv"
    with file.open("w", encoding="utf-8", newline="") as out:
        csv.writer(out, delimiter=mark).writerows([("a", "b"), *table])
    assert [(row["a"], row["b"]) for _, row in files.read_located_rows(file)] == table
