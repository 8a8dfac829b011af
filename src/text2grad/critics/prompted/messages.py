"""Build the conversation of a prompted critic from a prompt file, an example and a response."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from itertools import count
from typing import Any

from text2grad import wire
from text2grad.critics.prompted.reading import Parse
from text2grad.errors import UserError
from text2grad.feedback import (
    HUMAN_FEEDBACK,
    Example,
    Message,
    Transcript,
    conversation_of,
    conversation_text,
    human_feedback_on,
)
from text2grad.feedback.escaping import TAGS, escape_text, reserved_tags

_HEADING = re.compile(r"^=== (system|user) ===\n", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{\{([\w.]+)\}\}")
CUT = " [...] "
_MAX_CUTS = 24
_TAG = re.compile(r"</([\w-]+)>")
_FORMAT_Z_MARKER = '"critique"'
"""Occurs in every prompt that asks for the format z."""


@dataclass(frozen=True)
class AnswerFormat:
    """The format of a critic's answers.

    `schema(prompt, turns)` returns the JSON schema to send with the text of a prompt; with `turns`
    the response is a `Transcript`. `parse(answer, response, tolerance)` parses an answer like
    `wire.parse`.
    """

    schema: Callable[[str, bool], dict[str, Any]]
    parse: Parse


def _schema_of_z(prompt: str, turns: bool) -> dict[str, Any]:
    """Return the JSON schema of z with the optional keys that a prompt asks for."""
    return wire.json_schema('"reasoning"' in prompt, '"improvable_spans"' in prompt, turns)


SPAN_MAP = AnswerFormat(_schema_of_z, wire.parse)
"""The format z of the bundled prompts."""


def _schema_without_verdicts(prompt: str, turns: bool) -> dict[str, Any]:
    schema = _schema_of_z(prompt, turns)
    for name in ("score", "turn_scores"):
        schema["properties"].pop(name, None)
    return {**schema, "required": list(schema["properties"])}


PLACES = AnswerFormat(_schema_without_verdicts, wire.parse)
"""The format z without verdicts, for a model that places human feedback."""


@dataclass(frozen=True)
class Prompt:
    """The text of a prompt file, and the format of the answer.

    Records and question ids contain `version`; a prompt that is loaded by name without a version
    gets `name@hash`.

    Raises:
        UserError: the text has an unknown placeholder, or none for the response.
    """

    text: str
    version: str = ""
    format: AnswerFormat = SPAN_MAP

    def __post_init__(self) -> None:
        names = set(_PLACEHOLDER.findall(self.text))
        unknown = sorted(n for n in names - {"prompt", "response", "reference"} if not n.startswith("meta."))
        if unknown:
            cure = "known: prompt, response, reference, meta.<key>"
            raise UserError(f"the prompt has an unknown placeholder {{{{{unknown[0]}}}}}", cure)
        if "response" not in names:
            raise UserError("the prompt has no {{response}}", "add {{response}} where the response goes")

    def schema(self, turns: bool = False) -> str:
        """Return the JSON schema of the answer as a string; with `turns`, about a `Transcript`."""
        return _schema(self.format, self.text, turns)


@lru_cache(maxsize=16)
def _schema(format: AnswerFormat, prompt: str, turns: bool) -> str:
    return json.dumps(format.schema(prompt, turns))


def judge_messages(prompt: str, example: Example, response: str) -> list[Message]:
    """Return the conversation that asks for a critique of `response`.

    `prompt` is the text of a prompt file, with parts under `=== system ===` and `=== user ===`
    headings. Without headings it is one user turn; a note before the first heading is not sent.
    {{prompt}}, {{response}}, {{reference}} and {{meta.key}} are filled in one pass. The values are
    escaped (`feedback.escaping`): they cannot close the tags around them, contain no control token
    of a chat model, and their placeholders are not filled.

    A `Transcript` is rendered as a conversation with numbered turns of the policy; a prompt that
    asks for z then gets an explanation (turns.txt).
    """
    fill = _filler(example, response, reserved_tags(response, _tags(prompt)))
    messages = [
        Message.model_validate({"role": role, "content": "".join([fixed + fill(name) for fixed, name in parts])})
        for role, parts in _turns(prompt)
    ]
    if isinstance(response, Transcript) and _FORMAT_Z_MARKER in prompt:
        index = next((index for index, message in enumerate(messages) if message.role == "system"), -1)
        content = f"{messages[index].content}\n\n{_turns_explanation()}"
        messages[index] = Message(role=messages[index].role, content=content)
    return messages


@cache
def _turns_explanation() -> str:
    return files(__package__).joinpath("turns.txt").read_text(encoding="utf-8").strip()


def _render_response(response: str, tags: frozenset[str]) -> str:
    """Escape a response; render a transcript as a conversation with turns numbered from 1."""
    if not isinstance(response, Transcript):
        return escape_text(response, tags)
    numbers = count(1)
    blocks = []
    for message in conversation_of(response):
        is_policy = message.role == "assistant"
        opening = f'turn number="{next(numbers)}"' if is_policy else f'message from="{message.role}"'
        blocks.append(f"<{opening}>\n{escape_text(message.content, tags)}\n</{opening.split()[0]}>")
    return "\n".join(blocks)


@lru_cache(maxsize=16)
def _turns(prompt: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Split a prompt into turns: the role, and pairs of fixed text and the next placeholder.

    The last placeholder of a turn is empty.
    """
    parts = _HEADING.split(prompt)
    turns = [("user", parts[0])] if len(parts) == 1 else list(zip(parts[1::2], parts[2::2], strict=True))
    split = [(role, [*_PLACEHOLDER.split(text.strip("\n")), ""]) for role, text in turns]
    return tuple((role, tuple(zip(pieces[::2], pieces[1::2], strict=True))) for role, pieces in split)


