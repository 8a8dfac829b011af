"""Find and read the one JSON object of an answer. Strict where leniency would be a guess.

Read as meant: prose or a code fence around the object, raw newlines in strings, trailing commas,
and a Python dictionary with single quotes. Everything else that is not JSON is refused with a
reason.
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
# Escapes that mean the same to JSON and to Python, and those only Python's repr writes.
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
"""Reasoning before an answer: its first words, and a pattern that ends where the answer begins.

The words between channel and message are few: without a bound the search is quadratic."""
_DEEPEST = 8


class UnreadableError(Exception):
    """Why an answer is not one object: the kind and message of the `Failure` it becomes."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message


def invalid(message: str) -> NoReturn:
    """The answer is complete, but it is not what was asked for."""
    raise UnreadableError("invalid", message)


class Token(NamedTuple):
    """A piece of the object as written, where it is, and how many brackets are open around it."""

    kind: str
    text: str
    start: int
    end: int
    depth: int


def read_object(answer: str, response: str) -> dict[str, Any]:
    """Return the one object in `answer`, which judges `response`.

    Raises:
        UnreadableError: there is none, it is cut, there are several, or it has more than one
            reading.
    """
    answer = _without_thought(answer)
    first = answer.find("{")
    if first < 0 and _REFUSAL.search(answer):
        raise UnreadableError("refused", "the model declined to answer")
    if first < 0:
        invalid("the answer holds no JSON object" if answer.strip() else "the answer is empty")
    if (plain := _strict_object(answer, first, response)) is not None:
        value, end = plain
        _refuse_neighbours(answer[:first], answer[end:])
        return value
    return _read_closely(answer, first, response)


def _strict_object(answer: str, first: int, response: str) -> tuple[dict[str, Any], int] | None:
    """The object at `first` and its end, where it is JSON to the letter with one reading: the usual
    answer, at a third of the price. None: a closer look must say what it is.
    """
    if _TWO_STRINGS.search(response):
        return None
    try:
        value, end = _JSON.raw_decode(answer, first)
        if not answer.isascii() or "\\u" in answer:
            json.dumps(value, ensure_ascii=False).encode()
        return (value, end) if _depth(value) <= _DEEPEST else None
    except (ValueError, RecursionError, UnreadableError):
        return None


def _read_closely(answer: str, first: int, response: str) -> dict[str, Any]:
    tokens = list(_tokens(answer, first))
    before, after = answer[:first], answer[tokens[-1].end :]
    _refuse_neighbours(before, after)
    python = tokens[1].kind == "single"
    _refuse_split_quotes(tokens, python, answer, response)
    return _load(tokens, python)


def _without_thought(answer: str) -> str:
    """Drop the reasoning that some models print before their answer."""
    start = next((start for start in _REASONING if answer.lstrip().startswith(start)), None)
    if start is None:
        return answer
    reasoning = _REASONING[start].match(answer)
    if reasoning is None:
        raise UnreadableError("truncated", f"the answer ends inside {start}")
    return answer[reasoning.end() :]


def _tokens(answer: str, position: int) -> Iterator[Token]:
    """The tokens from the opening brace at `position` to the brace that closes it."""
    depth = 0
    while match := _TOKEN.match(answer, position):
        kind, text = str(match.lastgroup), match[str(match.lastgroup)]
        position = match.end()
        if kind == "bare" and text not in _PYTHON_BARE and not _BARE.fullmatch(text):
            if position == len(answer):
                break
            invalid(f"{text[:30]!r} stands outside a string: an unescaped quote?")
        depth += (text in "{[") - (text in "}]") if kind == "mark" else 0
        if depth > _DEEPEST:
            invalid("nested too deeply")
        yield Token(kind, text, position - len(text), position, depth)
        if depth == 0:
            return
    raise UnreadableError("truncated", "the answer ends before its object does")


def _refuse_neighbours(before: str, after: str) -> None:
    """Only prose may surround the object: no second object, and no list or string that contains
    it."""
    if set("{}") & set(before + after):
        invalid("braces beside the object: more than one object?")
    if before.rstrip().endswith(("[", ",")) or after.lstrip().startswith(("]", ",")):
        invalid("the object is inside a list")


def _refuse_split_quotes(tokens: Sequence[Token], python: bool, answer: str, response: str) -> None:
    """Two strings that, with all between them, stand in the response may be one with its quotes
    unescaped."""
    for left, comma, right in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if comma.text != "," or left.depth < 2 or not {left.kind, right.kind} <= {"single", "double"}:
            continue
        first, second = _decode(_as_json(left, python)), _decode(_as_json(right, python))
        whole = f"{first}{answer[left.end - 1 : right.start + 1]}{second}"
        if whole in response:
            invalid(f"{whole[:60]!r} is one phrase of the response: an unescaped quote?")


def _load(tokens: Sequence[Token], python: bool) -> dict[str, Any]:
    """The value of an object's tokens; commas before a closing bracket are left out."""
    closing = [*(token.text for token in tokens[1:]), ""]
    opening = ["", *(token.text for token in tokens[:-1])]
    kept = [
        _as_json(token, python)
        for token, last, following in zip(tokens, opening, closing, strict=True)
        if not (token.text == "," and following in ("}", "]") and last not in ("{", "[", ","))
    ]
    value = _decode(" ".join(kept))
    assert isinstance(value, dict)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        invalid("half of a surrogate pair, which is not a character")
    return value


def _decode(text: str) -> object:
    try:
        return json.loads(text, strict=False, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        invalid(f"not JSON: {error.msg}")
    except ValueError as error:  # an integer of thousands of digits
        invalid(f"not JSON: {error}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        invalid("a key stands twice in one object")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(strict=False, object_pairs_hook=_once, parse_constant=_no_number)


def _depth(value: Any) -> int:
    """How many brackets are open around the innermost value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _as_json(token: Token, python: bool) -> str:
    """The token as JSON writes it. Single quotes and True are read only in a Python dictionary."""
    if not python:
        if token.kind == "single":
            invalid("single and double quotes are mixed")
        return token.text
    if token.kind in ("single", "double"):
        return json.dumps(_python_string(token.text))
    return _PYTHON_BARE.get(token.text, token.text)


def _python_string(literal: str) -> str:
    """The value of a Python string literal that has only one reading.

    Python writes an escaped single quote only beside a double one. Alone, it may have been a double
    quote of a JSON text whose quotes were all replaced.
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
