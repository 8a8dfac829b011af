"""Marks of people: shares over critiques, agreement between people, and files that cannot be
right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pytest import approx

from text2grad.cli import main
from text2grad.errors import UserError
from text2grad.eval.critics.marks import Mark, agreement, by_label, marks_report, read_marks
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.jsonl import write_jsonl


def mark(id: str, correct: bool, annotator: str = "ann", **more: Any) -> Mark:
    return Mark.model_validate({"id": id, "correct": correct, "annotator": annotator, **more})


def test_a_critique_counts_once_however_often_it_was_marked() -> None:
    marks = [mark("a", True), mark("a", True, "bob"), mark("a", False, "cy"), mark("b", False)]
    found = agreement(marks, {"a", "b", "c"})["spans"]
    assert found["accuracy"] == approx((2 / 3 + 0) / 2)
    assert (found["count"], found["marks"]) == (2, 4)
    assert found["between_people"] == approx(1 / 3)
    assert found["interval"][0] <= found["accuracy"] <= found["interval"][1]


def test_aspects_are_kept_apart() -> None:
    found = agreement([mark("a", True, aspect="critique"), mark("a", False)], {"a"})
    assert (found["critique"]["accuracy"], found["spans"]["accuracy"]) == (1.0, 0.0)
    assert "between_people" not in found["spans"]


def test_marks_of_unknown_critiques_are_refused() -> None:
    with pytest.raises(UserError, match=r"1 marks refer to unknown critiques, first 'z'"):
        agreement([mark("a", True), mark("z", True)], {"a"})


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "has no marks"),
        ([{"id": "a"}], "correct: Field required"),
        ([{"id": "a", "correct": True, "aspect": "tone"}], "aspect"),
        ([{"id": "a", "correct": True}, {"id": "a", "correct": False}], "someone marked 'a' twice"),
        ([{"id": "a", "correct": True, "start": 1, "end": 2}] * 2, "someone marked 'a' twice"),
        ([{"id": "a", "correct": True, "start": 1}], "start and end together name a span"),
        ([{"id": "a", "correct": True, "aspect": "critique", "start": 1, "end": 2}], "whose aspect is spans"),
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


WORDS = "aa bb cc dd ee ff gg hh ii jj kk ll"


def judged(id: str, *places: tuple[int, int, int]) -> Feedback:
    spans = [Span(start=a, end=b, label=label, text=WORDS[a:b]) for a, b, label in places]
    return Feedback.model_validate(
        {
            "id": id,
            "prompt": (Message(role="user", content="?"),),
            "response": WORDS,
            "source": Source(kind="llm"),
            "spans": tuple(spans),
        }
    )


def words(record: Feedback, span: Span) -> int:
    return len(span.text.split())


def test_spans_that_are_marked_count_by_label_and_length() -> None:
    places = [(0, 3 * n - 1, 1) for n in range(1, 9)]
    record = judged("a", *places, (33, 35, -1))
    marks = [mark("a", n > 4, start=0, end=end) for n, (_, end, _) in enumerate(places, start=1)]
    marks += [mark("a", True, "bob", start=0, end=2), mark("a", True, start=33, end=35)]
    found = by_label(marks, {"a": record}, words)
    assert found["good"]["spans"] == 8 and found["good"]["accuracy"] == approx(4.5 / 8)
    assert [(row["from"], row["to"], row["accuracy"]) for row in found["good"]["by_length"]] == [
        (1, 2, 0.25),
        (3, 4, 0.0),
        (5, 6, 1.0),
        (7, 8, 1.0),
    ]
    assert found["poor"]["accuracy"] == 1.0
    between = agreement(marks, {"a"})["single_spans"]["between_people"]
    assert between == 0.0, "the two who marked one span; other spans are other things"


def test_the_annotator_s_own_records_are_marked_under_numbered_ids(tmp_path: Path) -> None:
    path = tmp_path / "marks.jsonl"
    rows = [{"id": "a#2", "start": 3, "end": 5, "correct": False}, {"id": "b", "correct": True}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    records = [judged("a"), judged("a", (3, 5, -1)), judged("b", (0, 2, 1))]
    found = marks_report(path, iter(records), words)
    whole, single = found["spans"], found["single_spans"]
    assert (whole["accuracy"], whole["count"]) == (1.0, 1)
    assert (single["accuracy"], single["count"], single["poor"]["accuracy"]) == (0.0, 1, 0.0)
    assert "good" not in single
    path.write_text(json.dumps({"id": "a", "start": 3, "end": 5, "correct": True}), encoding="utf-8")
    with pytest.raises(UserError, match="'a' has no span from 3 to 5"):
        marks_report(path, records, words)


def test_a_report_on_feedback_has_what_people_say_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, path = tmp_path / "feedback.jsonl", tmp_path / "marks.jsonl"
    write_jsonl(file, [judged("a", (0, 5, 1)), judged("b", (3, 5, -1))])
    rows = [{"id": "a", "start": 0, "end": 5, "correct": True}, {"id": "b", "correct": False}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(SystemExit) as left:
        main(["feedback-report", str(file), "--marks", str(path), "--json"])
    out, err = capsys.readouterr()
    found = json.loads(out.splitlines()[-1])["people"]
    assert left.value.code == 0 and (found["spans"]["accuracy"], found["single_spans"]["accuracy"]) == (0.0, 1.0)
    assert found["single_spans"]["good"]["by_length"] == [{"spans": 1, "from": 2, "to": 2, "accuracy": 1.0}]
    assert "spans correct: 0%" in err and "warning: people find 0%" in err
