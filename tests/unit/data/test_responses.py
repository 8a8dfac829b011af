"""Files of responses: every published shape, as JSON Lines, as a JSON list, by id, as a table; or one line that
says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.responses import Item, check_items, read_items
from text2grad.errors import UserError

PLAIN = {"id": "a", "prompt": "Why?", "response": "So."}
ASKED, SAID = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
SLF5K = {"generated_summary": "So.", "Post": "Why?"}
ULTRAFEEDBACK = {"prompt": "Why?", "prompt_id": "p", "response": [ASKED, SAID], "is_chosen": True, "score": 4.0}
KODCODE = {"question_id": "k", "question": "Why?", "solution": "So.", "test": "def test_a(): pass"}
COMPLETIONS = {"instruction": "Why?", "completions": [{"model": "m", "response": "So."}]}


def read(path: Path) -> list[Item]:
    found = list(read_items(path))
    assert check_items(found, 100) == len(found)
    return found


def as_lines(rows: list[dict[str, Any]], indent: int | None = None) -> str:
    return "".join(json.dumps(row, indent=indent) + "\n" for row in rows)


FORMS: dict[str, Any] = {
    "rows.jsonl": as_lines,
    "lines.json": as_lines,
    "rows.JSONL": as_lines,
    "rows": as_lines,
    "rows.json": json.dumps,
    "indented.json": lambda rows: json.dumps(rows, indent=2),
    "blank.json": lambda rows: "\n\n" + json.dumps(rows),
    "marked.json": lambda rows: "\ufeff" + json.dumps(rows),
    "marked.jsonl": lambda rows: "\ufeff" + as_lines(rows),
    "by_id.json": lambda rows: json.dumps({f"id{n}": row for n, row in enumerate(rows)}),
    "by_id_indented.json": lambda rows: json.dumps({f"id{n}": row for n, row in enumerate(rows)}, indent=1),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_published_row_is_read_in_every_form(tmp_path: Path, name: str) -> None:
    for row in (PLAIN, ULTRAFEEDBACK, KODCODE, COMPLETIONS, {"id": "s", **SLF5K}):
        (tmp_path / name).write_text(FORMS[name]([row]), encoding="utf-8")
        (item,) = read(tmp_path / name)
        assert item.response == "So." and "Why?" in item.example.prompt[-1].content and item.example.id


def test_objects_by_id_keep_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "slf5k.json"
    path.write_text(
        json.dumps({"t3_132suw": SLF5K, "t3_x": {**SLF5K, "generated_summary": "No."}}), encoding="utf-8"
    )
    assert [(item.example.id, item.response) for item in read(path)] == [("t3_132suw", "So."), ("t3_x", "No.")]


def test_a_response_of_turns_is_its_last_turn_after_the_others(tmp_path: Path) -> None:
    turns = [ASKED, SAID, {"role": "user", "content": "And then?"}, {"role": "assistant", "content": "Then this."}]
    rows = [
        {**ULTRAFEEDBACK, "response": turns},
        {
            **ULTRAFEEDBACK,
            "response": [*turns[:3], {"role": "assistant", "content": "Nothing."}],
            "is_chosen": False,
        },
    ]
    path = tmp_path / "ultrafeedback.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    first, second = read(path)
    assert [(each.example.id, each.response) for each in (first, second)] == [
        ("p-chosen", "Then this."),
        ("p-rejected", "Nothing."),
    ]
    assert [turn.content for turn in first.example.prompt] == ["Why?", "So.", "And then?"]
    assert first.example.reference == "" and first.example.meta["overall_score"] == 4.0


def test_a_table_is_read_by_its_own_separator(tmp_path: Path) -> None:
    for mark in ",;":
        text = f'prompt{mark}response{mark}reference\nWhy?{mark}"So,\nor so."{mark}\nHow?{mark}Thus.{mark}Thus\n'
        (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
        assert [item.response for item in read(tmp_path / "rows.csv")] == ["So,\nor so.", "Thus."]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("rows.json", json.dumps([PLAIN, {"prompt": "Why?"}]), r"rows\.json: record 2: no column 'response'"),
        ("rows.jsonl", as_lines([PLAIN, {"prompt": "Why?"}]), r"rows\.jsonl:2: no column 'response'"),
        ("rows.json", json.dumps([{**PLAIN, "answer": "x"}]), r"record 1: unknown column 'answer'"),
        ("rows.json", json.dumps([{**ULTRAFEEDBACK, "response": [ASKED]}]), "record 1: 'response' is not a conv"),
        (
            "rows.json",
            json.dumps([{**ULTRAFEEDBACK, "response": [SAID, ASKED]}]),
            "does not end with the assistant",
        ),
        ("rows.json", json.dumps([{**ULTRAFEEDBACK, "response": ["Why?", "So."]}]), "record 1: "),
        ("rows.json", json.dumps([{**PLAIN, "response": {"content": "So."}}]), "record 1: response: "),
        ("rows.json", json.dumps({"a": SLF5K, "b": {"Post": "Why?"}}), "record 2: no text in"),
        ("rows.json", "[1, 2]", "record 1"),
        ("rows.json", '[{"prompt": 1', "not JSON"),
    ],
)
def test_what_is_no_response_is_named_in_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=says) as raised:
        read(path)
    assert "\n" not in str(raised.value)
