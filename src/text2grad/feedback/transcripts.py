"""Messages, and responses of one or several turns."""

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
    """Base of everything written to disk: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Message(Record):
    """One chat message: the `role` of who says it, and its text (`content`)."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


BETWEEN_TURNS = "\n\n"
"""Separates the turns of a transcript; no token wrote it."""


@dataclass(frozen=True)
class Turn:
    """One turn of the policy: its characters [start, end) in the transcript, and the `messages`
    before it."""

    start: int
    end: int
    messages: tuple[Message, ...] = ()


class Transcript(str):
    """A response of several turns: the policy's own words, joined by `BETWEEN_TURNS`.

    `turns` says where each turn ends and what others said before it, `after` what they said last.
    Spans, quotes and tokens refer to this text, so words of a tool or a user are neither quoted nor
    paid. A plain string is a response of one turn (`turns_of`). In JSON a transcript is the list of
    its messages. Two transcripts are equal if all their messages are; a plain string is compared by
    its text alone.
    """

    turns: tuple[Turn, ...] = ()
    after: tuple[Message, ...] = ()
    __hash__ = str.__hash__

    @classmethod
    def of(cls, turns: Iterable[tuple[Iterable[Message], str]], after: Iterable[Message] = ()) -> Transcript:
        """Build a transcript turn by turn.

        Args:
            turns: of each turn, the messages of others before it, and its text.
            after: the messages of others after the last.

        Returns:
            The texts of the turns, joined.
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
        """Build a transcript from a conversation: each message of the assistant is a turn.

        Args:
            messages: the conversation after the prompt.

        Returns:
            The assistant's words, joined.

        Raises:
            ValueError: it has none.
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
            raise ValueError("no message of the assistant in it")
        return cls.of(turns, others)

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is True and isinstance(other, Transcript):
            return (self.turns, self.after) == (other.turns, other.after)
        return equal

    def __ne__(self, other: object) -> bool:
        return not self == other


def turns_of(response: str) -> tuple[Turn, ...]:
    """Return the turns of a response; a plain string is one."""
    return response.turns if isinstance(response, Transcript) else (Turn(0, len(response)),)


def turn_at(response: str, position: int) -> int:
    """Return the number, from 1, of the turn that holds a character; 0 between turns."""
    if not isinstance(response, Transcript):
        return 1
    numbered = enumerate(response.turns, start=1)
    return next((number for number, turn in numbered if turn.start <= position < turn.end), 0)


def conversation_of(response: str) -> list[Message]:
    """Return a response as chat messages.

    Args:
        response: plain text, which is one turn, or a `Transcript`.

    Returns:
        The policy's turns, and what others said between them.
    """
    messages: list[Message] = []
    for turn in turns_of(response):
        messages += [*turn.messages, Message(role="assistant", content=response[turn.start : turn.end])]
    return [*messages, *(response.after if isinstance(response, Transcript) else ())]


def conversation_text(prompt: Iterable[Message]) -> str:
    """Return a conversation as text: a single user message unchanged, several with their roles."""
    messages = list(prompt)
    if len(messages) == 1 and messages[0].role == "user":
        return messages[0].content
    return "\n\n".join(f"{message.role}: {message.content}" for message in messages)


def is_foreign(quote: str, response: str) -> bool:
    """True if a quote is not in the policy's words but in those of a tool or a user between
    them."""
    others = (message.content for message in conversation_of(response) if message.role != "assistant")
    return bool(quote.strip()) and quote not in response and any(quote in content for content in others)


def key_of(response: str) -> str:
    """Return what identifies a response: its text, or all messages of a transcript as JSON."""
    if not isinstance(response, Transcript):
        return response
    return json.dumps([[message.role, message.content] for message in conversation_of(response)])


def _validated_response(value: Any, text: Callable[[Any], str]) -> str:
    """Read a response: a string, a `Transcript`, or the list of its messages."""
    if isinstance(value, list | tuple):
        value = Transcript.of_messages(_message(number, item) for number, item in enumerate(value, start=1))
    if isinstance(value, Transcript) and not value.turns:
        raise ValueError("a transcript without a turn of the assistant")
    return value if isinstance(value, Transcript) else text(value)


def _message(number: int, value: Any) -> Message:
    try:
        return Message.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"message {number}: {first_error(error)}") from error


def _written_response(response: str) -> str | list[Message]:
    return conversation_of(response) if isinstance(response, Transcript) else response


ResponseText = Annotated[
    str,
    WrapValidator(_validated_response, json_schema_input_type=str | list[Message]),
    PlainSerializer(_written_response, when_used="json"),
]
"""A response in a record: a plain string, or a `Transcript`, which in JSON is the list of its
messages."""
