"""Conversations as others write them become records of several turns; what is not text is refused
in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chat_templates import IM, QWEN3, Shape, tokenizer_of
from text2grad.data.conversations import AssistantTurn, default_turn_text
from text2grad.data.records import import_feedback
from text2grad.data.responses import Item, read_items
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Feedback, Message, Transcript, conversation_of
from text2grad.jsonl import write_records
from text2grad.policy.files.tokenizer import render_turn

ASK = {"role": "user", "content": "How far is Bern?"}
DONE = {"role": "assistant", "content": "95 km."}
TOOL = {"role": "tool", "tool_call_id": "c1", "content": "95"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "route", "arguments": '{"to": "Bern"}'}}],
}
WRITTEN = '<tool_call>\n{"name": "route", "arguments": {"to": "Bern"}}\n</tool_call>'
TALK = Transcript.of([((), WRITTEN), ([Message(role="tool", content="95")], "95 km.")])
PROMPT = (Message(role="user", content="How far is Bern?"),)


def parts(kind: str, key: str = "text") -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": kind, key: "95 "}, {"type": kind, key: "km."}]}


def lang(kind: str, content: str) -> dict[str, Any]:
    """A message as LangChain writes it."""
    return {"lc": 1, "id": ["langchain", kind], "kwargs": {"type": kind, "content": content}}


RUN = {
    "id": "r",
    "run_type": "llm",
    "inputs": {"messages": [[lang("human", "How far is Bern?")]]},
    "outputs": {"generations": [[{"text": "95 km.", "message": lang("ai", "95 km.")}]]},
}
OLD = {"role": "assistant", "function_call": CALL["tool_calls"][0]["function"]}
USE = {"role": "assistant", "content": [{"type": "tool_use", "name": "route", "input": {"to": "Bern"}}]}
RESULT = {"role": "tool", "content": [{"type": "tool_result", "content": "95"}]}
IN_JSON = {**CALL, "tool_calls": [json.dumps(CALL["tool_calls"][0])]}
SHAPES: dict[str, Any] = {
    "OpenAI messages": {"messages": [ASK, CALL, TOOL, DONE]},
    "OpenAI, parts of text": {"messages": [ASK, CALL, TOOL, parts("text")]},
    "OpenAI, an older call": {"messages": [ASK, OLD, TOOL, DONE]},
    "Anthropic's parts": {"messages": [ASK, USE, RESULT, DONE]},
    "verifiers, calls as JSON": {"example_id": 3, "prompt": [ASK], "completion": [IN_JSON, TOOL, DONE], "info": {}},
    "a prompt in text": {"prompt": "How far is Bern?", "completion": [CALL, TOOL, DONE]},
    "SkyRL and verl, messages": {"index": 7, "chat_history": [ASK, CALL, TOOL, DONE], "stop_reason": "stop"},
    "a response with its prompt as text": {"prompt": "How far is Bern?", "response": [ASK, CALL, TOOL, DONE]},
    "a response with its prompt": {"prompt": [ASK], "response": [ASK, CALL, TOOL, DONE]},
}


def written(folder: Path, *rows: Any) -> Path:
    file = folder / "talks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def _says_again() -> None:
    warn_once.cache_clear()


@pytest.mark.parametrize("name", SHAPES)
def test_a_conversation_is_read_to_be_judged_and_with_what_is_said_of_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    item = item_of(tmp_path, SHAPES[name])
    assert item.example.prompt == PROMPT
    assert isinstance(item.response, Transcript) and item.response == TALK, conversation_of(item.response)
    (note,) = capsys.readouterr().err.splitlines()
    assert "<tool_call>" in note and "--policy.model" in note
    spans = [{"text": "95", "turn": 2, "label": "poor", "reason": "by road"}]
    record = read(tmp_path, {**SHAPES[name], "critique": "By road?", "spans": spans})
    assert (record.prompt, record.response, record.critique) == (PROMPT, TALK, "By road?")
    start = TALK.index("95 km")
    assert [(span.start, span.end, span.label) for span in record.spans] == [(start, start + 2, -1)]


def read(folder: Path, row: Any, **options: Any) -> Feedback:
    """The one record of a row."""
    (record,) = import_feedback(written(folder, row), **options).records
    return record


def item_of(folder: Path, row: Any) -> Item:
    (item,) = read_items(written(folder, row))
    return item


def test_where_something_is_said_of_a_conversation(tmp_path: Path) -> None:
    rewarded = SHAPES["verifiers, calls as JSON"] | {"reward": 1.0}
    record = read(tmp_path, rewarded, scales=["reward=0..1"])
    assert (record.score, record.response) == (1.0, TALK)
    with pytest.raises(UserError, match="--scale"):
        read(tmp_path, rewarded)
    feedback = [{"key": "user_score", "score": 0, "comment": "By road?"}]
    item = item_of(tmp_path, RUN)
    assert (item.example.prompt, item.response) == (PROMPT, "95 km.")
    record = read(tmp_path, {**RUN, "feedback": feedback}, scales=["0..1"])
    assert (record.prompt, record.response, record.score) == (PROMPT, "95 km.", -1.0), "LangSmith"
    row = {"messages": [ASK, CALL, TOOL, DONE], "feedback": {"comment": "By road?"}}
    record = read(tmp_path, row, names=["critique=feedback.comment"])
    assert (record.response, record.critique) == (TALK, "By road?")
    ours = {"id": "1", "prompt": [ASK], "source": {"kind": "human"}, "critique": "c"}
    record = read(tmp_path, {**ours, "response": [CALL, TOOL, DONE]})  # the cure that reading our records names
    assert (record.response, record.critique) == (TALK, "c")
    plain = Feedback(id="1", prompt=PROMPT, response=TALK, source=record.source)
    write_records(tmp_path / "own.jsonl", [plain])
    assert import_feedback(tmp_path / "own.jsonl").records == [plain]


def test_one_answer_stays_plain_text_and_a_user_may_speak_last(tmp_path: Path) -> None:
    row = {"prompt": "How far is Bern?", "prompt_id": "p", "response": [ASK, DONE, ASK, DONE], "is_chosen": True}
    item = item_of(tmp_path, row)
    assert (item.example.id, item.response) == ("p-chosen", "95 km.") and len(item.example.prompt) == 3
    item = item_of(tmp_path, {"messages": [ASK, parts("text")]})
    assert type(item.response) is str and item.response == "95 km." and item.example.prompt == PROMPT
    item = item_of(tmp_path, {"messages": [ASK, DONE, ASK, DONE, ASK]})
    assert [turn.role for turn in conversation_of(item.response)] == ["assistant", "user", "assistant", "user"]


def test_reasoning_is_a_part_of_the_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thought = [{"type": "thinking", "thinking": "a map"}, {"type": "text", "text": "95 km."}]
    keys = ("reasoning_content", "reasoning")
    for turn in (*({key: "a map", "content": "95 km."} for key in keys), {"content": thought}):
        warn_once.cache_clear()
        item = item_of(tmp_path, {"messages": [ASK, {"role": "assistant", **turn}]})
        assert item.response == "<think>\na map\n</think>\n\n95 km."
        assert "<think>" in capsys.readouterr().err


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def assistant(**content: Any) -> dict[str, Any]:
    return {"messages": [ASK, {"role": "assistant", **content}]}


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, DONE]}


UNREADABLE: list[tuple[Any, str]] = [
    (user([IMAGE]), "a message of the user has a part 'image_url'"),
    (assistant(content=[IMAGE]), "the assistant has a part 'image_url'"),
    *((assistant(tool_calls=calls), "a tool call has no name") for calls in ([{"id": "1"}], 7, ["{"])),
    ({"messages": [ASK, TOOL]}, "no message of the assistant"),
    (assistant(content=7), "'7' in place of text"),
    (assistant(content={"text": "95"}), "assistant has an object as content"),
    (user({"content": {"a": 1}}), "user has an object as content"),
    ({"messages": [ASK, CALL, {**TOOL, "content": {"km": 95}}, DONE]}, "tool has an object as content"),
    (user([{"type": "text", "text": {"a": 1}}]), "in place of text"),
    (user([{}]), "the user has a part ''"),
    ({"prompt": [ASK], "completion": [DONE], "response": "95 km."}, "both a completion and a response"),
    ({"prompt": [ASK], "completion": [DONE], "response": [DONE]}, "both a completion and a response"),
    ({"resourceSpans": []}, "OpenTelemetry"),
    ({"gen_ai.input.messages": "[]"}, "OpenTelemetry"),
    ({"trace_id": "t", "attributes": {"gen_ai.output.messages": "[]"}}, "OpenTelemetry"),
    ({"attributes": [{"key": "gen_ai.input.messages", "value": {"stringValue": "[]"}}]}, "OpenTelemetry"),
]


def test_what_cannot_be_read_is_one_line_that_names_its_place(tmp_path: Path) -> None:
    for row, problem in UNREADABLE:
        with pytest.raises(UserError, match=r"talks\.jsonl: line 1: ") as imported:
            read(tmp_path, {**row, "critique": "c"})
        with pytest.raises(UserError) as judged:
            item_of(tmp_path, row)
        for error in (imported.value, judged.value):
            assert problem in str(error) and "\n" not in str(error) and "(" in str(error)


HERMES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ '\\n' if m.content or not loop.first else '' }}"
    "[CALL]{{ call.function.name }}{{ call.function.arguments | tojson }}[/CALL]{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAID = AssistantTurn("", "I look.", [{"name": "route", "arguments": {"to": "Bern"}}])


def test_a_template_writes_a_turn_in_its_own_way_or_says_that_it_drops_it() -> None:
    tokenizer = tokenizer_of(Shape(HERMES, IM, "<|im_end|>"))
    assert render_turn(tokenizer, *SAID) == 'I look.\n[CALL]route{"to": "Bern"}[/CALL]'
    assert render_turn(tokenizer, "", "", SAID.calls) == '[CALL]route{"to": "Bern"}[/CALL]'
    assert render_turn(tokenizer, "", "plain", []) == "plain"
    for turn in (SAID, AssistantTurn("a map", "I look.", [])):
        assert render_turn(tokenizer_of(Shape(QWEN3, IM, "<|im_end|>")), *turn) is None
    assert default_turn_text(AssistantTurn("why", "I look.", [*SAID.calls, *SAID.calls])) == (
        f"<think>\nwhy\n</think>\n\nI look.\n{WRITTEN}\n{WRITTEN}"
    )
