"""The protocol of chat models, and a scripted fake for tests.

A model that fails on one conversation returns a `Failure` for it. Only an error that affects every
conversation (a wrong key, an unknown model, an empty account) is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from pydantic import Field

from text2grad.feedback import Failure, LabelledPlace, Message, Record

Conversation = Sequence[Message]


class Completion(Record):
    """One answer of a chat model.

    Attributes:
        truncated: the token limit was reached.
        forced: the answer is complete only because grounded decoding closed it at the token limit.
        score: the verdict of a model with a score head.
        spans: the labelled places in the judged text, from a model that tags tokens.
        usage: tokens by name.
    """

    text: str
    truncated: bool = False
    forced: bool = False
    score: float | None = None
    spans: tuple[LabelledPlace, ...] | None = None
    usage: dict[str, float] = Field(default_factory=dict)


Answer = Completion | Failure


class Chat(Protocol):
    """Anything that answers conversations: a server, a local model, a script."""

    name: str

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """Return one answer per conversation, in order. One bad conversation never raises."""
        ...


@runtime_checkable
class GroundedChat(Chat, Protocol):
    """A chat whose critique of a text can be limited to quotes from it."""

    def complete_about(self, conversations: Sequence[Conversation], texts: Sequence[str]) -> list[Answer]:
        """Return one answer per conversation; answer i is a critique of `texts[i]`."""
        ...


@runtime_checkable
class LimitedChat(Chat, Protocol):
    """A chat that knows its maximum length."""

    def excess(self, conversation: Conversation) -> int:
        """Return the excess tokens of a conversation with a full answer; <= 0 if it fits."""
        ...


class ScriptedChat:
    """A chat model for tests that replays answers and records the conversations in `asked`.

    `answers` are given in order, or by a function of the conversation; `name` is the model's name
    in records.
    """

    def __init__(
        self, answers: Sequence[str | Answer] | Callable[[Conversation], str | Answer], name: str = "scripted"
    ) -> None:
        self.name = name
        self.asked: list[list[Message]] = []
        self._answers = answers

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """Return the next answers of the script.

        Raises:
            IndexError: the script has no more answers.
        """
        answers: list[Answer] = []
        for conversation in conversations:
            script, index = self._answers, len(self.asked)
            self.asked.append(list(conversation))
            answer = script(conversation) if callable(script) else script[index]
            answers.append(Completion(text=answer) if isinstance(answer, str) else answer)
        return answers
