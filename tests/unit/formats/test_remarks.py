"""Remarks as people write them: mark-up, quotes, columns of any name; every line that lost something is named."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from text2grad.errors import UserError
from text2grad.feedback import Feedback
from text2grad.formats.intake import Imported, import_feedback
from text2grad.formats.markup import unmarked
from text2grad.wire.nearest import nearest

DUE = "It is due next week."


def read(folder: Path, *rows: dict[str, Any]) -> Imported:
    file = folder / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return import_feedback(file)


def table(folder: Path, text: str, *names: str) -> Imported:
    file = folder / "mine.csv"
    file.write_text(text, encoding="utf-8")
    return import_feedback(file, names=names)


def quoted(record: Feedback) -> list[tuple[str, int, str]]:
    return [(span.text, span.label, span.reason) for span in record.spans]


@pytest.mark.parametrize(
    ("text", "plain", "marks"),
    [
        ("It is due [-next week-]{the mail}.", DUE, [("next week", "-1", "the mail")]),
        ("[+It is+] due [-next week-].", DUE, [("It is", "+1", ""), ("next week", "-1", "")]),
        ("x = a[-b[0]-]{why}", "x = ab[0]", [("b[0]", "-1", "why")]),
        ("[-a-][+b+]", "ab", [("a", "-1", ""), ("b", "+1", "")]),
        ("[-two\nlines-]", "two\nlines", [("two\nlines", "-1", "")]),
        ("a[-1] + b[-2]", "a[-1] + b[-2]", []),
        (r"[+-]?\d+([eE][-+]?\d+)?", r"[+-]?\d+([eE][-+]?\d+)?", []),
        ("[--] [-", "[--] [-", []),
    ],
)
def test_mark_up(text: str, plain: str, marks: list[tuple[str, str, str]]) -> None:
    found = unmarked(text)
    assert found.text == plain
    assert [(mark.text, mark.label, mark.reason) for mark in found.marks] == marks
    assert all(found.text[mark.start : mark.end] == mark.text for mark in found.marks)


def test_mark_up_put_into_any_text_comes_out_again() -> None:
    rng = random.Random(1)
    for _ in range(200):
        words = [rng.choice(["a", "[0]", "b]", "\n", "é🙂", "x y", "-", "+"]) for _ in range(rng.randint(1, 9))]
        chosen = [rng.choice("+-.") if word not in ("b]", "-", "+") else "." for word in words]
        marked = "".join(
            f"[{s}{word}{s}]" if s != "." else f"{word}," for s, word in zip(chosen, words, strict=True)
        )
        plain = "".join(word if s != "." else f"{word}," for s, word in zip(chosen, words, strict=True))
        found = unmarked(marked)
        assert found.text == plain
        assert [mark.text for mark in found.marks] == [w for s, w in zip(chosen, words, strict=True) if s != "."]


def test_a_marked_up_response_becomes_response_spans_and_critique(tmp_path: Path) -> None:
    (record,) = read(
        tmp_path, {"prompt": "When?", "response": "It is due [-next week-]{the mail says Friday}."}
    ).records
    assert record.response == DUE and quoted(record) == [("next week", -1, "the mail says Friday")]
    assert record.critique == '"next week": the mail says Friday' and record.prompt[0].content == "When?"


def test_spans_by_text_alone(tmp_path: Path) -> None:
    spans = [{"text": "due", "label": "good"}, {"quote": "next  week", "label": -1, "reason": "Friday"}]
    (record,) = read(tmp_path, {"prompt": "p", "response": DUE, "spans": spans, "score": "bad"}).records
    assert quoted(record) == [("due", 1, ""), ("next week", -1, "Friday")] and record.score == -1


def test_a_repeated_text_is_taken_by_order_or_asked_for(tmp_path: Path) -> None:
    poor = {"text": "a", "label": "poor"}
    rows = [{"response": "a b a", "spans": spans} for spans in ([poor, poor], [{**poor, "occurrence": 2}], [poor])]
    found = read(tmp_path, *rows)
    assert [[span.start for span in record.spans] for record in found.records] == [[0, 4], [4], []]
    assert found.losses == (
        "line 3: 'a' is in the response 2 times: quote more of it, or say which by \"occurrence\"",
    )


def test_every_line_that_lost_something_is_named(tmp_path: Path) -> None:
    rows = [
        {"response": DUE, "critique": "fine"},
        {"response": DUE, "spans": [{"text": "next month", "label": "poor", "reason": "Friday"}]},
        {"response": DUE, "spans": [{"text": "due"}]},
        {"response": DUE, "spans": [{"start": 0, "end": 2, "label": 1, "text": "is"}]},
        {"response": DUE, "spans": [{"start": 0, "end": 99, "label": 1}]},
        {"response": DUE},
    ]
    found = read(tmp_path, *rows)
    assert [loss.partition(";")[0] for loss in found.losses] == [
        "line 2: 'next month' is not in the response",
        "line 3: 'due' has no label",
        "line 4: [0, 2) is 'It' and not 'is'",
        "line 5: [0, 99) is not inside the 20 characters of the response",
        "line 6: nothing is said of the response: fill in critique, good, poor, spans, score or corrected",
    ]
    assert found.losses[0].endswith("nearest: 'next week'") and len(found.records) == 4
    assert found.records[1].critique == '"next month": Friday' and found.records[1].meta["lost"] == ["next month"]
    assert (found.report.unmatched, found.report.no_polarity) == (2, 1), "lines 4 and 5 are one remark: of nothing"


def test_nearest() -> None:
    assert nearest("next month", DUE) == "next week" and nearest("zebra", DUE) == ""
    assert nearest("NEXT week!", DUE) == "next week" and nearest("is", "") == ""


@pytest.mark.parametrize(("mark", "quote"), [(",", '"{}"'), (";", "{}"), ("\t", "{}")])
def test_columns_of_any_name_and_any_delimiter(tmp_path: Path, mark: str, quote: str) -> None:
    rows = [["question", "answer", "date", "comment"], ["When?", quote.format("[-Soon-], or not."), "1", "No."]]
    text = "\n".join(mark.join(row) for row in rows) + "\n"
    found = table(tmp_path, text, "prompt=question,response=answer", "critique=comment")
    (record,) = found.records
    assert (record.response, record.critique, record.prompt[0].content) == ("Soon, or not.", "No.", "When?")
    assert quoted(record) == [("Soon", -1, "")] and found.ignored == ("date",)


def test_the_line_of_a_table_is_where_its_row_begins(tmp_path: Path) -> None:
    text = 'prompt,response,poor\np,"two\nlines",three\n,,\np,one,\np,one,two\n'
    found = table(tmp_path, text)
    assert [loss.partition(":")[0] for loss in found.losses] == ["row 2", "row 4 (line 5)", "row 5 (line 6)"]
    assert len(found.records) == 2


@pytest.mark.parametrize(
    ("text", "names", "words"),
    [
        ("question,answer\na,b\n", [], "no column 'response'.*--map response=COLUMN; columns: question, answer"),
        ("prompt,response\na,b\n", [], "nothing is said of the responses.*--map critique=COLUMN"),
        ("response,critiqe\na,b\n", [], "did you mean 'critique'.*--map critique=critiqe"),
        ("response,critique\na,b\n", ["response=anser"], "no column 'anser'.*columns: response, critique"),
        ("answer,critique\na,b\n", ["response=anser"], "did you mean 'answer'"),
        ("response,critique\na,b\n", ["response"], "is not a pair"),
        ("response,critique\na,b\n", ["respons=response"], "no field 'respons', did you mean 'response'"),
    ],
)
def test_a_column_that_is_not_there(tmp_path: Path, text: str, names: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        table(tmp_path, text, *names)


def test_published_critiques_without_marks(tmp_path: Path) -> None:
    draft = {"id": "1", "title": "t", "post": "p", "generated_summary_for_feedback": "s", "feedback": "Too short."}
    record = read(tmp_path, draft).records[0]
    assert (record.response, record.critique, record.source.kind) == ("s", "Too short.", "human")
    rated = [{"response": "r", "critique": "Good.", "overall_score": 10}, {"response": "q", "critique": ""}]
    (record,) = read(tmp_path, {"instruction": "i", "completions": rated}).records
    assert (record.response, record.critique, record.score, record.source.kind) == ("r", "Good.", 1.0, "llm")
