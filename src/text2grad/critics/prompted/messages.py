"""What a prompted critic is shown: a prompt file, filled with one example and one response."""

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
_ROUNDS = 24
_TAG = re.compile(r"</([\w-]+)>")
_SAYS_HOW = '"critique"'
"""In every prompt that says how to answer in the format z."""


@dataclass(frozen=True)
class AnswerFormat:
    """The form in which a critic answers.

    `schema(prompt, turns)` returns the JSON schema that a server is given with the text of a
    prompt; with `turns` the response is a `Transcript`. `parse(answer, response, tolerance)` reads
    an answer as `wire.parse` does.
    """

    schema: Callable[[str, bool], dict[str, Any]]
    parse: Parse


def _schema_of_z(prompt: str, turns: bool) -> dict[str, Any]:
    """Return the JSON schema of z with the optional keys that a prompt asks for."""
    return wire.json_schema('"reasoning"' in prompt, '"improvable_spans"' in prompt, turns)


SPAN_MAP = AnswerFormat(_schema_of_z, wire.parse)
"""The format z, which the package's own prompts ask for."""


def _schema_of_places(prompt: str, turns: bool) -> dict[str, Any]:
    """Return the JSON schema of z without the verdicts."""
    schema = _schema_of_z(prompt, turns)
    for name in ("score", "turn_scores"):
        schema["properties"].pop(name, None)
    return {**schema, "required": list(schema["properties"])}


PLACES = AnswerFormat(_schema_of_places, wire.parse)
"""The format z of a model that places a person's words, and has no verdict of its own."""


@dataclass(frozen=True)
class Prompt:
    """What a critic is asked: the text of a prompt file, and the format of the answer.

    Records and question ids name `version`; one that is loaded by name without a version gets
    `name@hash`.

    Raises:
        UserError: the text has an unknown placeholder, or no place for the response.
    """

    text: str
    version: str = ""
    format: AnswerFormat = SPAN_MAP

    def __post_init__(self) -> None:
        names = set(_PLACEHOLDER.findall(self.text))
        unknown = sorted(n for n in names - {"prompt", "response", "reference"} if not n.startswith("meta."))
        if unknown:
            cure = "known: prompt, response, reference, meta.<key>"
            raise UserError(f"the prompt asks for {{{{{unknown[0]}}}}}", cure)
        if "response" not in names:
            raise UserError("the prompt has no {{response}}", "say where the response goes")

    def schema(self, turns: bool = False) -> str:
        """The JSON schema of the answer it asks for, as JSON; with `turns`, about a
        `Transcript`."""
        return _schema(self.format, self.text, turns)


@lru_cache(maxsize=16)
def _schema(format: AnswerFormat, prompt: str, turns: bool) -> str:
    return json.dumps(format.schema(prompt, turns))


def judge_messages(prompt: str, example: Example, response: str) -> list[Message]:
    """The conversation that asks for a critique of `response`.

    `prompt` is the text of a prompt file: parts under `=== system ===` and `=== user ===` headings
    (without headings: one user turn; a note before the first heading is not sent), with {{prompt}},
    {{response}}, {{reference}} and {{meta.key}} filled in one pass. What is filled in is data
    (`feedback.escaping`): it cannot close the tags it stands between, holds no control token of a
    chat model, and a placeholder in it stays as it is.

    A `Transcript` is shown as a conversation: the policy's turns with their numbers, and what
    others said between them. A prompt that asks for z is followed by what to know of that
    (turns.txt).
    """
    fill = _filler(example, response, reserved_tags(response, _tags(prompt)))
    messages = [
        Message.model_validate({"role": role, "content": "".join([fixed + fill(name) for fixed, name in parts])})
        for role, parts in _turns(prompt)
    ]
    if isinstance(response, Transcript) and _SAYS_HOW in prompt:
        place = next((place for place, message in enumerate(messages) if message.role == "system"), -1)
        content = f"{messages[place].content}\n\n{_about_turns()}"
        messages[place] = Message(role=messages[place].role, content=content)
    return messages


