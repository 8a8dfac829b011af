"""Prompts and responses of rows, in the shapes in which other tools write them.

A prompt is text or messages; a response is text or the turns of an assistant. Messages may be those
of OpenAI (chat and responses API), Anthropic, LangChain and LangSmith, and those in the rollouts of
verifiers, TRL, SkyRL and verl. A turn is the text that a policy samples, so tool calls and
reasoning become text, by the policy's chat template or in a default form. A message part that is
not in `PARTS` is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from text2grad.data.files import Row, RowError, cell_text, holds_text
from text2grad.data.keys import ANSWER_KEYS, CONVERSATION_KEYS, PROMPT_KEYS, SYSTEM_KEYS
from text2grad.data.spreadsheets.tables import is_filled
from text2grad.errors import warn_once
from text2grad.feedback import Feedback, Message, Transcript
from text2grad.json_text import from_json

ROLES = ("system", "user", "assistant", "tool")
_ROLES = {
    **dict.fromkeys(("developer", "system_prompt"), "system"),
    "human": "user",
    **dict.fromkeys(("ai", "model", "function_call", "custom_tool_call", "reasoning"), "assistant"),
    **dict.fromkeys(("function", "function_call_output", "custom_tool_call_output"), "tool"),
}
"""Other names of roles, and the roles of the items of OpenAI's responses API."""
_ITEMS = ("message", "function_call", "custom_tool_call", "reasoning")
"""Items of an assistant's turn; consecutive items are one turn."""
_CONTENT = ("content", "tool_calls", "function_call", "refusal", "arguments", "summary", "output")
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_MESSAGE_KEYS = {*_CONTENT, *_REASONING, "role", "type", "id", "name", "kwargs", "status", "created_at"}
_REPR_OF_TURNS = re.compile(r"""\s*\[?\s*\{\s*'(?:role|content)'\s*:""")
_AS_PARTS = "write it as text, or as a list of parts"
_ONLY_TEXT = "only text is read: leave such records out, or say in words what it shows"
PARTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(("text", "input_text", "output_text"), ("text", ("text",))),
    "refusal": ("text", ("refusal",)),
    "thinking": ("reasoning", ("thinking",)),
    "reasoning": ("reasoning", ("reasoning", "content", "summary")),
    **dict.fromkeys(("reasoning.text", "reasoning_text", "summary_text"), ("reasoning", ("text",))),
    "reasoning.summary": ("reasoning", ("summary",)),
    **dict.fromkeys(("tool_use", "tool_call", "function_call", "custom_tool_call"), ("call", ())),
    "tool_result": ("result", ("content",)),
    **dict.fromkeys(("redacted_thinking", "reasoning.encrypted"), ("sealed", ())),
}
"""Type of a message part -> its kind, and the keys that may hold its text."""


class AssistantTurn(NamedTuple):
    """A turn of the assistant; `calls` are tool calls with `name` and `arguments`."""

    reasoning: str
    content: str
    calls: Sequence[Mapping[str, Any]]


TurnWriter = Callable[[AssistantTurn], str]
"""Writes a turn as the policy would."""


def default_turn_text(turn: AssistantTurn, cure: str = "the policy's own way: --policy.model NAME") -> str:
    """Write a turn with the tags that most open models are trained on, Qwen's among them.

    Reasoning is put in <think> tags and each tool call, as JSON, in <tool_call> tags. Warns once
    where either is used.
    """
    if turn.calls:
        warn_once(f"tool calls are written as <tool_call>JSON</tool_call> ({cure})")
    if turn.reasoning:
        warn_once(f"reasoning is written as <think>...</think> ({cure})")
    reasoning = f"<think>\n{turn.reasoning.strip()}\n</think>\n" if turn.reasoning else ""
    calls = [f"<tool_call>\n{json.dumps(dict(call), ensure_ascii=False)}\n</tool_call>" for call in turn.calls]
    return "\n".join(filter(None, [reasoning, turn.content, *calls]))


# Rows.


