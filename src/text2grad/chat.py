"""Talking to a chat model: one method, one client for every OpenAI-compatible server, one scripted fake.

A model that fails on one conversation answers with a `Failure` in its place; only a mistake that would fail
every conversation (a wrong key, an unknown model, an empty account) is raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, Protocol, Self, runtime_checkable

from pydantic import Field

from text2grad.annotation.endpoint import LONGEST_WAIT, Endpoint, Problem, Reply, Trouble
from text2grad.annotation.pace import pause
from text2grad.errors import UserError
from text2grad.feedback import Failure, FailureKind, Message, Overlap, Record, storable

Conversation = Sequence[Message]


class Completion(Record):
    """One answer of a chat model. `truncated`: it ran into the token limit. `usage`: tokens by name.

    `forced`: it is whole, but only because grounded decoding closed it at the token limit.
    """

    text: str
    truncated: bool = False
    forced: bool = False
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
    """A chat whose critique of a text can be kept to quotes that stand in it."""

    def complete_about(self, conversations: Sequence[Conversation], texts: Sequence[str]) -> list[Answer]:
        """As `complete`; answer i is a critique of `texts[i]`."""
        ...


@runtime_checkable
class LimitedChat(Chat, Protocol):
    """A chat that knows how long a conversation may be."""

    def excess(self, conversation: Conversation) -> int:
        """Tokens by which the conversation with a full answer is too long; 0 or less: it fits."""
        ...


class OpenAIChat:
    """A chat model behind an OpenAI-compatible server: OpenAI, vLLM, Ollama, a LiteLLM proxy.

    At most `concurrency` requests are open at once; what fails in passing is asked again up to `retries` times,
    with jitter, after as long as Retry-After says. `timeout` is seconds without a sign of an answer; a whole
    request may take five times as long. The key is read from the environment variable `key_variable` and goes
    nowhere else: it is struck out of all that a server says (`annotation.endpoint`, where every request is made).
    `temperature` None leaves the server's own. `grounded` sends critiques their grammar (`structured_outputs` of
    vLLM, with its guidance backend), until a server refuses it.

    Raises:
        UserError: there is no key for OpenAI itself; from `complete`: 401, 403, 404, a redirection, or an account
            without quota. Requests that have not started by then are not sent.
    """

    overlap: Overlap = "helps"

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        key_variable: str = "OPENAI_API_KEY",
        max_tokens: int = 1024,
        temperature: float | None = 0.0,
        concurrency: int = 8,
        timeout: float = 120.0,
        retries: int = 5,
        json_schema: dict[str, Any] | None = None,
        grounded: bool = False,
    ) -> None:
        self.name = model
        self._grounded = grounded
        self._endpoint = Endpoint(base_url, timeout, key_variable)
        self._concurrency = concurrency
        self._retries = retries
        # Local servers only know the older name; OpenAI's reasoning models refuse it.
        limit = "max_tokens" if base_url else "max_completion_tokens"
        self._options: dict[str, Any] = {limit: max_tokens}
        if temperature is not None:
            self._options["temperature"] = temperature
        self._json_schema = json_schema

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the server."""
        self._endpoint.close()

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """Ask for all conversations at once, `concurrency` at a time."""
        return self._all(conversations, [""] * len(conversations))

    def complete_about(self, conversations: Sequence[Conversation], texts: Sequence[str]) -> list[Answer]:
        """The same; if `grounded`, answer i is a critique that can only quote `texts[i]`."""
        from text2grad.wire.quotable import Quotable

        grammars = [Quotable(text).grammar() for text in texts] if self._grounded else [""] * len(texts)
        return self._all(conversations, grammars)

    def _all(self, conversations: Sequence[Conversation], grammars: Sequence[str]) -> list[Answer]:
        pool, stopped = ThreadPoolExecutor(self._concurrency), Event()
        try:
            asked = zip(conversations, grammars, strict=True)
            pending = [pool.submit(self._one, conversation, grammar, stopped) for conversation, grammar in asked]
            done, _ = wait(pending, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in pending]
        finally:
            # After a user's mistake, or Ctrl-C, nothing more is sent (and paid).
            stopped.set()
            pool.shutdown(cancel_futures=True)
            self.close()

    def _one(self, conversation: Conversation, grammar: str, stopped: Event) -> Answer:
        messages = [{"role": turn.role, "content": storable(turn.content)} for turn in conversation]
        constraint = self._constraint(grammar)
        outcome = self._asked(messages, {**self._options, **constraint}, stopped)
        names = ("response_format", "structured_outputs")
        if constraint and _is_about(outcome, names):
            # This server cannot constrain its answers; wire.parse judges them all the same.
            self._json_schema, self._grounded = None, False
            outcome = self._asked(messages, self._options, stopped)
        return self._failure(outcome) if isinstance(outcome, Problem) else _answer(outcome)

    def _constraint(self, grammar: str) -> dict[str, Any]:
        """What keeps the server's answer to the format: the grammar of a critique, or the schema."""
        if grammar and self._grounded:
            return {"structured_outputs": {"grammar": grammar}}
        if self._json_schema is None:
            return {}
        schema = {"name": "critique", "schema": self._json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def _asked(self, messages: list[dict[str, str]], options: dict[str, Any], stopped: Event) -> Reply | Problem:
        """Send a request until there is an answer, or it is clear that there is none."""
        body = json.dumps({"model": self.name, "messages": messages, **options})
        waited = 0.0
        for retry in range(self._retries):
            outcome = self._endpoint.ask(body)
            if isinstance(outcome, Reply) or not outcome.passing or outcome.status == 200:
                return outcome
            waited += outcome.wait or 0.0
            if waited > LONGEST_WAIT or stopped.wait(pause(retry, outcome.wait)):
                return outcome
        return self._endpoint.ask(body)

    def _failure(self, problem: Problem) -> Failure:
        """The failure of one conversation, or the user's mistake that would fail them all."""
        if problem.kind == "fatal" and problem.status == 404:
            message = f"{self._endpoint.name} has no model {self.name!r}"
            raise UserError(message, "check the model and base_url")
        if problem.kind == "fatal":
            raise UserError(problem.message, problem.cure)
        unreadable = problem.kind == "oversized" or problem.status == 200
        kinds: dict[Trouble, FailureKind] = {"refused": "refused", "unfit": "unsupported"}
        return Failure(
            kind="invalid" if unreadable else kinds.get(problem.kind, "exhausted"), message=problem.message
        )


def _is_about(outcome: Reply | Problem, names: Sequence[str]) -> bool:
    """Whether a server refused a request for one of these options."""
    return isinstance(outcome, Problem) and outcome.kind == "unfit" and any(n in outcome.message for n in names)


def _answer(reply: Reply) -> Answer:
    if reply.refusal:
        return Failure(kind="refused", message=reply.refusal, raw=reply.text)
    return Completion(text=reply.text, truncated=reply.truncated, usage=dict(reply.usage))


class ScriptedChat:
    """A chat model for tests: plays back `answers`, or asks a function; remembers what it was asked."""

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
