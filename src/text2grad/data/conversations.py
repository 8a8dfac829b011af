"""Read what was asked and answered in a row, as others write it: one reader for all files.

A prompt is text or messages, a response text or the turns of an assistant. Messages are those of
OpenAI (chat and responses API), Anthropic, LangChain and LangSmith; rollouts of verifiers, TRL,
SkyRL and verl have them, too. A turn is the text that a policy writes, so calls of tools and
reasoning become text, by the policy's chat template or in a default form. A part of a message that
is not in `PARTS` is refused by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from text2grad.data.files import Row, RowError, cell_text, holds_text
from text2grad.data.spreadsheets.tables import is_filled
from text2grad.errors import warn_once
from text2grad.feedback import Feedback, Message, Transcript
from text2grad.json_text import from_json

PROMPTS = ("prompt", "question", "instruction", "query")
"""Keys of what was asked; the first counts. Alpaca's `input` belongs to its `instruction`."""
SYSTEMS = ("system", "system_prompt", "system_message")
TALKS = ("messages", "conversation", "chat_history", "history", "trajectory")
"""Keys of a whole conversation, or of what came before a response."""
ANSWERS = ("response", "completion", "output")
"""Keys of what was answered. `output` stands with `instruction`, or holds messages."""
ROLES = ("system", "user", "assistant", "tool")
_ROLES = {
    **dict.fromkeys(("developer", "system_prompt"), "system"),
    "human": "user",
    **dict.fromkeys(("ai", "model", "function_call", "custom_tool_call", "reasoning"), "assistant"),
    **dict.fromkeys(("function", "function_call_output", "custom_tool_call_output"), "tool"),
}
"""Other names of roles, and the roles of the items of OpenAI's responses API that are no
messages."""
_ITEMS = ("message", "function_call", "custom_tool_call", "reasoning")
"""Items of one turn of the assistant; those in a row are one turn."""
_CONTENT = ("content", "tool_calls", "function_call", "refusal", "arguments", "summary", "output")
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_KNOWN = {*_CONTENT, *_REASONING, "role", "type", "id", "name", "kwargs", "status", "created_at"}
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
"""Types of parts: what each is, and the keys that hold it."""


class AssistantTurn(NamedTuple):
    """What a turn of the assistant holds: its reasoning, its text, and its calls of tools, each
    with `name` and `arguments`."""

    reasoning: str
    content: str
    calls: Sequence[Mapping[str, Any]]


TurnWriter = Callable[[AssistantTurn], str]
"""A turn as the policy writes it."""


def default_turn_text(said: AssistantTurn, cure: str = "the policy's own way: --policy.model NAME") -> str:
    """A turn in the frames that most open models are trained on, Qwen's among them; stderr says so,
    once.

    Reasoning stands between <think> tags, and each call, as JSON, between <tool_call> tags.
    """
    if said.calls:
        warn_once(f"calls of tools are written as <tool_call>JSON</tool_call> ({cure})")
    if said.reasoning:
        warn_once(f"reasoning is written as <think>...</think> ({cure})")
    thoughts = f"<think>\n{said.reasoning.strip()}\n</think>\n" if said.reasoning else ""
    calls = [f"<tool_call>\n{json.dumps(dict(call), ensure_ascii=False)}\n</tool_call>" for call in said.calls]
    return "\n".join(filter(None, [thoughts, said.content, *calls]))


# Rows.


@dataclass(frozen=True)
class Exchange:
    """A row's prompt and response; `others` is the rest of the row, `asks` the key of a prompt that
    is text.

    `response` is None where the row has none. `is_turn`: it was a chat turn or several, whose text
    is as it is.
    """

    prompt: tuple[Message, ...]
    response: str | None
    is_turn: bool
    extra: Row
    prompt_key: str = ""