@dataclass(frozen=True)
class Exchange:
    """The prompt and the response of a row.

    Attributes:
        prompt: the turns before the response.
        response: None if the row has none.
        is_turn: the response was one or more chat turns, so its text is taken literally.
        extra: the rest of the row.
        prompt_key: the key of a prompt that is text, else "".
    """

    prompt: tuple[Message, ...]
    response: str | None
    is_turn: bool
    extra: Row
    prompt_key: str = ""


def read_exchange(row: Row, write: TurnWriter = default_turn_text, literal: bool = False) -> Exchange:
    """Read the prompt and the response of a row.

    With `literal`, a response that looks like chat turns in JSON is text.

    Raises:
        ValueError: a message is malformed or holds something other than text, or two keys
            contradict each other.
    """
    refuse_telemetry(row)
    # In a table, a conversation is JSON text.
    parsed = {key: _parse_json(row[key]) for key in CONVERSATION_KEYS if isinstance(row.get(key), str)}
    row = _normalise_run({**row, **{key: value for key, value in parsed.items() if is_conversation(value)}})
    prompt, used = read_prompt(row, write)
    # `output` answers an instruction or is a list of messages; else it may be a tool's output.
    answers = [key for key in ANSWER_KEYS if _has_content(row.get(key))]
    if "output" in answers and not (isinstance(row.get("instruction"), str) or is_conversation(row["output"])):
        answers.remove("output")
    if len(answers) > 1:
        raise RowError(f"both a {answers[1]} and a {answers[0]}", "leave out the wrong one")
    answer = row[answers[0]] if answers else row.get("response")
    is_text = answer is None or (literal and isinstance(answer, str))
    turns = [] if is_text else list(parse_turns(answer, "response", write))
    response = None if turns or answer is None else cell_text({"response": answer}, "response")
    conversation = next((key for key in CONVERSATION_KEYS if is_conversation(row.get(key))), "")
    before: list[Message] = []
    if not (conversation or answers or "prompt" in row):
        for key in CONVERSATION_KEYS:
            parse_messages(row[key] if isinstance(row.get(key), list) else (), write)  # raises on a malformed one
    if conversation and not answers:
        turns = parse_messages(row[conversation], write)
    elif conversation:
        before = parse_messages(row[conversation], write)
        if before[-1].role == "assistant" and before[-1].content in (response, turns[-1].content if turns else ""):
            before.pop()
        if before and before[-1].role == "assistant":
            before += prompt  # the conversation is the history before the question
        if not before or before[-1].role == "assistant":
            problem = f"both {conversation} with a final answer and a {answers[0]}"
            raise RowError(problem, "leave out the wrong one")
    if turns:
        turns = turns[len(prompt) :] if tuple(turns[: len(prompt)]) == prompt else turns
        first = next((number for number, turn in enumerate(turns) if turn.role == "assistant"), None)
        if first is None:
            source = "conversation" if conversation else "response"
            cure = "leave it out: nothing in it is judged"
            raise RowError(f"no message of the assistant in the {source}", cure)
        before, turns = [*before, *turns[:first]], turns[first:]
        response = turns[0].content if len(turns) == 1 else Transcript.of_messages(turns)
    if before:
        used = [*used, conversation]
        if prompt and prompt[-1].content.strip() != before[-1].content.strip():
            problem = "the response is a conversation that begins with another prompt than the row's"
            raise RowError(problem, "leave out the wrong prompt")
        prompt = max(prompt, tuple(before), key=len)
    prompt, used = add_system_message(row, prompt, used)
    extra = {key: value for key, value in row.items() if key not in (*used, *answers, conversation)}
    return Exchange(prompt, response, bool(turns), extra, "" if before else next(iter(used), ""))


def read_record(row: Row, write: TurnWriter = default_turn_text) -> Feedback:
    """Read a record of our own, whose response may also be structured messages.

    Raises:
        ValueError: it is not a record; or see `read_exchange`.
    """
    if is_structured(row.get("response")):
        exchange = read_exchange(row, write)
        row = {**exchange.extra, "prompt": exchange.prompt, "response": exchange.response}
    return Feedback.model_validate(row)


