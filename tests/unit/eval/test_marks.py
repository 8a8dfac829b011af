"""Marks of people: shares over critiques, agreement between people, and files that cannot be right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pytest import approx

from text2grad.errors import UserError
from text2grad.eval.marks import Mark, agreement, read_marks


def mark(id: str, correct: bool, annotator: str = "ann", **more: Any) -> Mark:
    return Mark.model_validate({"id": id, "correct": correct, "annotator": annotator, **more})


def test_a_critique_counts_once_however_often_it_was_marked() -> None:
    marks = [mark("a", True), mark("a", True, "bob"), mark("a", False, "cy"), mark("b", False)]
    found = agreement(marks, {"a", "b", "c"})["spans"]
    assert found["accuracy"] == approx((2 / 3 + 0) / 2)
    assert (found["critiques"], found["marks"]) == (2, 4)
    assert found["between_people"] == approx(1 / 3)
    assert found["interval"][0] <= found["accuracy"] <= found["interval"][1]


def test_aspects_are_kept_apart() -> None:
    found = agreement([mark("a", True, aspect="critique"), mark("a", False)], {"a"})
    assert (found["critique"]["accuracy"], found["spans"]["accuracy"]) == (1.0, 0.0)
    assert "between_people" not in found["spans"]


def test_marks_of_unknown_critiques_are_refused() -> None:
    with pytest.raises(UserError, match=r"1 marks are of unknown critiques, 'z' first"):
        agreement([mark("a", True), mark("z", True)], {"a"})


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "holds no marks"),
        ([{"id": "a"}], "correct: Field required"),
        ([{"id": "a", "correct": True, "aspect": "tone"}], "aspect"),
        ([{"id": "a", "correct": True}, {"id": "a", "correct": False}], "someone marked 'a' twice"),
    ],
)
def test_files_that_cannot_be_right(tmp_path: Path, lines: list[dict[str, Any]], told: str) -> None:
    path = tmp_path / "marks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(UserError, match=told):
        read_marks(path)


def test_a_file_of_marks_is_read(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    path.write_text(
        '{"id": "a", "correct": true}\n\n{"id": "a", "correct": true, "annotator": "x"}\n', encoding="utf-8"
    )
    assert read_marks(path) == [mark("a", True, ""), mark("a", True, "x")]
