"""Importers of one's own: how they are named, what is wrong with one in one line, and what the
registry holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.opinions import Importer, Mark, Names, Opinion
from text2grad.data.records import IMPORTERS, KINDS, import_feedback
from text2grad.errors import UserError

MODULE = """
from text2grad.data.opinions import Importer, Mark, Names, Opinion

def opinions(row, id, names):
    for number, who in enumerate(row.get("by", ["ann"])):
        opinion = Opinion(id, row["said"], annotator=who, part=who)
        opinion.marks = [Mark.parse(mark, start="from", end="to", label="is") for mark in row.get("marks", [])]
        opinion.add_answer("stars", row.get("stars"), names)
        opinion.add_answer("why", row.get("why"), names)
        yield opinion

OWN = Importer("own", opinions, keys=frozenset({"said"}))
WRONG = Importer("wrong", lambda row, id, names: ["no opinion"])
OPEN = Importer("open", opinions, accepts=lambda row: "said" in row)
"""
ROW = {"said": "It is due next week.", "stars": 4, "marks": [{"from": 10, "to": 19, "is": "bad"}]}


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "desk.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("def f(:", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield
    sys.modules.pop("desk", None)


def read(*rows: dict[str, Any], kind: str = "desk:OWN", **said: Any) -> Any:
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return import_feedback("rows.jsonl", kind, no_prompt=True, **said)


def test_marks_ratings_and_people_are_read_as_of_any_tool() -> None:
    found = read({**ROW, "by": ["ann", "ben"]}, {"said": "So it is.", "why": "Too short for me."}, scales=["1..5"])
    first, second, third = found.records
    assert [span.text for span in first.spans] == ["next week"] and first.score == 0.5
    assert (first.id, second.id, third.id) == ("rows-1-ann", "rows-1-ben", "rows-2")
    assert (third.critique, third.meta["annotator"]) == ("Too short for me.", "ann")
    assert found.report.source == "own" and found.scales[0].startswith("ratings 1 to 5 read as -1 to 1 (stars")


def test_labels_and_scales_that_nothing_says_are_asked_for() -> None:
    row = {**ROW, "marks": [{"from": 0, "to": 2, "is": "Typo"}]}
    found = read(row)
    assert found.records[0].score is None and found.records[0].spans == ()
    assert "--map poor=Typo" in "\n".join(found.losses) and "--scale stars=WORST..BEST" in "\n".join(found.losses)
    again = read(row, names=["poor=Typo"], scales=["stars=1..5"])
    assert [span.label for span in again.records[0].spans] == [-1] and again.losses == ()


WRONG: list[tuple[str, list[dict[str, Any]], str]] = [
    ("nowhere:OWN", [ROW], "no module nowhere .*in this folder"),
    ("desk:OWM", [ROW], "desk has no OWM"),
    ("desk:opinions", [ROW], "--kind desk:opinions: function is not an Importer"),
    ("broken:OWN", [ROW], "in line 1 of .*broken.py"),
    ("desk:", [ROW], "unknown kind of feedback 'desk:' .*or module:NAME"),
    ("desk:OWN", [ROW, {"text": "a"}], "line 2: no 'said'"),
    ("desk:OWN", [{"said": 4}], "line 1: the response is not text"),
    ("desk:OWN", [{**ROW, "marks": [{"from": "x", "to": 2}]}], "line 1: offsets 'x' and 2 are not whole"),
    ("desk:OWN", [{**ROW, "marks": 3}], "line 1: not a record of own"),
    ("desk:WRONG", [ROW], "line 1: the importer wrong yields str, not Opinion"),
    ("desk:OPEN", [ROW, {"text": "a"}], "line 2: not a record of open"),
]


def test_what_is_wrong_is_one_line() -> None:
    for kind, rows, problem in WRONG:
        with pytest.raises(UserError, match=problem) as caught:
            read(*rows, kind=kind)
        assert "\n" not in str(caught.value)


def test_each_kind_is_one_entry_with_a_name() -> None:
    assert all(isinstance(entry, Importer) and entry.name in KINDS for entry in IMPORTERS)
    assert not any(entry.recognises({}) for entry in IMPORTERS), "nothing is known by nothing"
    mine = Importer("mine", lambda row, id, names: [Opinion(id, row["a"], marks=[Mark(0, 1, "bad")])])
    (found,) = mine.read({"a": "x"}, "1", Names())
    assert (found.response, found.part, mine.recognises({})) == ("x", None, True)
