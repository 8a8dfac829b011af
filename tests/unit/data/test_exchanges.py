"""The whole question is read, what is not read is named, and every message is its writer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.data.records import ImportResult, import_feedback
from text2grad.data.responses import read_items
from text2grad.errors import UserError, warn_once
from text2grad.feedback import Message, conversation_of
from text2grad.jsonl import write_records

ASK = {"role": "user", "content": "How far is Bern?"}
DONE = {"role": "assistant", "content": "95 km."}
PROMPT = (Message(role="user", content="How far is Bern?"),)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.fixture(autouse=True)
def _warns_again() -> None:
    warn_once.cache_clear()


def written(folder: Path, rows: list[Any]) -> Path:
    file = folder / "talks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def read(folder: Path, rows: list[Any], **options: Any) -> ImportResult:
    return import_feedback(written(folder, rows), **options)


SYSTEM = {"role": "system", "content": "answer in French"}
ASKED: dict[str, Any] = {
    "messages beside a response": ({"messages": [ASK], "response": "95 km."}, [ASK]),
    "messages that end with the response": ({"messages": [ASK, DONE], "response": "95 km."}, [ASK]),
    "question": ({"question": ASK["content"], "response": "95 km."}, [ASK]),
    "instruction and input": (
        {"instruction": "How far", "input": "is Bern?", "output": "95 km."},
        [{"role": "user", "content": "How far\n\nis Bern?"}],
    ),
    "system beside messages": ({"system": SYSTEM["content"], "messages": [ASK, DONE]}, [SYSTEM, ASK]),
    "system beside a prompt": (
        {"system_prompt": SYSTEM["content"], "prompt": ASK["content"], "response": "95 km."},
        [SYSTEM, ASK],
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_whole_question_is_read(name: str, tmp_path: Path) -> None:
    row, prompt = ASKED[name]
    messages = tuple(map(Message.model_validate, prompt))
    (item,) = read_items(written(tmp_path, [{**row, "id": 12345678901234567890}]))
    (record,) = read(tmp_path, [{**row, "critique": "c", "poor": ["95 km"]}]).records
    assert (item.example.prompt, item.response, item.example.id) == (messages, "95 km.", "12345678901234567890")
    assert (record.prompt, record.response, len(record.spans)) == (messages, "95 km.", 1)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, DONE], "response": "90 km."},
        {"messages": [ASK, DONE], "prompt": "Who?"},
        {"messages": [SYSTEM, ASK, DONE], "system": "answer in Greek"},
    ],
)
def test_two_keys_that_say_different_things_are_refused(row: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: "):
        read(tmp_path, [{**row, "critique": "c"}])
    with pytest.raises(UserError, match=":1: "):
        list(read_items(written(tmp_path, [row])))


def test_two_questions_with_one_answer_are_two_remarks(tmp_path: Path) -> None:
    rows = [{"question": text, "response": "Yes.", "critique": "c"} for text in ("Is it?", "Was it?")]
    found = read(tmp_path, rows)
    assert [record.prompt[0].content for record in found.records] == ["Is it?", "Was it?"]
    assert len({record.id for record in found.records}) == 2 and not found.losses


def test_a_record_without_a_prompt_is_refused_unless_that_is_meant(tmp_path: Path) -> None:
    row = {"situation": "a walk to Bern", "response": "95 km.", "critique": "c"}
    with pytest.raises(UserError) as caught:
        read(tmp_path, [row])
    assert "--map prompt=situation" in str(caught.value) and "--no-prompt" in str(caught.value)
    (record,) = read(tmp_path, [row], names=["prompt=situation"]).records
    assert record.prompt[0].content == "a walk to Bern"
    found = read(tmp_path, [row], no_prompt=True)
    assert found.ignored == ("situation",) and any("situation: " in loss for loss in found.losses)
    write_records(tmp_path / "own.jsonl", found.records)
    with pytest.raises(UserError, match="--no-prompt"):
        import_feedback(tmp_path / "own.jsonl")


def test_a_text_that_is_not_read_is_named_with_its_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"messages": [ASK, DONE], "situation": "a long walk", "model": "m-1", "critique": "c"}
    (loss,) = read(tmp_path, [row, {**row, "critique": "d"}]).losses
    assert loss.startswith("situation: ") and "into the messages" in loss
    names = ["prompt=question,prompt=situation"]
    asked = {"question": "How far?", "response": "95 km.", "situation": "a long walk", "critique": "c"}
    assert f"--map {names[0]}" in read(tmp_path, [asked]).losses[0]
    assert read(tmp_path, [asked], names=names).records[0].prompt[0].content == "How far?\n\na long walk"
    list(read_items(written(tmp_path, [{**row, "messages": [{**ASK, "hint": "on foot then"}, DONE]}])))
    notes = capsys.readouterr().err
    assert "'situation'" in notes and "'hint'" in notes and "m-1" not in notes
    tools = [{"type": "function", "function": {"name": "route", "description": "the way to a town"}}]
    list(read_items(written(tmp_path, [{"messages": [ASK, DONE], "tools": tools}])))
    assert "'tools'" in capsys.readouterr().err


RESULTS = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "95"}]},
        {"type": "text", "text": "Well?"},
    ],
}
USE_IT = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "route", "input": {}}]}
ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a map"}]},
    {"type": "function_call", "call_id": "c1", "name": "route", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "95"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "95 km."}]},
]


def test_every_part_is_under_the_role_of_its_writer(tmp_path: Path) -> None:
    (item,) = read_items(written(tmp_path, [{"messages": [ASK, USE_IT, RESULTS, DONE]}]))
    turns = [(turn.role, turn.content) for turn in conversation_of(item.response)][1:]
    assert turns == [("tool", "95"), ("user", "Well?"), ("assistant", "95 km.")]


@pytest.mark.parametrize("row", [{"messages": [ASK, *ITEMS]}, {"input": [ASK], "output": ITEMS}])
def test_items_of_the_responses_api_are_turns(row: Any, tmp_path: Path) -> None:
    (record,) = read(tmp_path, [{**row, "critique": "c"}]).records
    first, tool, last = conversation_of(record.response)
    assert record.prompt == PROMPT and "<think>\na map" in first.content and '"route"' in first.content
    assert (tool.role, tool.content, last.content) == ("tool", "95", "95 km.")
    (item,) = read_items(written(tmp_path, [{"instructions": "answer in French", **row}]))
    assert ("input" in row) == (item.example.prompt[0].role == "system")


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        ({"content": None, "refusal": "I cannot."}, "I cannot."),
        ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, "I cannot."),
        ({"content": "So.", "thinking": "a map"}, "<think>\na map\n</think>\n\nSo."),
        (
            {"content": "So.", "reasoning_details": [{"type": "reasoning.text", "text": "a map"}]},
            "<think>\na map\n</think>\n\nSo.",
        ),
        ({"content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "So."}]}, "So."),
    ],
)
def test_what_an_assistant_writes_is_all_of_its_turn(turn: Any, text: str, tmp_path: Path) -> None:
    (item,) = read_items(written(tmp_path, [{"messages": [ASK, {"role": "assistant", **turn}]}]))
    assert item.response == text


@pytest.mark.parametrize(
    ("kind", "messages"),
    [
        ("web_search_call", [ASK, {"type": "web_search_call", "id": "w"}, DONE]),
        ("tool_use", [{"role": "user", "content": [{"type": "tool_use", "name": "route", "input": {}}]}, DONE]),
        (
            "image_url",
            [ASK, USE_IT, {"role": "user", "content": [{"type": "tool_result", "content": [IMAGE]}]}, DONE],
        ),
        ("audio", [ASK, {"role": "assistant", "content": None, "audio": {"id": "a", "data": "AAAA"}}]),
    ],
)
def test_a_part_of_another_type_is_refused_by_its_name(kind: str, messages: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"'{kind}'"):
        read(tmp_path, [{"messages": messages, "critique": "c"}])


@pytest.mark.parametrize("key", ["messages", "history"])
def test_turns_before_the_question_belong_to_the_prompt(key: str, tmp_path: Path) -> None:
    row = {key: [ASK, DONE], "prompt": "And Basel?", "response": "9 km.", "critique": "c"}
    (record,) = read(tmp_path, [row]).records
    assert [turn.content for turn in record.prompt] == ["How far is Bern?", "95 km.", "And Basel?"]


def test_a_row_without_a_response_says_which_column_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--map response=output"):
        read(tmp_path, [{"input": "How far?", "output": "95 km.", "critique": "c"}])
    with pytest.raises(UserError, match="not a message: "):
        read(tmp_path, [{"messages": [{"role": "user", "parts": []}], "critique": "c"}])


def test_a_context_of_a_traced_run_can_be_put_into_its_prompt(tmp_path: Path) -> None:
    inputs = {"question": "How far?", "context": "a long walk"}
    run = {"id": "r", "inputs": inputs, "outputs": {"answer": "95 km."}, "feedback": [{"key": "v", "value": "bad"}]}
    (loss,) = (loss for loss in read(tmp_path, [run]).losses if loss.startswith("context: "))
    assert "--map prompt=question,prompt=context" in loss
    (record,) = read(tmp_path, [run], names=["prompt=question,prompt=context"]).records
    assert record.prompt[0].content == "How far?\n\na long walk"


def test_a_table_has_messages_as_json(tmp_path: Path) -> None:
    cell = json.dumps([ASK, DONE]).replace('"', '""')
    (tmp_path / "talks.csv").write_text(f'messages,critique\n"{cell}",No.\n', encoding="utf-8")
    (record,) = import_feedback(tmp_path / "talks.csv").records
    assert (record.prompt, record.response) == (PROMPT, "95 km.")
