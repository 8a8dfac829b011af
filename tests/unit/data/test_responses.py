"""Files of responses: every published shape, as JSON Lines, as a JSON list, by id, as a table; or
one line that says what is wrong."""

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
    check_items(found)
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


def test_a_published_row_is_read_in_every_form(tmp_path: Path) -> None:
    for name, form in FORMS.items():
        for row in (PLAIN, ULTRAFEEDBACK, KODCODE, COMPLETIONS, {"id": "s", **SLF5K}):
            (tmp_path / name).write_text(form([row]), encoding="utf-8")
            (item,) = read(tmp_path / name)
            assert item.response == "So." and "Why?" in item.example.prompt[-1].content and item.example.id, name


def test_objects_by_id_keep_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "slf5k.json"
    rows = {"t3_132suw": SLF5K, "t3_x": {**SLF5K, "generated_summary": "No."}}
    path.write_text(json.dumps(rows), encoding="utf-8")
    assert [(item.example.id, item.response) for item in read(path)] == [("t3_132suw", "So."), ("t3_x", "No.")]


def test_a_response_of_turns_is_its_last_turn_after_the_others(tmp_path: Path) -> None:
    before = [ASKED, SAID, {"role": "user", "content": "And then?"}]
    chosen, rejected = ([*before, {**SAID, "content": text}] for text in ("Then this.", "Nothing."))
    rows = [{**ULTRAFEEDBACK, "response": chosen}, {**ULTRAFEEDBACK, "response": rejected, "is_chosen": False}]
    path = tmp_path / "ultrafeedback.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    first, second = read(path)
    assert (first.example.id, first.response) == ("p-chosen", "Then this.")
    assert (second.example.id, second.response) == ("p-rejected", "Nothing.")
    assert [turn.content for turn in first.example.prompt] == ["Why?", "So.", "And then?"]
    assert first.example.reference == "" and first.example.meta["overall_score"] == 4.0


def test_a_table_is_read_by_its_own_separator(tmp_path: Path) -> None:
    for mark in ",;":
        text = f'prompt{mark}response{mark}reference\nWhy?{mark}"So,\nor so."{mark}\nHow?{mark}Thus.{mark}Thus\n'
        (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
        assert [item.response for item in read(tmp_path / "rows.csv")] == ["So,\nor so.", "Thus."]


NO_RESPONSES: list[tuple[Any, str]] = [
    ([PLAIN, {"prompt": "Why?"}], r"rows\.json: record 2: no column 'response'"),
    ([{**PLAIN, "answer": "x"}], "record 1: unknown column 'answer'"),
    ([{**ULTRAFEEDBACK, "response": [ASKED]}], "record 1: 'response' is not a conv"),
    ([{**ULTRAFEEDBACK, "response": [SAID, ASKED]}], "does not end with the assistant"),
    ([{**ULTRAFEEDBACK, "response": ["Why?", "So."]}], "record 1: "),
    ([{**PLAIN, "response": {"text": "So."}}], "record 1: the response is neither"),
    ({"a": SLF5K, "b": {"Post": "Why?"}}, "record 2: no text in"),
    ([1, 2], "record 1"),
]


def test_what_is_no_response_is_named_in_one_line(tmp_path: Path) -> None:
    cases = [("rows.json", json.dumps(content), problem) for content, problem in NO_RESPONSES]
    lines = as_lines([PLAIN, {"prompt": "Why?"}])
    cases += [
        ("rows.jsonl", lines, r"rows\.jsonl:2: no column 'response'"),
        ("rows.json", '[{"prompt": 1', "not JSON"),
    ]
    for name, text, problem in cases:
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=problem) as raised:
            read(tmp_path / name)
        assert "\n" not in str(raised.value)
