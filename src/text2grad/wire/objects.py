"""Find and read the one JSON object of an answer.

Accepted are prose or a code fence around the object, raw newlines in strings, trailing commas, and
a Python dictionary with single quotes. Everything else that is not JSON is refused with a reason,
because repairing it would be a guess.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from text2grad.feedback import FailureKind

_TOKEN = re.compile(
    r"""\s*(?: (?P<double>"(?:[^"\\]|\\.)*") | (?P<single>'(?:[^'\\]|\\.)*')
             | (?P<mark>[{}\[\],:])          | (?P<bare>[^\s{}\[\],:"']+) )""",
    re.VERBOSE | re.DOTALL,
)
_BARE = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_PYTHON_BARE = {"True": "true", "False": "false", "None": "null"}
# Escapes with one meaning in JSON and Python, and escapes that only Python's repr writes.
_PYTHON_STRING = re.compile(
    r"""(?:[^\\] | \\(?: [\\'"nrtbf] | u[0-9a-fA-F]{4} | U[0-9a-fA-F]{8} | x[0-9a-fA-F]{2} ))*""",
    re.VERBOSE | re.DOTALL,
)
_REFUSAL = re.compile(
    r"\b(?:sorry|apologi[sz]e|as an ai|unable to|not able to|not comfortable|refuse|decline"
    r"|can(?: ?not|[’']t)|will not|won[’']t)\b",
    re.IGNORECASE,
)
_TWO_STRINGS = re.compile(r'"\s*,\s*"')
_FINAL_CHANNEL = re.compile(r".*<\|channel\|>final[^{}]{0,80}?<\|message\|>", re.DOTALL)
_REASONING = {
    "<think>": re.compile(r"\s*<think>.*?</think>", re.DOTALL),
    "<|channel|>": _FINAL_CHANNEL,  # gpt-oss, from a server that does not read its channels
    "<|start|>": _FINAL_CHANNEL,
}
"""Reasoning before an answer: how it starts, and a pattern that ends where the answer begins.

The bound on the text between channel and message keeps the search from being quadratic.
"""
_MAX_DEPTH = 8


class UnreadableError(Exception):
    """An answer that is not one object, with kind and message of the resulting `Failure`."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message


def invalid(message: str) -> NoReturn:
    """Raise `UnreadableError` of kind "invalid": the answer is complete but not in the format."""
    raise UnreadableError("invalid", message)


class Token(NamedTuple):
    """A token of the object, its place in the answer, and the number of open brackets."""

    kind: str
    text: str
    start: int
    end: int
    depth: int


def read_object(answer: str, response: str) -> dict[str, Any]:
    """Return the one object in `answer`, which judges `response`.

    Raises:
        UnreadableError: there is no object, it is truncated, there are several, or it has more
            than one reading.
    """
    answer = _drop_reasoning(answer)
    first = answer.find("{")
    if first < 0 and _REFUSAL.search(answer):
        raise UnreadableError("refused", "the model declined to answer")
    if first < 0:
        invalid("the answer holds no JSON object" if answer.strip() else "the answer is empty")
    if (plain := _read_strictly(answer, first, response)) is not None:
        value, end = plain
        _refuse_neighbours(answer[:first], answer[end:])
        return value
    return _read_leniently(answer, first, response)


def _read_strictly(answer: str, first: int, response: str) -> tuple[dict[str, Any], int] | None:
    """Return the object at `first` and its end if it is valid JSON with one reading, else None.

    This is the usual case, at a third of the cost of `_read_leniently`.
    """
    if _TWO_STRINGS.search(response):
        return None
    try:
        value, end = _JSON.raw_decode(answer, first)
        if not answer.isascii() or "\\u" in answer:
            json.dumps(value, ensure_ascii=False).encode()
        return (value, end) if _depth(value) <= _MAX_DEPTH else None
    except (ValueError, RecursionError, UnreadableError):
        return None


def _read_leniently(answer: str, first: int, response: str) -> dict[str, Any]:
    tokens = list(_tokenise(answer, first))
    before, after = answer[:first], answer[tokens[-1].end :]
    _refuse_neighbours(before, after)
    python = tokens[1].kind == "single"
    _refuse_split_quotes(tokens, python, answer, response)
    return _load(tokens, python)


def _drop_reasoning(answer: str) -> str:
    """Drop the reasoning that some models print before their answer."""
    start = next((start for start in _REASONING if answer.lstrip().startswith(start)), None)
    if start is None:
        return answer
    reasoning = _REASONING[start].match(answer)
    if reasoning is None:
        raise UnreadableError("truncated", f"the answer ends inside {start}")
    return answer[reasoning.end() :]


def _tokenise(answer: str, position: int) -> Iterator[Token]:
    """Yield the tokens from the opening brace at `position` to the closing brace."""
    depth = 0
    while match := _TOKEN.match(answer, position):
        kind, text = str(match.lastgroup), match[str(match.lastgroup)]
        position = match.end()
        if kind == "bare" and text not in _PYTHON_BARE and not _BARE.fullmatch(text):
            if position == len(answer):
                break
            invalid(f"{text[:30]!r} is outside a string: an unescaped quote?")
        depth += (text in "{[") - (text in "}]") if kind == "mark" else 0
        if depth > _MAX_DEPTH:
            invalid("nested too deeply")
        yield Token(kind, text, position - len(text), position, depth)
        if depth == 0:
            return
    raise UnreadableError("truncated", "the answer ends before its object does")


def _refuse_neighbours(before: str, after: str) -> None:
    """Refuse a second object, and a list that contains the object; prose may surround it."""
    if set("{}") & set(before + after):
        invalid("braces outside the object: more than one object?")
    if before.rstrip().endswith(("[", ",")) or after.lstrip().startswith(("]", ",")):
        invalid("the object is inside a list")


def _refuse_split_quotes(tokens: Sequence[Token], python: bool, answer: str, response: str) -> None:
    """Refuse two strings that may be one phrase of the response with unescaped quotes."""
    for before, comma, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if comma.text != "," or before.depth < 2 or not {before.kind, after.kind} <= {"single", "double"}:
            continue
        first, second = _decode(_to_json(before, python)), _decode(_to_json(after, python))
        joined = f"{first}{answer[before.end - 1 : after.start + 1]}{second}"
        if joined in response:
            invalid(f"{joined[:60]!r} is one phrase of the response: an unescaped quote?")


def _load(tokens: Sequence[Token], python: bool) -> dict[str, Any]:
    """Return the value of an object's tokens, ignoring commas before a closing bracket."""
    following = [*(token.text for token in tokens[1:]), ""]
    preceding = ["", *(token.text for token in tokens[:-1])]
    parts = [
        _to_json(token, python)
        for token, last, after in zip(tokens, preceding, following, strict=True)
        if not (token.text == "," and after in ("}", "]") and last not in ("{", "[", ","))
    ]
    value = _decode(" ".join(parts))
    assert isinstance(value, dict)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        invalid("half of a surrogate pair, which is not a character")
    return value


def _decode(text: str) -> object:
    try:
        return json.loads(text, strict=False, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        invalid(f"not JSON: {error.msg}")
    except ValueError as error:  # an integer of thousands of digits
        invalid(f"not JSON: {error}")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        invalid("a key occurs twice in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(strict=False, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)


def _depth(value: Any) -> int:
    """Return the depth of nesting."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _to_json(token: Token, python: bool) -> str:
    """Return the token as JSON; single quotes and True are allowed in a Python dictionary only."""
    if not python:
        if token.kind == "single":
            invalid("single and double quotes are mixed")
        return token.text
    if token.kind in ("single", "double"):
        return json.dumps(_parse_python_string(token.text))
    return _PYTHON_BARE.get(token.text, token.text)


def _parse_python_string(literal: str) -> str:
    """Return the value of a Python string literal, refusing one with more than one reading.

    Python's repr escapes a single quote only in strings that also contain a double quote. Without
    one, the escaped quote may come from a JSON text whose quotes were all replaced.
    """
    inside = literal[1:-1]
    if not _PYTHON_STRING.fullmatch(inside):
        invalid(f"an escape without a clear meaning in {literal[:30]}")
    if literal[0] == "'" and "\\'" in inside and '"' not in inside:
        invalid(f"an escaped quote without a clear meaning in {literal[:30]}")
    try:
        value = ast.literal_eval(literal.replace("\n", "\\n").replace("\r", "\\r"))
    except (SyntaxError, ValueError):
        invalid(f"not a string: {literal[:30]}")
    return str(value)
