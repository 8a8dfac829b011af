"""Import of people's feedback: our own records, and files of no known kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from human_data import corrected_file
from text2grad.data.records import import_feedback
from text2grad.errors import UserError
from text2grad.jsonl import write_jsonl


def test_our_own_records_come_back_as_they_are(tmp_path: Path) -> None:
    first = import_feedback(corrected_file(tmp_path / "remarks.jsonl", 3))
    write_jsonl(tmp_path / "own.jsonl", first.records)
    again = import_feedback(tmp_path / "own.jsonl")
    assert again.records == first.records and again.report.source == "feedback"
    assert again.report.model_copy(update={"source": "remarks"}) == first.report


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        ('{"colour": "red"}', "auto", "cannot tell what kind"),
        ("", "auto", "x.jsonl is empty"),
        ("", "argilla", "no records"),
        ('{"colour": "red"}', "slf5k", "line 1: no 'feedback'"),
        ('{"colour": "red"}', "feedback", "x.jsonl:1: "),
        ("{}", "handwriting", "unknown kind .*one of auto, feedback"),
    ],
)
def test_a_file_of_another_kind_is_the_users_mistake(tmp_path: Path, content: str, kind: str, words: str) -> None:
    (tmp_path / "x.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        import_feedback(tmp_path / "x.jsonl", kind)
