"""Chat messages, and responses of one or several turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, PlainSerializer, ValidationError, WrapValidator

from text2grad.errors import first_error
from text2grad.settings import Fields


class Record(Fields):
    """Base of everything written to disk: immutable, refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Message(Record):
    """One chat message: the `role` of its author and its text (`content`)."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


BETWEEN_TURNS = "\n\n"
"""Separator of the turns of a transcript; it belongs to no token."""


@dataclass(frozen=True)
class Turn:
    """One turn of the policy: characters [start, end) of the transcript, and preceding messages."""

    start: int
    end: int
    messages: tuple[Message, ...] = ()


class Transcript(str):
    """A response of several turns: the policy's turns, joined by `BETWEEN_TURNS`.

    `turns` holds the bounds of each turn and the messages of a tool or a user before it; `after`
    holds the messages after the last turn. Spans, quotes and tokens refer to the policy's text
    only, so the words of others are neither quoted nor rewarded. A plain string is a response of
    one turn (`turns_of`). In JSON a transcript is the list of its messages. Two transcripts are
    equal if all their messages are; comparison with a plain string looks at the text alone.
    """

    turns: tuple[Turn, ...] = ()
    after: tuple[Message, ...] = ()
    __hash__ = str.__hash__

    @classmethod
    def of(cls, turns: Iterable[tuple[Iterable[Message], str]], after: Iterable[Message] = ()) -> Transcript:
        """Build a transcript turn by turn.

        Args:
            turns: for each turn, the preceding messages of others and its text.
            after: the messages of others after the last turn.

        Returns:
            The policy's own words as text, which remembers the messages between them.
        """
        pairs = [(tuple(messages), text) for messages, text in turns]
        transcript = cls(BETWEEN_TURNS.join(text for _, text in pairs))
        starts = [0, *accumulate(len(text) + len(BETWEEN_TURNS) for _, text in pairs)]
        transcript.turns = tuple(
            Turn(start, start + len(text), messages) for start, (messages, text) in zip(starts, pairs, strict=False)
        )
        transcript.after = tuple(after)
        return transcript

    @classmethod
    def of_messages(cls, messages: Iterable[Message]) -> Transcript:
        """Build a transcript from the messages after a prompt; each of the assistant's is a turn.

        Args:
            messages: the conversation after the prompt.

        Returns:
            The policy's own words as text, which remembers the messages between them.

        Raises:
            ValueError: the conversation has no message of the assistant.
        """
        turns: list[tuple[list[Message], str]] = []
        others: list[Message] = []
        for message in messages:
            if message.role == "assistant":
                turns.append((others, message.content))
                others = []
            else:
                others.append(message)
        if not turns:
            raise ValueError("the conversation has no assistant message")
        return cls.of(turns, others)

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is True and isinstance(other, Transcript):
            return (self.turns, self.after) == (other.turns, other.after)
        return equal

    def __ne__(self, other: object) -> bool:
        return not self == other


def turns_of(response: str) -> tuple[Turn, ...]:
    """Return the turns of a response; a plain string is one turn."""
    return response.turns if isinstance(response, Transcript) else (Turn(0, len(response)),)


def turn_at(response: str, position: int) -> int:
    """Return the number (from 1) of the turn at a character position; 0 between turns."""
    if not isinstance(response, Transcript):
        return 1
    numbered = enumerate(response.turns, start=1)
    return next((number for number, turn in numbered if turn.start <= position < turn.end), 0)


def conversation_of(response: str) -> list[Message]:
    """Return a response as chat messages: the policy's turns and the messages between them.

    Args:
        response: a text, which is one turn of the policy, or a `Transcript`.

    Returns:
        The messages in their order.
    """
    messages: list[Message] = []
    for turn in turns_of(response):
        messages += [*turn.messages, Message(role="assistant", content=response[turn.start : turn.end])]
    return [*messages, *(response.after if isinstance(response, Transcript) else ())]


def conversation_text(prompt: Iterable[Message]) -> str:
    """Return a conversation as text, with roles unless it is a single user message."""
    messages = list(prompt)
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)


def is_foreign(quote: str, response: str) -> bool:
    """True if a quote occurs in a message of a tool or a user but not in the policy's text."""
    others = (message.content for message in conversation_of(response) if message.role != "assistant")
    return bool(quote.strip()) and quote not in response and any(quote in content for content in others)


def response_key(response: str) -> str:
    """Return a response's identity: its text, or all messages of a transcript as JSON."""
    if not isinstance(response, Transcript):
        return response
    return json.dumps([[message.role, message.content] for message in conversation_of(response)])


def _validate_response(value: Any, validate_text: Callable[[Any], str]) -> str:
    """Accept a string, a `Transcript`, or the list of a transcript's messages."""
    if isinstance(value, list | tuple):
        value = Transcript.of_messages(_parse_message(number, item) for number, item in enumerate(value, start=1))
    if isinstance(value, Transcript) and not value.turns:
        raise ValueError("a transcript without an assistant turn")
    return value if isinstance(value, Transcript) else validate_text(value)


def _parse_message(number: int, value: Any) -> Message:
    try:
        return Message.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"message {number}: {first_error(error)}") from error


def _serialize_response(response: str) -> str | list[Message]:
    return conversation_of(response) if isinstance(response, Transcript) else response


ResponseText = Annotated[
    str,
    WrapValidator(_validate_response, json_schema_input_type=str | list[Message]),
    PlainSerializer(_serialize_response, when_used="json"),
]
"""A response in a record: a string, or a `Transcript` (in JSON, the list of its messages)."""
