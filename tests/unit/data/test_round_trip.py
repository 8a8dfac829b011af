"""What is exported as a table comes back exactly as it was, whatever the responses look like."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from text2grad.data.export import export, table_row
from text2grad.data.records import import_feedback, merge_feedback
from text2grad.feedback import Feedback
from text2grad.jsonl import write_jsonl

PIECES = [
    *("[-1-]", "[-next week-]", "{+on+}", "{why}", "[+ok+]", "a[-1]", "<bad>", "</bad>", "{", "}", "[", "-]"),
    *("\n", "\r\n", "\r", "\t", " ", "  ", "\u00a0", "\u2028", ",", ";", '"', '""', "'", "“", "”", "\0", "\ufeff"),
    *("=1+1", "-1", "+1", "@x", "sep=;", "é", "e\u0301", "👩‍👩‍👧", "ＡＢＣ", "word", "word.", "Word"),
    *("苹果", "none"),
    *('[{"role": "assistant", "content": "x"}]', "[{'role': 'assistant'}]", "[]", "null", "0,5", "4/5", "80 %"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


ROLES = st.sampled_from(["system", "user", "assistant"])
SCORES = st.none() | st.sampled_from([0.0, 1.0, -1.0, 1e-5, 1 / 3]) | st.floats(-1, 1)


@st.composite
def records(draw: st.DrawFn) -> Feedback:
    response = draw(TEXTS)
    offset = st.integers(0, len(response))
    places = draw(st.lists(st.tuples(offset, offset, st.sampled_from([1, -1])), max_size=4, unique=True))
    weights = st.sampled_from([1, 0.5])
    spans = [
        {
            "start": a,
            "end": b,
            "label": label,
            "text": response[a:b],
            "reason": draw(TEXTS),
            "weight": draw(weights),
        }
        for a, b, label in sorted(places, key=lambda place: (place[0], place[1], -place[2]))
        if a < b
    ]
    turns = draw(st.lists(st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), min_size=1, max_size=2))
    content = {"id": draw(TEXTS) + "1", "prompt": turns, "response": response, "critique": draw(TEXTS)}
    meta = {name: text for name in ("corrected", "annotator") if (text := draw(TEXTS))}
    judgement = {"spans": spans, "score": draw(SCORES), "source": {"kind": "human"}, "meta": meta}
    return Feedback.model_validate({**content, **judgement})


def of(response: str, *quotes: str, **other: object) -> Feedback:
    spans = [
        {"start": response.index(quote), "end": response.index(quote) + len(quote), "label": -1, "text": quote}
        for quote in quotes
    ]
    row = {"id": "1", "prompt": [{"role": "user", "content": "p"}], "response": response, "spans": spans}
    return Feedback.model_validate({**row, "source": {"kind": "human"}, **other})


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(found=records())
@example(found=of("two\nlines here", "two\nlines"))
@example(found=of("return x[-1-] + y[-2]", "x[-1-]", critique="c"))
@example(found=of("=SUM(A1)", critique="'=SUM(A1)"))
@example(found=of("''@x", critique="'c", score=-0.5))
@example(found=of("a\r\nb", "a\r\nb", critique="c"))
@example(found=of("cafe\u0301 ", "cafe\u0301 ", score=1e-05))
@example(found=of("It is late.", critique="No.", meta={"corrected": "It is on time."}))
@example(found=of(""))
@example(found=of("<bad></bad>", critique="c"))
def test_a_table_comes_back_exactly_as_it_was(tmp_path: Path, found: Feedback) -> None:
    file = tmp_path / "table.csv"
    export([found], "csv", file)
    imported = import_feedback(file, no_prompt=True)
    (read,) = imported.records
    for name in ("id", "prompt", "response", "critique", "spans", "score"):
        assert getattr(read, name) == getattr(found, name), name
    for name in ("corrected", "annotator", "omissions"):
        assert read.meta.get(name) == found.meta.get(name), name
    export([read], "csv", file)
    assert import_feedback(file, no_prompt=True).records == [read] and imported.losses == ()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(found=st.lists(records(), min_size=1, max_size=5))
def test_records_come_back_exactly_as_they_were(tmp_path: Path, found: list[Feedback]) -> None:
    write_jsonl(tmp_path / "own.jsonl", found)
    again = import_feedback(tmp_path / "own.jsonl", no_prompt=True)
    assert again.records == found and merge_feedback([], found) == found and merge_feedback(found, found) == found


@pytest.mark.parametrize(
    ("record", "column", "cell"),
    [
        (of("It is late.", "late", critique="c"), "poor", "late"),
        (of("It is late.", "is", "late", critique="c"), "poor", "is\nlate"),
        (of("late, so late.", "late", critique="c"), "response", "[-late-], so late."),
        (of("two\nlines here", "two\nlines", critique="c"), "response", "[-two\nlines-] here"),
        (of("It is late.", meta={"corrected": "It is on time."}, critique="c"), "spans", "none"),
        (of("a[-1-]", critique="c"), "spans", "none"),
    ],
)
def test_a_row_is_written_as_a_person_would_where_that_says_the_same(
    record: Feedback, column: str, cell: str
) -> None:
    assert table_row(record)[column] == cell


def test_a_record_without_a_judgement_is_no_row(tmp_path: Path) -> None:
    failed = of("It is late.", error={"kind": "refused", "message": "no"})
    assert export([failed, of("It is late.", critique="c")], "csv", tmp_path / "t.csv") == 1


def test_a_spreadsheet_sees_that_the_table_is_utf_8(tmp_path: Path) -> None:
    export([of("Größe", critique="c")], "csv", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    with (tmp_path / "t.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["response"] == "Größe" and json.dumps(row)


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    for start in ("=", "+", "-", "@", "\t=", "\r="):
        text = f"{start}cmd|' /C calc'!A0"
        export([of(text, text, critique=text, id=text, score=-0.5)], "csv", tmp_path / "t.csv")
        with (tmp_path / "t.csv").open(encoding="utf-8-sig", newline="") as file:
            (row,) = csv.DictReader(file)
        assert [name for name, cell in row.items() if cell[:1] in tuple("=+-@\t\r")] == ["score"], start
        assert row["score"] == "-0.5"
