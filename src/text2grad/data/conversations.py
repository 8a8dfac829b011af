"""Conversations as others write them: a row's prompt, and its response as turns of plain text.

The formats are OpenAI's messages (`messages`, or `prompt` and `completion` as verifiers and TRL write them, also
for rollouts of SkyRL and verl) and chat model runs of LangSmith. A turn is the text that a policy writes, so
structured tool calls and reasoning become text, by the policy's chat template or in a default form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from text2grad.data.files import Row, RowError
from text2grad.errors import warn_once
from text2grad.feedback import Message, Transcript
from text2grad.json_text import from_json, to_json

TALKS = ("messages", "conversation", "chat_history", "trajectory")
"""Keys of a whole conversation: its first turn of the assistant begins the response."""
ANSWERS = ("completion", "response")
"""Keys of what was answered to `prompt`."""
ROLES = ("system", "user", "assistant", "tool")
_ROLES = {"developer": "system", "human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
_TEXTS = ("text", "input_text", "output_text")
_REPR_OF_TURNS = re.compile(r"""\s*\[?\s*\{\s*'(?:role|content)'\s*:""")


class AssistantTurn(NamedTuple):
    """What a turn of the assistant holds: its reasoning, its text, and its calls of tools, each with `name` and
    `arguments`."""

    reasoning: str
    content: str
    calls: Sequence[Mapping[str, Any]]


Write = Callable[[AssistantTurn], str]
"""A turn as the policy writes it."""


def by_default(said: AssistantTurn, cure: str = "the policy's own way: --policy.model NAME") -> str:
    """A turn in the frames that most open models are trained on, Qwen's among them; stderr says so, once.

    Reasoning stands between <think> tags, and each call, as JSON, between <tool_call> tags.
    """
    if said.calls:
        warn_once(f"calls of tools are written as <tool_call>JSON</tool_call> ({cure})")
    if said.reasoning:
        warn_once(f"reasoning is written as <think>...</think> ({cure})")
    thoughts = f"<think>\n{said.reasoning.strip()}\n</think>\n" if said.reasoning else ""
    calls = [f"<tool_call>\n{json.dumps(dict(call), ensure_ascii=False)}\n</tool_call>" for call in said.calls]
    return "\n".join(filter(None, [thoughts, said.content, *calls]))


def with_conversation(row: Row, write: Write = by_default) -> Row:
    """The row with its conversation as `prompt` and `response`, lists of plain messages; a response of one turn is
    text. A row without a conversation is returned unchanged.

    Raises:
        ValueError: a message is malformed, or holds something other than text.
    """
    if "resourceSpans" in row or "gen_ai." in str(row.get("attributes", list(row))):
        raise RowError("spans of OpenTelemetry are not read", 'write each conversation as {"messages": [...]}')
    parts = _parts(row)
    if parts is None:
        return row
    prompt, answer = ([plain_message(message, write) for message in messages] for messages in parts)
    if prompt and answer[: len(prompt)] == prompt:  # the conversation from the prompt on
        answer = answer[len(prompt) :]
    if not prompt:
        first = next((place for place, turn in enumerate(answer) if turn.role == "assistant"), len(answer))
        prompt, answer = answer[:first], answer[first:]
    if not any(turn.role == "assistant" for turn in answer):
        raise RowError("no message of the assistant in the conversation", "leave it out: nothing in it is judged")
    single = answer[0].content if len(answer) == 1 else [turn.model_dump() for turn in answer]
    shown: Row = {"prompt": [turn.model_dump() for turn in prompt]} if prompt else {}
    others = {name: value for name, value in row.items() if name not in (*TALKS, *ANSWERS) or not _is_talk(value)}
    return {**others, **shown, "response": single}


def response_of(row: Row) -> str:
    """The response of a row that `with_conversation` returned."""
    value = row["response"]
    return value if isinstance(value, str) else Transcript.of_messages(map(Message.model_validate, value))


def _parts(row: Row) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """The messages of the prompt, and those of the answer or of the whole conversation; None if there are none."""
    prompt: Any = row.get("prompt")
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    elif not _is_talk(prompt):
        prompt = []
    if _is_talk(row.get("completion")):
        if row.get("response"):
            raise RowError("both a completion and a response", "leave out the one that is not meant")
        return prompt, row["completion"]
    if _is_talk(row.get("response")) and _is_new(row):
        return prompt, row["response"]
    talk = next((row[name] for name in TALKS if _is_talk(row.get(name))), None)
    if talk and "response" not in row:
        return [], talk
    if row.get("run_type") in ("llm", "chat_model"):
        prompt, answer = (_messages_in(row.get(name)) for name in ("inputs", "outputs"))
        return (prompt, answer) if prompt and answer else None
    return None


def _is_talk(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_role, value))


def _is_new(row: Row) -> bool:
    """True if a response is more than one plain answer after its prompt, which every reader takes.

    In a published file whose responses are whole conversations (`repeats_prompt`) the last turn is meant.
    """
    messages = row["response"]
    if is_structured(messages):
        return True
    several = any(_role(message) in ("assistant", "tool") for message in messages[:-1])
    return several and not repeats_prompt({"prompt": None, **row})


def is_structured(messages: object) -> bool:
    """True if a list of messages has more than roles and plain texts."""
    objects = [item for item in messages if isinstance(item, dict)] if isinstance(messages, list) else []
    return any(item.keys() - {"role", "content"} or not isinstance(item.get("content"), str) for item in objects)


def _role(message: Any) -> str:
    """The role of a message in our words; "" for anything that is not a message."""
    inner = _inner(message) if isinstance(message, dict) else {}
    if not inner.keys() & {"content", "tool_calls", "function_call"}:
        return ""
    name = str(inner.get("role") or inner.get("type") or "").lower()
    name = _ROLES.get(name, name)
    return name if name in ROLES else ""


def _inner(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without the wrapper that LangChain puts around it."""
    inner = message.get("kwargs")
    return inner if isinstance(inner, dict) else message


def plain_message(message: Mapping[str, Any], write: Write = by_default) -> Message:
    """A message as plain text; calls and reasoning of the assistant as it writes them.

    Raises:
        ValueError: it is not a message, or holds something other than text.
    """
    role, inner = _role(message), _inner(message)
    content = inner.get("content")
    if not role or isinstance(content, dict):
        fault = f"a message of the {role} has an object as content" if role else f"no message: {str(message)[:40]}"
        raise RowError(fault, "write it as text, or as a list of parts")
    thoughts, calls = [str(inner.get("reasoning_content") or inner.get("reasoning") or "")], []
    texts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") or next(iter(part), "") if isinstance(part, dict) else "text"
        if kind not in (*_TEXTS, "tool_result", "tool_use", "thinking"):
            cure = "only text is read: leave such records out, or say in words what it shows"
            raise RowError(f"a message of the {role} has a part {str(kind)[:40]!r}", cure)
        if kind == "tool_use":
            calls.append(part)
        else:
            (thoughts if kind == "thinking" else texts).append(_text_of(part))
    calls += [*_listed(inner.get("tool_calls")), *_listed(inner.get("function_call"))]
    turn = AssistantTurn("\n".join(filter(None, thoughts)), "".join(texts), [_call(call) for call in calls])
    if role != "assistant" or not (turn.calls or turn.reasoning):
        return Message.model_validate({"role": role, "content": turn.content})
    return Message(role="assistant", content=write(turn))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def _text_of(part: Any) -> str:
    """The text of a part, whatever its name there is; what a tool answered may be any JSON."""
    if part is None or isinstance(part, str):
        return part or ""
    if not isinstance(part, dict):
        raise ValueError(f"a message has {str(part)[:40]!r} in place of text")
    names = ("text", "content", "thinking")
    value = next((part[name] for name in names if part.get(name) is not None), "")
    if not isinstance(value, str) and part.get("type") in (None, "thinking", *_TEXTS):
        raise ValueError(f"a message has {str(value)[:40]!r} in place of text")
    return value if isinstance(value, str) else to_json(value)


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


def _messages_in(value: Any) -> list[Any]:
    """The messages in the inputs or outputs of a run, however deep: the first list of some, or the only one."""
    if isinstance(value, dict) and _role(value):
        return [value]
    if _is_talk(value):
        return list(value)
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(_messages_in, inner)), [])


