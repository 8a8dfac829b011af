"""Reach values inside values by names with dots (`outputs.answer`, `feedback.0.comment`,
`messages.-1.rating`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from text2grad.data.conversations import ANSWERS, TALKS, is_conversation
from text2grad.data.files import Row
from text2grad.data.spreadsheets.tables import is_filled

DEEPEST = 4
"""Objects inside objects in which a comment or a rating is looked for."""


def expand_paths(row: Row, names: Mapping[str, Sequence[str]]) -> Row:
    """Return a row with the values that `names` reach by dots as keys; -1 is the last of a list.

    Of several prompts, the last key holds all. A conversation whose texts are named is not read as
    one; in others, messages lose the values that `names` reach, so that nothing is read twice.
    """
    paths = [name for theirs in names.values() for name in theirs if name not in row and "." in name]
    values = {name: value for name in paths if (value := value_at(row, name)) is not None}
    named_talks = {name.partition(".")[0] for ours in ("prompt", "response") for name in names.get(ours, ())}
    row = {name: value for name, value in row.items() if name not in named_talks & {*TALKS}}
    for name in values:
        talk, _, inner = name.partition(".")
        if is_conversation(row.get(talk)) and inner.split(".")[1:] != ["content"]:
            row[talk] = _without(row[talk], inner)
    row |= values
    asked = [str(row[name]) for name in names.get("prompt", ()) if is_filled(row.get(name))]
    others = {name: value for name, value in row.items() if name not in names.get("prompt", ())[:-1]}
    return others | ({names["prompt"][-1]: "\n\n".join(asked)} if len(asked) > 1 else {})


def value_at(value: Any, name: str) -> Any:
    """The value that a name with dots reaches; None if there is none."""
    for part in name.split("."):
        if isinstance(value, list) and re.fullmatch(r"-1|\d+", part) and -1 <= int(part) < len(value) and value:
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return None
    return value


def _without(value: Any, name: str) -> Any:
    """Return a copy of a value with None where a name with dots reaches."""
    first, _, inner = name.partition(".")
    copy: Any = [*value] if isinstance(value, list) else {**value}
    key: Any = int(first) if isinstance(value, list) else first
    copy[key] = _without(copy[key], inner) if inner else None
    return copy


def list_paths(value: Any, name: str = "") -> Iterator[str]:
    """The names of all texts and numbers in a value, by dots; of a list, those of its first
    item."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in inner:
        yield from list_paths(item, f"{name}.{key}" if name else str(key))
    if not isinstance(value, dict | list) and value is not None:
        yield name


def flatten_rows(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Rows whose values are texts and numbers, by names with dots, and the key of their
    conversation ("": none).

    Under that key is the last message of the assistant. Ratings and comments that stand in the last
    message, or in objects beside it, have names of their own.
    """
    talk = next((name for row in rows for name in TALKS if is_conversation(row.get(name))), "")
    return [dict(_flat(row, talk)) for row in rows], talk


def has_separate_answers(rows: Sequence[Row], talk: str) -> bool:
    """True if answers have a key of their own beside the conversation before them."""
    return any(isinstance(row.get(name), str) for row in rows for name in ANSWERS if name != talk)


def _flat(row: Row, talk: str) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if name == talk and is_conversation(value):
            answers = [message.get("content") for message in value if message.get("role") == "assistant"]
            yield name, next((text for text in reversed(answers) if isinstance(text, str)), "")
            last = {key: item for key, item in value[-1].items() if key not in ("role", "content", "type", "id")}
            yield from _scalars(last, f"{name}.-1", DEEPEST)
        elif is_conversation(value):
            yield name, "\n".join(str(message.get("content", "")) for message in value)
        else:
            yield from _scalars(value, str(name), DEEPEST)


def _scalars(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items() if depth else ():
            yield from _scalars(item, f"{name}.{key}", depth - 1)
    elif isinstance(value, list):
        if len(value) == 1 and depth:
            yield from _scalars(value[0], f"{name}.0", depth - 1)
    elif value is not None:
        yield name, value