@cache
def _about_turns() -> str:
    """Return what a critic is told of a conversation."""
    return files(__package__).joinpath("turns.txt").read_text(encoding="utf-8").strip()


def _shown_turns(response: str, tags: frozenset[str]) -> str:
    """A response as it is shown: plain text, or a conversation whose turns are numbered from 1."""
    if not isinstance(response, Transcript):
        return escape_text(response, tags)
    numbers = count(1)
    shown = []
    for message in conversation_of(response):
        own = message.role == "assistant"
        opening = f'turn number="{next(numbers)}"' if own else f'message from="{message.role}"'
        shown.append(f"<{opening}>\n{escape_text(message.content, tags)}\n</{opening.split()[0]}>")
    return "\n".join(shown)


@lru_cache(maxsize=16)
def _turns(prompt: str) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The turns of a prompt's text: role, and pairs of fixed text and the placeholder after it ("":
    none)."""
    parts = _HEADING.split(prompt)
    turns = [("user", parts[0])] if len(parts) == 1 else list(zip(parts[1::2], parts[2::2], strict=True))
    split = [(role, [*_PLACEHOLDER.split(text.strip("\n")), ""]) for role, text in turns]
    return tuple((role, tuple(zip(pieces[::2], pieces[1::2], strict=True))) for role, pieces in split)


@lru_cache(maxsize=16)
def _tags(prompt: str) -> frozenset[str]:
    """The tags that what is filled in must not close."""
    return TAGS | {name.lower() for name in _TAG.findall(prompt)}


def fitted_messages(
    prompt: str, example: Example, response: str, excess: Callable[[Sequence[Message]], int]
) -> list[Message]:
    """`judge_messages` of an example whose longest message loses its middle until `excess` (in
    tokens) is gone.

    That may be one of what others said in a `Transcript`. The policy's own words are never cut.
    What still does not fit stays too long, and the caller refuses it.
    """
    messages = judge_messages(prompt, example, response)
    for _ in range(_ROUNDS):
        over = excess(messages)
        shorter = without_middle(example, response, over) if over > 0 else None
        if shorter is None:
            break
        example, response = shorter
        messages = judge_messages(prompt, example, response)
    return messages


def without_middle(example: Example, response: str, tokens: int) -> tuple[Example, str] | None:
    """Both with about `tokens` tokens less in the middle of the longest message that is not the
    policy's own; None if there is no more.

    Assumes two characters per token: several short cuts are better than one that removes too much.
    """
    asked = len(example.prompt)
    turns = [*example.prompt, *(conversation_of(response) if isinstance(response, Transcript) else ())]
    able = [place for place, turn in enumerate(turns) if place < asked or turn.role != "assistant"]
    place = max(able, key=lambda place: len(turns[place].content))
    turn = turns[place]
    half = len(turn.content) // 2
    before, mark, after = turn.content.partition(CUT)
    if not mark:
        before, after = turn.content[:half], turn.content[half:]
    less = max(tokens, len(CUT))
    kept = f"{before[: max(0, len(before) - less)]}{CUT}{after[less:]}"
    if len(kept) >= len(turn.content):
        return None
    turns[place] = turn.model_copy(update={"content": kept})
    if place >= asked:
        return example, Transcript.of_messages(turns[asked:])
    return example.model_copy(update={"prompt": tuple(turns[:asked])}), response


def _filler(example: Example, response: str, tags: frozenset[str]) -> Callable[[str], str]:
    values = {
        "": "",
        "prompt": conversation_text(example.prompt),
        "reference": example.reference or "(none)",
        f"meta.{HUMAN_FEEDBACK}": human_feedback_on(example, response) or "(none)",
    }

    def fill(name: str) -> str:
        if name == "response":
            return _shown_turns(response, tags)
        value = values[name] if name in values else str(example.meta.get(name.removeprefix("meta."), "(none)"))
        return escape_text(value, tags)

    return fill
