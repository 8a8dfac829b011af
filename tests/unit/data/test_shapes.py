"""People's feedback in the shapes of their tools: read, written, and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from places import SHARED
from text2grad.data.export import export
from text2grad.data.marks import edits
from text2grad.data.records import import_feedback
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Span

TEXT = "🙂 The fair is 🎉 next week, they say."
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")


def span(quote: str, label: Any, reason: str = "") -> Span:
    start = TEXT.index(quote)
    return Span(start=start, end=start + len(quote), label=label, text=quote, reason=reason)


RECORD = Feedback.model_validate(
    {
        "id": "a/1",
        "prompt": [{"role": "user", "content": "When?"}],
        "response": TEXT,
        "critique": "Nice, but the week is wrong.",
        "spans": [span("The fair", 1, "clear"), span("next week", -1, "it is tomorrow")],
        "score": -0.5,
        "source": {"kind": "human"},
        "meta": {"annotator": "7"},
    }
)


def read(path: Path, rows: Any, kind: str = "auto") -> list[Feedback]:
    lines = rows if isinstance(rows, str) else json.dumps(rows)
    path.write_text(lines, encoding="utf-8")
    return import_feedback(path, kind).records


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("label_studio", "tasks.json"),
        ("argilla", "records.json"),
        ("prodigy", "lines.jsonl"),
        ("csv", "table.csv"),
    ],
)
def test_what_is_written_is_read_again(tmp_path: Path, kind: str, name: str) -> None:
    assert export([RECORD], kind, tmp_path / name) == 1
    (found,) = import_feedback(tmp_path / name).records
    assert found.spans == RECORD.spans
    assert (found.response, found.prompt, found.meta["annotator"]) == (TEXT, RECORD.prompt, "7")
    assert (found.id, found.critique, found.score) == (RECORD.id, RECORD.critique, RECORD.score)


def test_label_studio_counts_utf16_units_and_a_program_may_count_code_points(tmp_path: Path) -> None:
    units = TEXT.encode("utf-16-le")
    start = len(TEXT[: TEXT.index("next")].encode("utf-16-le")) // 2
    assert start == TEXT.index("next") + 2 and units[2 * start :].decode("utf-16-le").startswith("next")

    def region(id: str, at: int, text: str, label: str) -> dict[str, Any]:
        value = {"start": at, "end": at + len(text), "text": text, "labels": [label]}
        return {"id": id, "type": "labels", "value": value}

    results = [
        region("1", start, "next week", "Poor"),
        {"id": "1", "type": "textarea", "value": {"start": start, "end": start + 9, "text": ["it is tomorrow"]}},
        region("2", TEXT.index("they"), "they say", "good"),
        region("3", 3, "not what stands there", "good"),
        region("4", start, "next week", "funny"),
        {"id": "5", "type": "textarea", "value": {"text": ["Fine."]}},
        {"id": "6", "type": "rating", "value": {"rating": 5}},
    ]
    tasks = [
        {
            "id": 3,
            "label_config": '<View><Text name="text" value="$text"/><Rating name="rating" toName="text"/></View>',
            "data": {"text": TEXT, "question": "When?"},
            "annotations": [{"id": 1, "result": results}, {"result": []}],
        }
    ]
    first, second = read(tmp_path / "x.json", tasks)
    assert [(s.text, s.label, s.reason) for s in first.spans] == [
        ("next week", -1, "it is tomorrow"),
        ("they say", 1, ""),
    ]
    assert (first.critique, first.score, first.meta["unmatched"], first.meta["no_polarity"]) == ("Fine.", 1.0, 1, 1)
    assert (second.spans, first.id, second.id) == ((), "3-1", "3-2")


def test_argilla_reads_submitted_answers(tmp_path: Path) -> None:
    fields = {"question": "When?", "response": TEXT}
    mark = {"start": TEXT.index("next"), "end": TEXT.index("next") + 9, "label": "poor"}
    two = {
        "id": "r",
        "fields": fields,
        "responses": {
            "spans": [
                {"value": [mark], "status": "submitted", "user_id": "u"},
                {"value": [], "status": "draft", "user_id": "v"},
            ],
            "note": [{"value": "No.", "status": "submitted", "user_id": "u"}],
        },
    }
    (record,) = read(tmp_path / "2.json", [two])
    assert ([s.text for s in record.spans], record.critique) == (["next week"], "No.")


def test_prodigy_keeps_what_was_rejected_as_a_failure(tmp_path: Path) -> None:
    row = {"text": TEXT, "spans": [], "answer": "reject"}
    (record,) = read(tmp_path / "x.jsonl", json.dumps(row))
    assert record.error is not None and record.error.kind == "unsupported"


def test_a_table_finds_quotes_as_a_judge_would(tmp_path: Path) -> None:
    head = "response,critique,good,poor,corrected\n"
    text = head + '“So it is”,fine,"""So it is""",gone,\nhe was late,no,,,she was late today\n'
    first, second = read(tmp_path / "x.csv", text)
    assert [s.text for s in first.spans] == ["“So it is”"]
    assert (first.meta["normalised"], first.meta["unmatched"], first.meta["lost"]) == (1, 1, ["gone"])
    assert [(s.text, s.reason) for s in second.spans] == [("he", "should be: she")] and second.meta[
        "omissions"
    ] == ["today"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.csv", "respones,critique\na,b\n", "did you mean 'response'?"),
        ("x.csv", "response,critique,score\na,b,7\n", "not between -1 and 1"),
        ("x.csv", "response,critique\na\n", "not as many cells"),
        ("x.csv", "id,prompt,response,critique\n1,p,a,b\n1,q,a,b\n", "row 3: the id '1' is that of another text"),
        ("x.csv", "id,response,critique\n1,a,b\n1,c,d\n", "row 3: the id '1' is that of another text in row 2"),
        ("x.csv", "id,response,critique\n../1,a,b\n", "row 2: the id '../1' leads out of its folder"),
        (
            "x.jsonl",
            RECORD.model_copy(update={"id": "../1"}).model_dump_json(),
            "record 1: the id '../1' leads out",
        ),
        ("x.json", '[{"data": {}, "annotations": []}]', "record 1: no text"),
        ("x.json", '[{"data": {"text": "a"}, "annotations": [3]}]', "not a record of label_studio"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words.replace("?", r"\?")):
        read(tmp_path / name, text)


def test_edits_mark_what_was_taken_out_and_list_what_was_put_in() -> None:
    spans, omissions = edits("He came on Monday, sadly.", "He came late on Friday.")
    assert [(s.text, s.reason) for s in spans] == [("Monday, sadly", "should be: Friday")] and omissions == (
        "late",
    )
    assert edits("same", "same") == ((), ())