@lru_cache(maxsize=16)
def _tags(prompt: str) -> frozenset[str]:
    """Return the tags that values must not close."""
    return TAGS | {name.lower() for name in _TAG.findall(prompt)}


def fitted_messages(
    prompt: str, example: Example, response: str, excess: Callable[[Sequence[Message]], int]
) -> list[Message]:
    """Return `judge_messages`, shortened until `excess(messages)` (in tokens) is at most 0.

    The middle of the longest message is cut out, which may be a message of others in a
    `Transcript`. The policy's own text is never cut, so the result may still be too long.
    """
    messages = judge_messages(prompt, example, response)
    for _ in range(_MAX_CUTS):
        tokens = excess(messages)
        shorter = cut_middle(example, response, tokens) if tokens > 0 else None
        if shorter is None:
            break
        example, response = shorter
        messages = judge_messages(prompt, example, response)
    return messages


def cut_middle(example: Example, response: str, tokens: int) -> tuple[Example, str] | None:
    """Cut about `tokens` tokens from the middle of the longest message that is not the policy's.

    Assumes two characters per token: several short cuts are better than one that removes too much.

    None if nothing is left to cut.
    """
    prompt_length = len(example.prompt)
    messages = [*example.prompt, *(conversation_of(response) if isinstance(response, Transcript) else ())]
    candidates = [
        index for index, message in enumerate(messages) if index < prompt_length or message.role != "assistant"
    ]
    index = max(candidates, key=lambda index: len(messages[index].content))
    content = messages[index].content
    before, mark, after = content.partition(CUT)
    if not mark:
        half = len(content) // 2
        before, after = content[:half], content[half:]
    count = max(tokens, len(CUT))
    shortened = f"{before[: max(0, len(before) - count)]}{CUT}{after[count:]}"
    if len(shortened) >= len(content):
        return None
    messages[index] = messages[index].model_copy(update={"content": shortened})
    if index >= prompt_length:
        return example, Transcript.of_messages(messages[prompt_length:])
    return example.model_copy(update={"prompt": tuple(messages[:prompt_length])}), response


def _filler(example: Example, response: str, tags: frozenset[str]) -> Callable[[str], str]:
    values = {
        "": "",
        "prompt": conversation_text(example.prompt),
        "reference": example.reference or "(none)",
        f"meta.{HUMAN_FEEDBACK}": human_feedback_on(example, response) or "(none)",
    }

    def fill(name: str) -> str:
        if name == "response":
            return _render_response(response, tags)
        value = values[name] if name in values else str(example.meta.get(name.removeprefix("meta."), "(none)"))
        return escape_text(value, tags)

    return fill