def refuse_telemetry(row: Row) -> None:
    """Raise RowError if a row is a span of OpenTelemetry."""
    if "resourceSpans" in row or "gen_ai." in str(row.get("attributes", list(row))):
        raise RowError("spans of OpenTelemetry are not read", 'write each conversation as {"messages": [...]}')


def _has_content(value: Any) -> bool:
    return is_filled(value) or (isinstance(value, str) and bool(value.strip()))


def read_prompt(
    row: Row, write: TurnWriter = default_turn_text, keys: Sequence[str] = PROMPT_KEYS, join: bool = False
) -> tuple[tuple[Message, ...], list[str]]:
    """Read the prompt of a row, without a system message under another key.

    The first of `keys` that holds a prompt counts; with `join`, the texts of all of them.

    Returns:
        The turns of the prompt, and the keys that were used.
    """
    filled = [key for key in keys if _has_content(row.get(key))]
    prompts = [key for key in filled if key == "prompt" or isinstance(row[key], str) or is_conversation(row[key])]
    used = prompts if join else prompts[:1]
    if used == ["instruction"] and isinstance(row.get("input"), str) and row["input"].strip():
        used.append("input")
    if not used:
        return (), []
    if turns := parse_turns(row[used[0]], "prompt", write):
        return turns, used[:1]
    text = "\n\n".join(cell_text(row, key, "prompt") for key in used)
    return (Message(role="user", content=text),), used


def add_system_message(
    row: Row, prompt: tuple[Message, ...], used: list[str]
) -> tuple[tuple[Message, ...], list[str]]:
    """Put the system message of a row, if it has one, before a prompt that is not empty.

    Returns:
        The prompt, and the keys in `used` with the key of the system message.

    Raises:
        ValueError: the prompt begins with another system message.
    """
    keys = [key for key in SYSTEM_KEYS if isinstance(row.get(key), str) and row[key].strip()]
    if not (keys and prompt):
        return prompt, used
    system = Message(role="system", content=row[keys[0]])
    if prompt[0].role == "system" and prompt[0].content.strip() != system.content.strip():
        raise RowError(f"{keys[0]} differs from the system message", "leave out the wrong one")
    return (prompt if prompt[0].role == "system" else (system, *prompt)), [*used, keys[0]]


def _normalise_run(row: Row) -> Row:
    """Give a run of LangSmith, or a response of OpenAI's API, the keys `prompt` and `response`."""
    if row.get("run_type") in ("llm", "chat_model"):
        sides = {"prompt": "inputs", "response": "outputs"}
    elif (
        is_conversation(row.get("output"))
        and "input" in row
        and not {*PROMPT_KEYS, *CONVERSATION_KEYS} & row.keys()
    ):
        sides = {"prompt": "input", "response": "output", "system": "instructions"}
    else:
        return row
    texts = {ours: find_messages(row[key]) or row[key] for ours, key in sides.items() if row.get(key)}
    return {**{key: value for key, value in row.items() if key not in sides.values()}, **texts}


def find_messages(value: Any) -> list[Any]:
    """Return the first list of messages in the input or output of a run, at any depth."""
    if isinstance(value, dict) and _role(value):
        return [value]
    if is_conversation(value):
        return list(value)
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(find_messages, inner)), [])


def repeats_prompt(row: Mapping[str, Any]) -> bool:
    """True if the response of a row is a plain conversation that begins with the prompt."""
    response = row["response"]
    if not (isinstance(response, list) and response) or is_structured(response):
        return False
    return isinstance(response[0], dict) and ("is_chosen" in row or response[0].get("content") == row["prompt"])


def is_structured(messages: object) -> bool:
    """True for a list of messages with more than roles and plain texts."""
    objects = [item for item in messages if isinstance(item, dict)] if isinstance(messages, list) else []
    return any(item.keys() - {"role", "content"} or not isinstance(item.get("content"), str) for item in objects)