def read_exchange(row: Row, write: TurnWriter = default_turn_text, literal: bool = False) -> Exchange:
    """Read prompt and response of a row. A `literal` response is text, also where it looks like
    turns as JSON.

    Raises:
        ValueError: a message is malformed or holds something other than text; or two keys say
            different things.
    """
    refuse_telemetry(row)
    cells = {name: _loaded(row[name]) for name in TALKS if isinstance(row.get(name), str)}  # a table has JSON there
    row = _run_of_a_model({**row, **{name: value for name, value in cells.items() if is_conversation(value)}})
    prompt, used = read_prompt(row, write)
    answers = [name for name in ANSWERS if _is_said(row.get(name)) and (name != "output" or _goes_with(row))]
    if len(answers) > 1:
        raise RowError(f"both a {answers[1]} and a {answers[0]}", "leave out the one that is not meant")
    answer = row[answers[0]] if answers else row.get("response")
    is_text = answer is None or (literal and isinstance(answer, str))
    turns = [] if is_text else list(parse_turns(answer, "response", write))
    response = None if turns or answer is None else cell_text({"response": answer}, "response")
    talk = next((name for name in TALKS if is_conversation(row.get(name))), "")
    before: list[Message] = []
    if not (talk or answers or "prompt" in row):
        for name in TALKS:
            parse_messages(row[name] if isinstance(row.get(name), list) else (), write)  # says what is wrong there
    if talk and not answers:
        turns = parse_messages(row[talk], write)
    elif talk:
        before = parse_messages(row[talk], write)
        if before[-1].role == "assistant" and before[-1].content in (response, turns[-1].content if turns else ""):
            before.pop()
        if before and before[-1].role == "assistant":
            before += prompt  # what was said before the question
        if not before or before[-1].role == "assistant":
            raise RowError(f"both {talk} that end with an answer and a {answers[0]}", "leave out what is not meant")
    if turns:
        turns = turns[len(prompt) :] if tuple(turns[: len(prompt)]) == prompt else turns
        first = next((place for place, turn in enumerate(turns) if turn.role == "assistant"), None)
        if first is None:
            cure = "leave it out: nothing in it is judged"
            raise RowError(f"no message of the assistant in the {(talk and 'conversation') or 'response'}", cure)
        before, turns = [*before, *turns[:first]], turns[first:]
        response = turns[0].content if len(turns) == 1 else Transcript.of_messages(turns)
    if before:
        used = [*used, talk]
        prompt = _same_prompt(prompt, tuple(before))
    shown, used = add_system_message(row, prompt, used)
    others = {name: value for name, value in row.items() if name not in (*used, *answers, talk)}
    return Exchange(shown, response, bool(turns), others, "" if before else next(iter(used), ""))


def read_record(row: Row, write: TurnWriter = default_turn_text) -> Feedback:
    """Read a record of ours; of structured messages as its response, the turns are read.

    Raises:
        ValueError: it is no record, or see `read_exchange`.
    """
    if is_structured(row.get("response")):
        exchange = read_exchange(row, write)
        row = {**exchange.extra, "prompt": exchange.prompt, "response": exchange.response}
    return Feedback.model_validate(row)


def refuse_telemetry(row: Row) -> None:
    """Refuse spans of OpenTelemetry.

    Raises:
        ValueError: the row is one.
    """
    if "resourceSpans" in row or "gen_ai." in str(row.get("attributes", list(row))):
        raise RowError("spans of OpenTelemetry are not read", 'write each conversation as {"messages": [...]}')


def _is_said(value: Any) -> bool:
    return is_filled(value) or (isinstance(value, str) and bool(value.strip()))


def read_prompt(
    row: Row, write: TurnWriter = default_turn_text, names: Sequence[str] = PROMPTS, every: bool = False
) -> tuple[tuple[Message, ...], list[str]]:
    """The prompt under the first of `names` (or under `every` one), as turns, and the keys that
    hold it; without a `system` of the row.
    """
    there = [name for name in names if _is_said(row.get(name))]
    asks = [name for name in there if name == "prompt" or isinstance(row[name], str) or is_conversation(row[name])]
    used = asks if every else asks[:1]
    if used == ["instruction"] and isinstance(row.get("input"), str) and row["input"].strip():
        used.append("input")
    if not used:
        return (), []
    if turns := parse_turns(row[used[0]], "prompt", write):
        return turns, used[:1]
    text = "\n\n".join(cell_text(row, name, "prompt") for name in used)
    return (Message(role="user", content=text),), used


def _same_prompt(prompt: tuple[Message, ...], before: tuple[Message, ...]) -> tuple[Message, ...]:
    """The longer of a row's prompt and of what came before its response, where both end alike.

    Raises:
        ValueError: they do not.
    """
    if prompt and prompt[-1].content.strip() != before[-1].content.strip():
        problem = "the response is a conversation that begins with another prompt than the row's"
        raise RowError(problem, "leave out the prompt that is not meant")
    return max(prompt, before, key=len)


def add_system_message(
    row: Row, prompt: tuple[Message, ...], used: list[str]
) -> tuple[tuple[Message, ...], list[str]]:
    """The prompt after the system message of a row, if it has one, and the keys of both.

    Raises:
        ValueError: the prompt begins with another one.
    """
    names = [name for name in SYSTEMS if isinstance(row.get(name), str) and row[name].strip()]
    if not (names and prompt):
        return prompt, used
    system = Message(role="system", content=row[names[0]])
    if prompt[0].role == "system" and prompt[0].content.strip() != system.content.strip():
        raise RowError(f"{names[0]} says another thing than the system message", "leave out the one not meant")
    return (prompt if prompt[0].role == "system" else (system, *prompt)), [*used, names[0]]


