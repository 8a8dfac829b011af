"""Questions to a chat model: their ids, so that each is paid for once, and their request bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

from text2grad.chat.api_errors import FALLBACKS, Capability
from text2grad.feedback import Message
from text2grad.json_text import storable

Format = Literal["json_schema", "json_object", "text"]
FRESH_TEMPERATURE = 0.7
"""Minimum temperature of the second attempt; greedy decoding would repeat the broken answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a model.

    Attributes:
        id: the key in the journal.
        data: the messages as JSON, encoded once for the id and all requests.
        schema: the JSON schema of the answer as text; empty: free text.
        about: the text that the answer is about.
        version: the version of the prompt.
    """

    id: str
    messages: tuple[dict[str, str], ...]
    data: str
    schema: str
    about: str
    version: str


@dataclass(frozen=True)
class Questioner:
    """Builds questions and requests for one model and its decoding parameters.

    `temperature` None uses the server's default. `refused` are capabilities that the server lacks.
    They do not change the id of a question, which depends on what was intended.
    """

    model: str
    max_tokens: int
    temperature: float | None = 0.0
    refused: frozenset[Capability] = frozenset()

    def question(self, turns: Sequence[Message], version: str = "", schema: str = "", about: str = "") -> Question:
        """Return the question for one conversation.

        Its id is a sha256 of everything that determines the answer: the messages, the prompt's
        version, the model, the decoding parameters and the number of the sample, which is always 0.
        """
        messages = tuple({"role": turn.role, "content": storable(turn.content)} for turn in turns)
        data = json.dumps(messages)
        decoding = [self.max_tokens, self.temperature]
        digest = sha256(f"[{data}, {json.dumps([version, self.model, decoding])[1:]}0".encode("ascii"))
        return Question(digest.hexdigest(), messages, data, schema, about, version)

    @property
    def limit(self) -> Capability:
        """The option for the token limit, which differs between OpenAI and other servers."""
        return "max_completion_tokens" if "max_tokens" in self.refused else "max_tokens"

    def format_for(self, question: Question) -> Format:
        """Return the strictest answer format of the question that the server supports."""
        formats: tuple[Format, ...] = ("json_schema", "json_object") if question.schema else ()
        return next((name for name in formats if name not in self.refused), "text")

    def capabilities(self, question: Question) -> frozenset[str]:
        """Return the capabilities that a request for the question needs."""
        names: set[str] = {self.format_for(question), self.limit}
        if self.temperature is not None:
            names.add("temperature")
        if any(message["role"] == "system" for message in question.messages):
            names.add("system_role")
        return frozenset(names - self.refused)

    def without(self, capability: Capability) -> frozenset[Capability]:
        """Return `refused` with another capability, but without its alternative."""
        return (self.refused | {capability}) - {FALLBACKS[capability].instead}

    def request(self, question: Question, attempt: int = 0) -> str:
        """Return the request as ASCII JSON; an `attempt` above 0 draws a new sample."""
        options = self.options(question.schema, self.format_for(question), attempt > 0)
        messages = question.data
        if "system_role" in self.refused:
            messages = json.dumps(_without_system(question.messages))
        return f'{{"stream": false, "messages": {messages}, {options[1:]}'

    @lru_cache(maxsize=64)  # noqa: B019 - instances are frozen and few
    def options(self, schema: str, answer_format: Format, fresh: bool = False) -> str:
        """Return a request without its messages, as JSON."""
        options: dict[str, Any] = {"model": self.model, self.limit: self.max_tokens}
        if self.temperature is not None and "temperature" not in self.refused:
            options["temperature"] = max(self.temperature, FRESH_TEMPERATURE) if fresh else self.temperature
        if answer_format == "json_object":
            options["response_format"] = {"type": "json_object"}
        elif answer_format == "json_schema":
            json_schema = {"name": "critique", "strict": True, "schema": json.loads(schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        return json.dumps(options)


def _without_system(messages: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Move the text of system messages to the start of the first other message."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    if not others:
        return [{"role": "user", "content": "\n\n".join(system)}]
    first = {**others[0], "content": "\n\n".join([*system, others[0]["content"]])}
    return [first, *others[1:]]
