"""Errors of API servers: `api_errors.jsonl` has bodies in the shapes of their providers, and what
they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.chat.api_errors import error_in, read_error

ROWS = Path(__file__).with_name("api_errors.jsonl").read_text(encoding="utf-8").splitlines()
ALONE = {"temperature", "json_schema"}
"""Capabilities that an error about another one does not name."""


def test_refused_capabilities_and_other_causes_are_recognised() -> None:
    """Of the capabilities that a request uses: an error may name the alternative of a token limit,
    too.

    An error about a value, about something else, or that repeats the request refuses no capability.
    """
    wrong = {}
    for row in map(json.loads, ROWS):
        error = read_error(row["body"] if isinstance(row["body"], str) else json.dumps(row["body"]))
        if "reason" in row:
            right = error.reason == row["reason"]
        elif refused := set(row["refused"]):
            right = refused <= error.refused and not error.reason and not (error.refused - refused) & ALONE
        else:
            right = not error.refused
        if not right:
            wrong[row["name"]] = error
    assert len(ROWS) > 50 and not wrong


def test_the_message_of_the_provider_follows_that_of_the_proxy() -> None:
    inner = json.dumps({"error": {"message": "Model supports at most 1 image", "code": "bad"}})
    body = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": inner}}}
    error = read_error(json.dumps(body))
    assert (error.message, error.status) == ("Provider returned error: Model supports at most 1 image", 400)
    assert read_error("<html>\n busy</html>").message == "<html> busy</html>"
    assert read_error('{"odd": 1}').message == '{"odd": 1}' and read_error("").message == ""


def test_a_message_has_no_control_or_invisible_characters() -> None:
    error = read_error(
        json.dumps({"error": {"message": "\x1b[31mred\x1b[0m\u202e\u2028two\r\nlines sk-\u200bplanted"}})
    )
    assert error.message == "[31mred[0m two lines sk-planted", "so that the key is redacted after this"


CHOICE = {"finish_reason": "stop", "message": {"content": "Fine."}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "no provider", "code": 502}}, "no provider"),
        ({"error": "model is loading"}, "model is loading"),
        ({"object": "error", "message": "out of memory"}, "out of memory"),
        ([{"error": {"message": "quota", "code": 429}}], "quota"),
        ({"error": {"message": "x"}, "choices": []}, "x"),
        ({"choices": [{"error": {"message": "cut off", "code": 502}, "message": {"content": "Fi"}}]}, "cut off"),
        ({"choices": [{**CHOICE, "finish_reason": "error"}]}, "the answer ended in an error"),
        ({"error": {"message": "x"}, "choices": [{"message": {"content": None}}]}, "x"),
        ({"error": None, "choices": [CHOICE]}, None),
        ({"error": {}, "choices": [CHOICE]}, None),
        ({"error": {"message": "a warning"}, "choices": [CHOICE]}, None),
        ({"choices": []}, None),
        ([], None),
        ("text", None),
        ({"choices": ["text"]}, None),
    ],
)
def test_an_error_that_came_as_an_answer(body: Any, words: str | None) -> None:
    error = error_in(body)
    assert (error.message if error else None) == words