def _goes_with(row: Row) -> bool:
    """True if `output` is an answer: beside an instruction, or as messages. Others may hold a
    tool's words."""
    return isinstance(row.get("instruction"), str) or is_conversation(row["output"])


def _run_of_a_model(row: Row) -> Row:
    """A run of LangSmith, or a response of OpenAI's API, with `prompt` and `response`; any other
    row as it is."""
    if row.get("run_type") in ("llm", "chat_model"):
        sides = {"prompt": "inputs", "response": "outputs"}
    elif is_conversation(row.get("output")) and "input" in row and not {*PROMPTS, *TALKS} & row.keys():
        sides = {"prompt": "input", "response": "output", "system": "instructions"}
    else:
        return row
    texts = {ours: find_messages(row[name]) or row[name] for ours, name in sides.items() if row.get(name)}
    return {**{name: value for name, value in row.items() if name not in sides.values()}, **texts}


def find_messages(value: Any) -> list[Any]:
    """The messages in the input or output of a run, however deep: the first list of some, or the
    only one."""
    if isinstance(value, dict) and _role(value):
        return [value]
    if is_conversation(value):
        return list(value)
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(find_messages, inner)), [])


def repeats_prompt(row: Mapping[str, Any]) -> bool:
    """True if a row's response is plain turns from the prompt on, as published, and not what was
    answered."""
    response = row["response"]
    if not (isinstance(response, list) and response) or is_structured(response):
        return False
    return isinstance(response[0], dict) and ("is_chosen" in row or response[0].get("content") == row["prompt"])


def is_structured(messages: object) -> bool:
    """True if a list of messages has more than roles and plain texts."""
    objects = [item for item in messages if isinstance(item, dict)] if isinstance(messages, list) else []
    return any(item.keys() - {"role", "content"} or not isinstance(item.get("content"), str) for item in objects)


def parse_turns(value: Any, name: str, write: TurnWriter = default_turn_text) -> tuple[Message, ...]:
    """The chat turns of a cell that has some: a list of them, one alone, or a list as JSON text;
    empty: it is text.

    Raises:
        ValueError: it is another list or object, or a turn has something else than text.
    """
    if isinstance(value, str):
        if _REPR_OF_TURNS.match(value):
            raise ValueError(f"the {name} is chat turns as Python prints them; write them as JSON")
        content = _loaded(value) if value.lstrip().startswith(("[", "{")) else None
        listed = [content] if isinstance(content, dict) else content if isinstance(content, list) else []
        value = listed if all(map(is_turn, listed)) else None
    if isinstance(value, dict):
        value = [{"role": "assistant", **value} if name != "prompt" and "content" in value else value]
    if isinstance(value, list) and value and not is_conversation(value):
        shape = '{"role": "assistant", "content": "..."}'
        raise ValueError(f"the {name} is neither text nor a list of turns such as {shape}: {str(value[0])[:40]!r}")
    return tuple(parse_messages(value, write)) if isinstance(value, list) else ()


def is_turn(value: Any) -> bool:
    """True if this is a chat turn."""
    return isinstance(value, dict) and value.get("role") in ROLES and "content" in value


# Messages.


def is_conversation(value: Any) -> bool:
    """True if this is a list of messages, or of items of the responses API."""
    items = value if isinstance(value, list) else []
    typed = all(isinstance(item, dict) and (_role(item) or "type" in item) for item in items)
    return typed and any(map(_role, items))


def parse_messages(value: Iterable[Any], write: TurnWriter = default_turn_text) -> list[Message]:
    """Messages as plain text, under the roles of those who wrote them.

    Raises:
        ValueError: one is no message, or holds something other than text.
    """
    merged: list[dict[str, Any]] = []
    for item in map(_as_message, value):
        last = merged[-1] if merged else item
        same_turn = item is not last and {item["role"], last["role"]} == {"assistant"}
        if same_turn and item.get("type") in _ITEMS and last.get("type") in _ITEMS:
            merged[-1] = {**last, "content": [*_listed(last.get("content")), *_listed(item.get("content"))]}
        else:
            merged.append(item)
    return [message for item in merged for message in plain_messages(item, write)]


def _as_message(value: Any) -> dict[str, Any]:
    """A message without LangChain's wrapper, or an item of the responses API as one, with its role
    in our words."""
    role, message = _role(value), _inner(value) if isinstance(value, dict) else {}
    if not role:
        named = f"an item {str(message['type'])[:40]!r}" if "type" in message else f"no message: {str(value)[:40]}"
        raise RowError(named, _ONLY_TEXT if "type" in message else _AS_PARTS)
    if message.get("type") in PARTS and "role" not in message:
        return {"type": message["type"], "role": role, "content": [message]}
    if str(message.get("type")).endswith("_output"):
        return {"role": role, "content": message.get("output")}
    return {**message, "role": role}


