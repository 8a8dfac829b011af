"""Nested values by dotted names: `outputs.answer`, `feedback.0.comment`, `messages.-1.rating`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from text2grad.data.conversations import is_conversation
from text2grad.data.files import Row
from text2grad.data.keys import ANSWER_KEYS, CONVERSATION_KEYS
from text2grad.data.spreadsheets.tables import is_filled

MAX_DEPTH = 4
"""Levels of nested objects that are searched for a comment or a rating."""


def expand_paths(row: Row, names: Mapping[str, Sequence[str]]) -> Row:
    """Return a row with the values at dotted `names` as separate keys.

    Several prompts are joined under the last key. A conversation whose texts are named is no longer
    read as a conversation. Values named inside the messages of another conversation are removed
    from these messages, so that nothing is read twice.

    `names` maps our fields to dotted names in the row; the index -1 is the last item of a list.
    """
    paths = [path for field_paths in names.values() for path in field_paths if path not in row and "." in path]
    values = {path: value for path in paths if (value := value_at(row, path)) is not None}
    prompt_keys = names.get("prompt", ())
    split = {path.partition(".")[0] for path in (*prompt_keys, *names.get("response", ()))}
    row = {key: value for key, value in row.items() if key not in split & {*CONVERSATION_KEYS}}
    for path in values:
        key, _, inner = path.partition(".")
        if is_conversation(row.get(key)) and inner.split(".")[1:] != ["content"]:
            row[key] = _clear_path(row[key], inner)
    row |= values
    prompts = [str(row[key]) for key in prompt_keys if is_filled(row.get(key))]
    row = {key: value for key, value in row.items() if key not in prompt_keys[:-1]}
    return row | ({prompt_keys[-1]: "\n\n".join(prompts)} if len(prompts) > 1 else {})


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for part in path.split("."):
        if isinstance(value, list) and re.fullmatch(r"-1|\d+", part) and -1 <= int(part) < len(value) and value:
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return None
    return value


def _clear_path(value: Any, path: str) -> Any:
    """Return a copy of a value with None at a dotted path."""
    first, _, inner = path.partition(".")
    copy: Any = [*value] if isinstance(value, list) else {**value}
    key: Any = int(first) if isinstance(value, list) else first
    copy[key] = _clear_path(copy[key], inner) if inner else None
    return copy


def list_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted paths of all texts and numbers; of a list, those of its first item."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from list_paths(item, f"{path}.{key}" if path else str(key))
    if not isinstance(value, dict | list) and value is not None:
        yield path


def flatten_rows(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Flatten rows to texts and numbers by dotted names, and find the key of their conversation.

    The conversation becomes the last message of its assistant. Ratings and comments in the last
    message, or in nested objects, get dotted names.

    Returns:
        The flat rows, and the key of the conversation ("" without one).
    """
    conversation = next((key for row in rows for key in CONVERSATION_KEYS if is_conversation(row.get(key))), "")
    return [dict(_flat_items(row, conversation)) for row in rows], conversation


def has_separate_answers(rows: Sequence[Row], conversation: str) -> bool:
    """True if answers have another key than the `conversation`."""
    return any(isinstance(row.get(key), str) for row in rows for key in ANSWER_KEYS if key != conversation)


def _flat_items(row: Row, conversation: str) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if key == conversation and is_conversation(value):
            answers = [message.get("content") for message in value if message.get("role") == "assistant"]
            yield key, next((text for text in reversed(answers) if isinstance(text, str)), "")
            last = {name: item for name, item in value[-1].items() if name not in ("role", "content", "type", "id")}
            yield from _scalars(last, f"{key}.-1", MAX_DEPTH)
        elif is_conversation(value):
            yield key, "\n".join(str(message.get("content", "")) for message in value)
        else:
            yield from _scalars(value, str(key), MAX_DEPTH)


def _scalars(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the texts and numbers in a value by their paths, `depth` levels down."""
    if isinstance(value, dict):
        for key, item in value.items() if depth else ():
            yield from _scalars(item, f"{path}.{key}", depth - 1)
    elif isinstance(value, list):
        if len(value) == 1 and depth:
            yield from _scalars(value[0], f"{path}.0", depth - 1)
    elif value is not None:
        yield path, value
