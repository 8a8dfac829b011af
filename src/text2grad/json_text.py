"""Write JSON that always encodes as UTF-8, parse untrusted JSON, and split text into lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

DEEPEST_JSON = 100
"""Maximum nesting of parsed JSON; pydantic cannot write deeper values."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]')
_NOT_BLANK = re.compile(r"\S")


class ExcessiveJSONError(json.JSONDecodeError):
    """JSON that is nested too deeply or has an integer of thousands of digits."""


def split_lines(text: str) -> list[str]:
    r"""Split a text at \n and \r\n only.

    `str.splitlines` also splits at U+2028, U+0085, form feeds and others, which occur inside lines.
    """
    *lines, last = re.split("\r?\n", text)
    return [*lines, last] if last else lines


def storable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def to_json(value: object, **options: Any) -> str:
    """Return JSON that always encodes as UTF-8. `options` are those of `json.dumps`."""
    return storable(json.dumps(value, ensure_ascii=False, **options))


def from_json(text: str, keys_once: bool = False) -> Any:
    """Parse JSON from an untrusted source.

    Raises:
        json.JSONDecodeError: the text is not JSON or, with `keys_once`, an object repeats a key.
        ExcessiveJSONError: the text is nested deeper than `DEEPEST_JSON`, or an integer has
            thousands of digits.
    """
    with _refuse_excess(text):
        return json.loads(text, object_pairs_hook=_unique_keys if keys_once else None)


def json_values(text: str) -> Iterator[Any]:
    """Yield the values of a text with several JSON values in a row.

    Raises:
        json.JSONDecodeError: as `from_json` with `keys_once`.
    """
    decoder, position = json.JSONDecoder(object_pairs_hook=_unique_keys), 0
    with _refuse_excess(text):
        while match := _NOT_BLANK.search(text, position):
            value, position = decoder.raw_decode(text, match.start())
            yield value


@contextmanager
def _refuse_excess(text: str) -> Iterator[None]:
    if text.count("[") + text.count("{") > DEEPEST_JSON and _depth(text) > DEEPEST_JSON:
        raise ExcessiveJSONError("nested too deeply", text, 0)
    try:
        yield
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        raise ExcessiveJSONError("an integer of thousands of digits", text, 0) from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise json.JSONDecodeError(f"the key {repeated[:40]!r} is repeated", "", 0)
    return value


def _depth(text: str) -> int:
    """Return the maximum nesting of brackets outside strings."""
    deepest = depth = 0
    for match in _BRACKETS.finditer(text):
        depth += (match[0] in "[{") - (match[0] in "]}")
        deepest = max(deepest, depth)
    return deepest


def record_json(record: BaseModel, exclude_none: bool = False) -> str:
    """Return a record as one line of JSON that always encodes as UTF-8."""
    try:
        return record.model_dump_json(exclude_none=exclude_none)
    except PydanticSerializationError:  # the record contains a lone surrogate
        return to_json(record.model_dump(mode="json", exclude_none=exclude_none))