def parse_turns(value: Any, name: str, write: TurnWriter = default_turn_text) -> tuple[Message, ...]:
    """Parse the chat turns in a cell: a list, a single turn, or either as JSON text.

    `name` is `prompt`, `response` or another word for errors.

    Returns:
        The turns; none for a cell of plain text.

    Raises:
        ValueError: it is another list or object, or a turn holds something other than text.
    """
    if isinstance(value, str):
        if _REPR_OF_TURNS.match(value):
            raise ValueError(f"the {name} is chat turns as Python prints them; write them as JSON")
        content = _parse_json(value) if value.lstrip().startswith(("[", "{")) else None
        turns = _as_list(content) if isinstance(content, dict | list) else []
        value = turns if all(map(is_turn, turns)) else None
    if isinstance(value, dict):
        value = [{"role": "assistant", **value} if name != "prompt" and "content" in value else value]
    if isinstance(value, list) and value and not is_conversation(value):
        shape = '{"role": "assistant", "content": "..."}'
        raise ValueError(f"the {name} is neither text nor a list of turns such as {shape}: {str(value[0])[:40]!r}")
    return tuple(parse_messages(value, write)) if isinstance(value, list) else ()


def is_turn(value: Any) -> bool:
    """True for a chat turn with a role of ours and a content."""
    return isinstance(value, dict) and value.get("role") in ROLES and "content" in value


# Messages.


def is_conversation(value: Any) -> bool:
    """True for a list of messages, or of items of the responses API."""
    items = value if isinstance(value, list) else []
    typed = all(isinstance(item, dict) and (_role(item) or "type" in item) for item in items)
    return typed and any(map(_role, items))


def parse_messages(value: Iterable[Any], write: TurnWriter = default_turn_text) -> list[Message]:
    """Convert messages to plain text, with roles of ours.

    Raises:
        ValueError: an item is not a message, or holds something other than text.
    """
    merged: list[dict[str, Any]] = []
    for item in map(_as_message, value):
        last = merged[-1] if merged else item
        same_turn = item is not last and {item["role"], last["role"]} == {"assistant"}
        if same_turn and item.get("type") in _ITEMS and last.get("type") in _ITEMS:
            merged[-1] = {**last, "content": [*_as_list(last.get("content")), *_as_list(item.get("content"))]}
        else:
            merged.append(item)
    return [message for item in merged for message in plain_messages(item, write)]


def _as_message(value: Any) -> dict[str, Any]:
    """Unwrap a message of LangChain or an item of the responses API; give it a role of ours."""
    role, message = _role(value), _unwrap(value)
    if not role and "type" in message:
        raise RowError(f"an item of type {str(message['type'])[:40]!r}", _ONLY_TEXT)
    if not role:
        raise RowError(f"not a message: {str(value)[:40]}", _AS_PARTS)
    if message.get("type") in PARTS and "role" not in message:
        return {"type": message["type"], "role": role, "content": [message]}
    if str(message.get("type")).endswith("_output"):
        return {"role": role, "content": message.get("output")}
    return {**message, "role": role}


def _role(value: Any) -> str:
    """Return the role of a message as one of `ROLES`, or "" for anything that is not a message."""
    message = _unwrap(value)
    if not message.keys() & {*_CONTENT, *_REASONING}:
        return ""
    name = str(message.get("role") or message.get("type") or "").lower()
    name = _ROLES.get(name, name)
    return name if name in ROLES else ""


def _unwrap(value: Any) -> Mapping[str, Any]:
    """Return a message without LangChain's wrapper; empty for anything but an object."""
    message: Mapping[str, Any] = value if isinstance(value, dict) else {}
    inner = message.get("kwargs")
    return inner if isinstance(inner, dict) else message


