"""What a chat model is: one method, and what it may say about itself; a scripted fake for tests.

A model that fails on one conversation answers with a `Failure` in its place; only a mistake that
would fail every conversation (a wrong key, an unknown model, an empty account) is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from pydantic import Field

from text2grad.feedback import Failure, LabelledPlace, Message, Record

Conversation = Sequence[Message]


class Completion(Record):
    """One answer of a chat model. `truncated`: it ran into the token limit. `usage`: tokens by
    name.

    `forced`: it is whole, but only because grounded decoding closed it at the token limit. `score`:
    the verdict of a model that gives it apart from the words, by a head of its own; `spans`: the
    labelled places of the text that it is about, of a model that marks them by another.
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
        """One answer per conversation, in their order. One bad conversation never raises."""
        ...


@runtime_checkable
class GroundedChat(Chat, Protocol):
    """A chat whose critique of a text can be limited to quotes from it."""

    def complete_about(self, conversations: Sequence[Conversation], texts: Sequence[str]) -> list[Answer]:
        """As `complete`; answer i is a critique of `texts[i]`."""
        ...


@runtime_checkable
class LimitedChat(Chat, Protocol):
    """A chat that knows how long a conversation may be."""

    def excess(self, conversation: Conversation) -> int:
        """Tokens by which the conversation with a full answer is too long; 0 or less: it fits."""
        ...


class ScriptedChat:
    """A chat model for tests: plays back `answers`, or asks a function; remembers what it was
    asked.

    Args:
        answers: the answers in their order, or a function of a conversation.
        name: that of the model.
    """

    def __init__(
        self, answers: Sequence[str | Answer] | Callable[[Conversation], str | Answer], name: str = "scripted"
    ) -> None:
        self.name = name
        self.asked: list[list[Message]] = []
        self._answers = answers

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """The next answers of the script.

        Raises:
            IndexError: the script has no more answers.
        """
        return [self._next(conversation) for conversation in conversations]

    def _next(self, conversation: Conversation) -> Answer:
        self.asked.append(list(conversation))
        scripted = self._answers
        answer = scripted(conversation) if callable(scripted) else scripted[len(self.asked) - 1]
        return Completion(text=answer) if isinstance(answer, str) else answer