def _role(value: Any) -> str:
    """The role of a message in our words; "" for anything that is not a message."""
    message = _inner(value) if isinstance(value, dict) else {}
    if not message.keys() & {*_CONTENT, *_REASONING}:
        return ""
    name = str(message.get("role") or message.get("type") or "").lower()
    name = _ROLES.get(name, name)
    return name if name in ROLES else ""


def _inner(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without the wrapper that LangChain puts around it."""
    inner = message.get("kwargs")
    return inner if isinstance(inner, dict) else message


def plain_messages(message: Mapping[str, Any], write: TurnWriter = default_turn_text) -> list[Message]:
    """A message as plain text: one message, or one for each result of a tool in it and for what
    stands between.

    Raises:
        ValueError: it holds something other than text, or a part that no such role writes.
    """
    role, content = str(message["role"]), message.get("content")
    if isinstance(content, dict):
        raise RowError(f"a message of the {role} has an object as content", _AS_PARTS)
    if message.get("audio"):
        raise RowError(f"a message of the {role} has a part 'audio'", _ONLY_TEXT)
    for name in message.keys() - _KNOWN:
        if holds_text(message[name]):
            warn_once(f"{name!r} of messages is not read; what counts of it belongs into their content")
    pieces: list[tuple[str, str]] = []
    calls: list[Any] = []
    for part in content if isinstance(content, list) else [content]:
        kind, text = _read_part(part, role)
        if kind == "call":
            calls.append(part)
        elif kind != "sealed":
            pieces.append((kind, text))
    pieces.append(("text", _text_in(message.get("refusal"), role)))
    beside = next((message[name] for name in _REASONING if message.get(name)), None)  # often there twice
    thoughts = [text for kind, text in pieces if kind == "reasoning" and text]
    thoughts.append(_text_in(beside, role) if role == "assistant" else "")
    calls += [*_listed(message.get("tool_calls")), *_listed(message.get("function_call"))]
    if role == "assistant":
        text = "".join(text for kind, text in pieces if kind == "text")
        turn = AssistantTurn("\n".join(filter(None, thoughts)), text, [_call(call) for call in calls])
        return [Message(role="assistant", content=write(turn) if turn.calls or turn.reasoning else text)]
    return list(_by_role(role, pieces))


def _by_role(role: str, pieces: Iterable[tuple[str, str]]) -> Iterator[Message]:
    """The messages of a user or a tool: results of tools are the tool's, all texts between them one
    message."""
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
    """The kind of a part of a message (see `PARTS`), and its text.

    Raises:
        ValueError: it is of another type, or of one that this role does not write.
    """
    if not isinstance(part, dict):
        return "text", _text_in(part, role)
    name = str(part.get("type") or next(iter(part), ""))
    kind, keys = PARTS.get(name, ("", ()))
    roles = {"text": ROLES, "result": ("user", "tool")}
    if not kind or role not in roles.get(kind, ("assistant",)):
        raise RowError(f"a message of the {role} has a part {name[:40]!r}", _ONLY_TEXT)
    text = _text_in(next((part[key] for key in keys if part.get(key)), None), role)
    if kind == "sealed" or (part.get("encrypted_content") and not text):
        warn_once(f"parts {name!r} are encrypted: left out")
    return kind, text


def _text_in(value: Any, role: str) -> str:
    """The text of a part, or of the parts in it."""
    if isinstance(value, list):
        inner = [_read_part(part, role) for part in value]
        if all(kind in ("text", "reasoning") for kind, _ in inner):
            return "".join(text for _, text in inner)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"a message has {str(value)[:40]!r} in place of text")
    return value or ""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _call(value: Any) -> dict[str, Any]:
    """A call of a tool: its name, and its arguments as a value."""
    value = _loaded(value)
    called = value.get("function", value) if isinstance(value, dict) else {}
    if not isinstance(called, dict) or not isinstance(called.get("name"), str):
        raise ValueError(f"a call of a tool has no name: {str(value)[:60]}")
    given: Any = next((called[name] for name in ("arguments", "args", "input") if name in called), {})
    with suppress(json.JSONDecodeError):  # what a model wrote need not be JSON
        given = from_json(given) if isinstance(given, str) else given
    return {"name": called["name"], "arguments": given}


def _loaded(value: Any) -> Any:
    """A value that may be written as a JSON text."""
    try:
        return from_json(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return None