def plain_messages(message: Mapping[str, Any], write: TurnWriter = default_turn_text) -> list[Message]:
    """Convert a message to plain text.

    Returns:
        One message; of a user's or a tool's with tool results, one for each result and for the text
        between them.

    Raises:
        ValueError: it holds something other than text, or a part that its role cannot write.
    """
    role, content = str(message["role"]), message.get("content")
    if isinstance(content, dict):
        raise RowError(f"a message of the {role} has an object as content", _AS_PARTS)
    if message.get("audio"):
        raise RowError(f"a message of the {role} has a part 'audio'", _ONLY_TEXT)
    for key in message.keys() - _MESSAGE_KEYS:
        if holds_text(message[key]):
            warn_once(f"{key!r} of messages is not read; move what matters into their content")
    pieces: list[tuple[str, str]] = []  # (kind, text)
    calls: list[Any] = []
    for part in content if isinstance(content, list) else [content]:
        kind, text = _read_part(part, role)
        if kind == "call":
            calls.append(part)
        elif kind != "sealed":
            pieces.append((kind, text))
    pieces.append(("text", _part_text(message.get("refusal"), role)))
    if role != "assistant":
        return list(_split_results(role, pieces))
    reasoning = [text for kind, text in pieces if kind == "reasoning" and text]
    # Some servers repeat the reasoning under a second key.
    reasoning.append(_part_text(next((message[key] for key in _REASONING if message.get(key)), None), role))
    calls += [*_as_list(message.get("tool_calls")), *_as_list(message.get("function_call"))]
    text = "".join(text for kind, text in pieces if kind == "text")
    turn = AssistantTurn("\n".join(filter(None, reasoning)), text, [_parse_call(call) for call in calls])
    return [Message(role="assistant", content=write(turn) if turn.calls or turn.reasoning else text)]


def _split_results(role: str, pieces: Iterable[tuple[str, str]]) -> Iterator[Message]:
    """Yield tool results as messages of the tool, and the texts between them under `role`."""
    texts: list[str] = []
    results = 0
    for kind, text in [*pieces, ("end", "")]:
        if kind == "text":
            texts.append(text)
            continue
        if any(texts) or (kind == "end" and not results):
            yield Message.model_validate({"role": role, "content": "".join(texts)})
        texts = []
        if kind == "result":
            results += 1
            yield Message(role="tool", content=text)


def _read_part(part: Any, role: str) -> tuple[str, str]:
    """Return the kind of a message part (see `PARTS`) and its text.

    Raises:
        ValueError: its type is unknown, or not one that this role writes.
    """
    if not isinstance(part, dict):
        return "text", _part_text(part, role)
    name = str(part.get("type") or next(iter(part), ""))
    kind, keys = PARTS.get(name, ("", ()))
    roles = {"text": ROLES, "result": ("user", "tool")}
    if not kind or role not in roles.get(kind, ("assistant",)):
        raise RowError(f"a message of the {role} has a part {name[:40]!r}", _ONLY_TEXT)
    text = _part_text(next((part[key] for key in keys if part.get(key)), None), role)
    if kind == "sealed" or (part.get("encrypted_content") and not text):
        warn_once(f"parts {name!r} are encrypted: left out")
    return kind, text


def _part_text(value: Any, role: str) -> str:
    """Return the text of a part, or the joined texts of the parts in it."""
    if isinstance(value, list):
        parts = [_read_part(part, role) for part in value]
        if all(kind in ("text", "reasoning") for kind, _ in parts):
            return "".join(text for _, text in parts)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"a message has {str(value)[:40]!r} in place of text")
    return value or ""


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _parse_call(value: Any) -> dict[str, Any]:
    """Return the name of a tool call, and its arguments as a value."""
    value = _parse_json(value)
    call = value.get("function", value) if isinstance(value, dict) else {}
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError(f"a tool call has no name: {str(value)[:60]}")
    arguments: Any = next((call[key] for key in ("arguments", "args", "input") if key in call), {})
    with suppress(json.JSONDecodeError):  # what a model wrote need not be JSON
        arguments = from_json(arguments) if isinstance(arguments, str) else arguments
    return {"name": call["name"], "arguments": arguments}


def _parse_json(value: Any) -> Any:
    """Parse a value that is JSON text; None if it is text and not JSON."""
    try:
        return from_json(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return None
