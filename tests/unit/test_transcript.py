"""Records of several turns: a response may be a `Transcript`, in a file the list of its
messages."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text2grad.critics.human import HumanCritic
from text2grad.data.records import merge_feedback, write_feedback
from text2grad.data.responses import read_items
from text2grad.errors import UserError
from text2grad.feedback import (
    BETWEEN_TURNS,
    Critique,
    Example,
    Failure,
    Feedback,
    Message,
    Preference,
    QuoteCounts,
    Source,
    Span,
    Transcript,
    conversation_of,
    response_key,
)
from text2grad.json_text import record_json
from text2grad.jsonl import read_records, write_records
from text2grad.stages.annotate import criticise

PROMPT = (Message(role="user", content="How far?"),)
EXAMPLE = Example(id="1", prompt=PROMPT)
SOURCE = Source(kind="human", model="ann")


def tool(content: str) -> Message:
    return Message(role="tool", content=content)


def looked_up(answer: str) -> Transcript:
    """Two turns, with what a tool answered between them."""
    return Transcript.of([((), "look it up"), ([tool(answer)], "20 miles 🙂")], after=[tool("done")])


TALK = looked_up("20 miles")
SPAN = Span(start=12, end=14, label=1, text="20")
OTHERS = st.builds(Message, role=st.sampled_from(["tool", "user", "system"]), content=st.text(max_size=5))
TRANSCRIPTS = st.builds(
    Transcript.of,
    st.lists(st.tuples(st.lists(OTHERS, max_size=2), st.text(max_size=5)), min_size=1, max_size=4),
    st.lists(OTHERS, max_size=2),
)


def feedback(response: str, **more: Any) -> Feedback:
    return Feedback(id="1", prompt=PROMPT, response=response, source=SOURCE, **more)


@given(TRANSCRIPTS)
def test_any_transcript_survives_the_file(response: Transcript) -> None:
    record = feedback(response)
    line = json.loads(record_json(record, exclude_none=True))
    assert line["response"] == [message.model_dump() for message in conversation_of(response)]
    again = Feedback.model_validate(line).response
    assert isinstance(again, Transcript) and again == response
    assert (str(again), again.turns, again.after) == (str(response), response.turns, response.after)
    assert Feedback.model_validate_json(record.model_dump_json()) == record


@given(TRANSCRIPTS)
def test_a_transcript_is_copied_whole(response: Transcript) -> None:
    copies = [pickle.loads(pickle.dumps(response)), copy.deepcopy(response)]
    copies.append(Transcript.of_messages(conversation_of(response)))
    assert copies == [response] * 3 and all(each.turns == response.turns for each in copies)


def test_a_record_keeps_the_transcript_wherever_it_goes(tmp_path: Path) -> None:
    record = Feedback.of(
        EXAMPLE, TALK, Critique(text="Good.", spans=(SPAN,), score=1.0, turn_scores=(None, 0.5)), SOURCE
    )
    assert record.meta == {"turn_scores": [None, 0.5]}
    places = [record, record.model_copy(update={"score": 0.5}), Feedback.model_validate(record.model_dump())]
    write_records(tmp_path / "f.jsonl", [record])
    places += read_records(tmp_path / "f.jsonl")
    write_feedback(tmp_path / "f.jsonl", [record])
    places += read_records(tmp_path / "f.jsonl")
    (item,) = read_items(tmp_path / "f.jsonl")
    criticise(HumanCritic([record]), [item], tmp_path / "judged.jsonl")
    places += read_records(tmp_path / "judged.jsonl")
    assert [each.response.turns for each in places] == [TALK.turns] * 6  # type: ignore[attr-defined]
    assert places[-1].judgement() == record.judgement()
    assert Feedback.of(EXAMPLE, TALK, Failure(kind="refused", message="no"), SOURCE).response is TALK


def test_responses_to_judge_and_pairs_may_be_conversations(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "How far?", "response": [turn.model_dump() for turn in conversation_of(TALK)]}
    (tmp_path / "r.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (item,) = read_items(tmp_path / "r.jsonl")
    assert isinstance(item.response, Transcript) and item.response == TALK
    (tmp_path / "r.jsonl").write_text(json.dumps({**row, "response": "plain", "responce": "x"}), encoding="utf-8")
    with pytest.raises(UserError, match=r"unknown column 'responce' .did you mean 'response'"):
        list(read_items(tmp_path / "r.jsonl"))
    pair = Preference(id="1", prompt=PROMPT, chosen=TALK, rejected="no")
    again = Preference.model_validate_json(pair.model_dump_json())
    assert again == pair and isinstance(again.chosen, Transcript) and type(again.rejected) is str


def test_transcripts_are_told_apart_by_what_others_said(tmp_path: Path) -> None:
    other = looked_up("30 miles")
    assert str(TALK) == str(other) == TALK
    assert other != TALK and len({other, TALK}) == 2 and response_key(other) != response_key(TALK) != TALK
    assert looked_up("20 miles") == TALK and response_key(str(TALK)) == TALK
    records = [feedback(TALK, critique="one"), feedback(other, critique="two")]
    assert merge_feedback(records, records) == records
    assert write_feedback(tmp_path / "f.jsonl", records) == 0
    assert write_feedback(tmp_path / "f.jsonl", records[:1]) == 1
    (known, unknown) = HumanCritic(records[:1]).critique([EXAMPLE] * 2, [TALK, other])
    assert isinstance(known, Critique) and isinstance(unknown, Failure)


def test_a_plain_response_is_written_as_it_always_was() -> None:
    assert json.loads(record_json(feedback(f"a{BETWEEN_TURNS}b")))["response"] == "a\n\nb"


USER = {"role": "user", "content": "and now?"}
ANSWER = {"role": "assistant", "content": "x"}
MALFORMED: list[tuple[object, str, str]] = [
    ([USER], "the conversation has no assistant message", "fix or remove line 1"),
    ([], "the conversation has no assistant message", "fix or remove line 1"),
    ([USER, {"role": "robot", "content": "x"}], "message 2: role: ", "fix or remove line 1"),
    ([ANSWER, "x"], "message 2: ", "fix or remove line 1"),
    ([{"role": "assistant"}], "message 1: content: ", "fix or remove line 1"),
    ({"role": "assistant"}, "Input should be a valid string", "fix or remove line 1"),
    ([{**ANSWER, "tool_calls": []}], "message 1: tool_calls: ", "text2grad import "),
]


def test_malformed_turns_are_one_line_with_a_cure(tmp_path: Path) -> None:
    for response, problem, cure in MALFORMED:
        row = {"id": "1", "prompt": [USER], "response": response, "source": {"kind": "human"}}
        (tmp_path / "f.jsonl").write_text(json.dumps(row), encoding="utf-8")
        with pytest.raises(UserError, match=rf"^[^\n]*f\.jsonl:1: response: {problem}[^\n]*{cure}[^\n]*$"):
            read_records(tmp_path / "f.jsonl")


def test_a_span_is_within_one_turn() -> None:
    """That of a critic across turns becomes one in each; a transcript without a turn is no
    response."""
    for start, end in ((8, 14), (10, 12), (0, len(TALK))):
        span = Span(start=start, end=end, label=1, text=TALK[start:end])
        with pytest.raises(ValueError, match="crosses turns"):
            feedback(TALK, spans=(span,))
    whole = Span(start=3, end=len(TALK), label=-1, text=TALK[3:], reason="no")
    spans = Feedback.of(EXAMPLE, TALK, Critique(text="", spans=(whole,)), SOURCE).spans
    assert [span.text for span in spans] == ["k it up", "20 miles 🙂"]
    assert {(span.label, span.reason) for span in spans} == {(-1, "no")}
    for response in (Transcript.of([], [tool("x")]), Transcript("bare")):
        with pytest.raises(ValueError, match="without an assistant turn"):
            feedback(response)


NAN, INF = float("nan"), float("inf")
SCORES: list[object] = [[1.0], [1.0, 0.5, -1.0], [1.0, 1.5], [NAN, 1.0], [INF, 1.0], ["1", 1.0], [True, 1.0]]
SCORES += [{"1": 1.0, "2": 0.0}, 1.0, "10"]
META = [{"lost": 7}, {"lost": [7]}, {"omissions": None}, {"forced": "x"}]


def test_what_a_judgement_left_in_meta_is_checked_when_it_is_read(tmp_path: Path) -> None:
    line = json.loads(record_json(feedback(TALK), exclude_none=True))
    plain = json.loads(record_json(feedback("plain"), exclude_none=True))
    bad = [(line, meta) for meta in [*META, *({"turn_scores": scores} for scores in SCORES)]]
    for row, meta in [*bad, (plain, {"turn_scores": [1.0, 1.0]})]:
        (tmp_path / "f.jsonl").write_text(json.dumps({**row, "meta": meta}), encoding="utf-8")
        with pytest.raises(UserError, match=r"^[^\n]*f.jsonl:1: meta: [^\n]+ .fix or remove line 1.$"):
            read_records(tmp_path / "f.jsonl")
    for row, scores in ((line, (None, 1.0)), (plain, (1.0,))):
        text = json.dumps({**row, "meta": {"turn_scores": scores}})
        (tmp_path / "f.jsonl").write_text(text, encoding="utf-8")
        (record,) = read_records(tmp_path / "f.jsonl")
        assert record.judgement().turn_scores == scores  # type: ignore[union-attr]


@pytest.mark.parametrize("now", [Critique(text="Good."), Failure(kind="refused", message="no")])
def test_what_an_earlier_judgement_left_gives_way_to_a_new_one(now: Critique | Failure) -> None:
    counts = dict.fromkeys(QuoteCounts.model_fields, 1)
    said = {"lost": ["a"], "omissions": ["b"], "turn_scores": [1.0, None], "forced": 1, "annotator": "ann"}
    before = feedback(TALK, meta={**counts, **said, "question": "q", "corrected": "c"})
    record = Feedback.of(before.example(), before.response, now, Source(kind="program"))
    assert record.meta == {"question": "q", "corrected": "c"} and record.judgement() == now
