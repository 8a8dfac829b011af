"""Langfuse: traces, observations and tables; scores, corrected outputs, and comments on ranges of
an output."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.records import ImportResult, import_feedback
from text2grad.errors import UserError

OUTPUT = "Ja 🙂, it is due next week."
TRACE = {"id": "t", "input": {"question": "When?"}, "output": {"answer": OUTPUT}, "scores": [], "observations": []}
START = len("Ja 🙂, it is due ".encode("utf-16-le")) // 2
RANGE = {"dataField": "output", "path": ["$.answer"], "rangeStart": [START], "rangeEnd": [START + 9]}
COMMENT = {
    "content": "The mail says Friday.",
    "objectType": "TRACE",
    "objectId": "t",
    "authorUserId": "ann",
    **RANGE,
}


def read(folder: Path, content: Any, name: str = "traces.json", **options: Any) -> ImportResult:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return import_feedback(folder / name, **options)


def test_a_comment_on_a_range_is_a_span_once_its_label_is_known(tmp_path: Path) -> None:
    rows = [{**TRACE, "comments": [COMMENT]}]
    found = read(tmp_path, rows)
    (record,) = found.records
    assert (record.spans, record.meta["annotator"]) == ((), "ann")
    assert record.critique == "'next week': The mail says Friday."
    assert any("--map poor=comment" in loss for loss in found.losses)
    (record,) = read(tmp_path, rows, names=["poor=comment"]).records
    assert [(span.text, span.label, span.reason) for span in record.spans] == [
        ("next week", -1, "The mail says Friday.")
    ]
    for words, label in (("👎", -1), ("good", 1)):
        (record,) = read(tmp_path, [{**TRACE, "comments": [{**COMMENT, "content": words}]}]).records
        assert [(span.text, span.label) for span in record.spans] == [("next week", label)]


def test_a_range_of_another_text_is_no_mark(tmp_path: Path) -> None:
    for other in ({"dataField": "input", "path": ["$.question"]}, {"path": ["$.sources[0]"]}):
        found = read(tmp_path, [{**TRACE, "comments": [{**COMMENT, **other}]}], names=["poor=comment"])
        assert found.records[0].spans == () and any("not on the response" in loss for loss in found.losses)


def test_a_corrected_output_is_the_correction_and_a_judge_is_a_model(tmp_path: Path) -> None:
    scores = [
        {
            "name": "output",
            "dataType": "CORRECTION",
            "stringValue": "On Friday.",
            "value": 0,
            "authorUserId": "ann",
        },
        {
            "name": "verdict",
            "dataType": "CATEGORICAL",
            "stringValue": "bad",
            "comment": "Late.",
            "authorUserId": "ann",
        },
        {"name": "verdict", "dataType": "CATEGORICAL", "stringValue": "good", "source": "EVAL"},
    ]
    human, judge = read(tmp_path, {"trace": {**TRACE, "scores": scores}, "observations": []}).records
    assert (human.meta["corrected"], human.score, human.critique) == ("On Friday.", -1, "Late.")
    assert (human.source.kind, judge.source.kind, judge.source.model, judge.score) == ("human", "llm", "verdict", 1)


def test_scores_of_an_observation_are_on_its_output(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "And who signs?"}]
    part = {"id": "o", "input": messages, "output": {"role": "assistant", "content": "Ann signs it."}}
    score = {"name": "verdict", "stringValue": "good"}
    scores = [{**score, "observationId": "o"}, {**score, "observationId": "gone"}, {**score, "stringValue": "bad"}]
    found = read(tmp_path, {"data": [{**TRACE, "observations": [part], "scores": scores}], "meta": {}})
    assert {record.response: record.score for record in found.records} == {"Ann signs it.": 1, OUTPUT: -1}
    assert {record.prompt[0].content for record in found.records} == {"And who signs?", "When?"}
    assert any("observations that are not in the file: 1" in loss for loss in found.losses)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_table_has_a_column_for_each_score(form: str, tmp_path: Path) -> None:
    comments = [{"id": "c", "content": "Late.", "author_user_id": "ann", "created_at": "2026-01-01"}]
    row: dict[str, Any] = {"id": "t", "timestamp": "2026-01-01", "name": "answer", "userId": None, "sessionId": "s"}
    row |= {"input": {"question": "When?"}, "output": OUTPUT, "bookmarked": False, "totalCost": 0.1, "helpful": [0]}
    row |= {"comments": comments}
    content: Any = [row]
    if form == "csv":
        file = io.StringIO()
        writer = csv.writer(file)
        cells = [json.dumps(value) if isinstance(value, dict | list) else value for value in row.values()]
        writer.writerows([list(row), cells])
        content = file.getvalue()
    rated, commented = read(tmp_path, content, f"t.{form}", scales=["helpful=0..1"]).records
    assert (rated.response, rated.prompt[0].content, rated.score) == (OUTPUT, "When?", -1)
    assert (commented.critique, commented.meta["annotator"]) == ("Late.", "ann")


def test_comments_without_their_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="comments"):
        read(tmp_path, {"data": [COMMENT], "meta": {}})