def repeats_prompt(row: Mapping[str, Any]) -> bool:
    """Whether a row's response is a conversation from the prompt on, as published, and not what was answered."""
    response = row["response"]
    first = response[0] if isinstance(response, list) and response else None
    return isinstance(first, dict) and ("is_chosen" in row or first.get("content") == row["prompt"])


def turns_of(value: Any, name: str) -> tuple[Message, ...]:
    """The chat turns of a cell that has some: a list of them, one alone, or a list as JSON text; empty: it is text.

    Raises:
        ValueError: it is another list or object, or a turn has something else than text.
    """
    if isinstance(value, str):
        if _REPR_OF_TURNS.match(value):
            raise ValueError(f"the {name} is chat turns as Python prints them; write them as JSON")
        found = _loaded(value) if value.lstrip().startswith(("[", "{")) else None
        listed = [found] if isinstance(found, dict) else found if isinstance(found, list) else []
        value = listed if all(map(is_turn, listed)) else None
    if isinstance(value, dict):
        value = [{"role": "assistant", **value} if name != "prompt" and "content" in value else value]
    if not isinstance(value, list):
        return ()
    return tuple(_turn(turn, name) for turn in value)


def is_turn(value: Any) -> bool:
    """True if this is a chat turn."""
    return isinstance(value, dict) and value.get("role") in ROLES and "content" in value


def _turn(value: Any, name: str) -> Message:
    if not is_turn(value):
        shape = '{"role": "assistant", "content": "..."}'
        raise ValueError(f"the {name} is neither text nor a list of turns such as {shape}: {str(value)[:40]!r}")
    return plain_message(value)
