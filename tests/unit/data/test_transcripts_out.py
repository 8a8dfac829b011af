"""Records of several turns go out whole, or one line says what keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.data.export import export, table_row
from text2grad.data.records import import_feedback
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Feedback, Message, Source, Span, Transcript, conversation_of

PROMPT = (Message(role="user", content="How far?"),)
TOOL = Message(role="tool", content='95 km, "by road"')
TALK = Transcript.of([((), "I look it up, then"), ([TOOL], "90 km. I look it up")], [TOOL])


def span(quote: str, label: Any = -1, place: int = 0, reason: str = "") -> Span:
    start = TALK.index(quote, place)
    return Span(start=start, end=start + len(quote), label=label, text=quote, reason=reason)


def record(*spans: Span, response: str = TALK, score: float | None = -0.5, id: str = "1") -> Feedback:
    critique = Critique(text="So so.", spans=tuple(sorted(spans, key=lambda each: each.start)), score=score)
    return Feedback.of(Example(id=id, prompt=PROMPT), response, critique, Source(kind="human"))


SECOND = TALK.turns[1].start


def test_a_table_gives_a_transcript_back(tmp_path: Path) -> None:
    many = (span("I look it up", 1, SECOND, "why"), span("then", reason="no"))
    for spans in ((), (span("90 km"),), many, (span("look", 1), span("look", -1, SECOND))):
        written = record(*spans)
        export([written], "csv", tmp_path / "t.csv")
        (read,) = import_feedback(tmp_path / "t.csv").records
        assert isinstance(read.response, Transcript) and read.response == TALK
        assert (read.prompt, read.spans, read.score, read.critique) == (PROMPT, written.spans, -0.5, "So so.")
    with pytest.raises(
        UserError, match=r"'1' has turns with spans that a table cannot hold .*keep the JSON Lines file"
    ):
        export([record(span("ook"))], "csv", tmp_path / "t.csv")


@given(st.text(max_size=9))
def test_plain_text_that_looks_like_turns_stays_text(text: str) -> None:
    response = json.dumps([{"role": "assistant", "content": text}])
    assert table_row(record(response=response))["response"] == response


def test_trainers_get_the_messages(tmp_path: Path) -> None:
    talk = [message.model_dump() for message in conversation_of(TALK)]
    other = Transcript.of([((), "I look it up, then"), ((), "90 km. I look it up")])
    export([record(score=1.0), record(response=other, id="2")], "preference", tmp_path / "p.jsonl")
    row = json.loads((tmp_path / "p.jsonl").read_text(encoding="utf-8"))
    assert row["chosen"] == talk and row["rejected"][0] == talk[0]


def test_a_quote_of_a_tool_is_named_as_that(tmp_path: Path) -> None:
    turns = [turn.model_dump() for turn in conversation_of(TALK)]
    row = {"prompt": "How far?", "response": turns, "poor": ["95 km", "90 km"], "critique": "c"}
    (tmp_path / "r.jsonl").write_text(json.dumps(row), encoding="utf-8")
    found = import_feedback(tmp_path / "r.jsonl")
    assert found.losses == ("line 1: '95 km' is from a tool or a user: quote the turns that are judged",)
    assert [each.text for each in found.records[0].spans] == ["90 km"]
    assert found.report.unmatched == 1 and found.records[0].quotes.foreign == 1
