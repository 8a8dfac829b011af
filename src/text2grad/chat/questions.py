"""One question to a chat model: the request body, and the id under which its answer is paid for once."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

from text2grad.chat.complaint import LIMITS
from text2grad.feedback import Message, storable

Capability = Literal["grammar", "json_schema", "json_object", "text"]
LADDER: tuple[Capability, ...] = ("json_schema", "json_object", "text")
"""How strictly a server can be held to JSON, strictest first. Its answers are checked in any case."""
FRESH_TEMPERATURE = 0.7
"""Of the second try after a broken answer, where the first was greedy: the same would come again."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request. `id` is the key of the journal.

    `data` is the messages as JSON: they are encoded once, for the id and for every request. `schema` (JSON text) is
    the form of the answer, "" where it is free; `about` the text that the answer may quote.
    """

    id: str
    messages: tuple[dict[str, str], ...]
    data: str
    schema: str
    about: str


@dataclass(frozen=True)
class Form:
    """What a model takes of a request: the name of the limit (OpenAI's reasoning models only know
    `max_completion_tokens`, other servers only `max_tokens`), and whether a temperature may be named.
    """

    limit: str = LIMITS[0]
    temperature: bool = True

    def without(self, options: Collection[str]) -> Form:
        """The form for a server that does not take `options`; itself where they are not in it."""
        limit = LIMITS[self.limit == LIMITS[0]] if self.limit in options else self.limit
        return Form(limit, self.temperature and "temperature" not in options)


@dataclass(frozen=True)
class Questioner:
    """Writes questions for one model, as it is asked to decode. `temperature` None leaves the server's own.

    `form` is no part of a question's id: what was requested is, not what the server accepts of it.
    """

    model: str
    max_tokens: int
    temperature: float | None = 0.0
    form: Form = Form()

    def question(self, turns: Sequence[Message], version: str = "", schema: str = "", about: str = "") -> Question:
        """Return the request for one conversation. `version` names the prompt it was made from.

        The id is a sha256 of everything that decides the answer: the messages, the prompt's version, the model, the
        decoding parameters and the number of the sample, which is always 0.
        """
        messages = tuple({"role": turn.role, "content": storable(turn.content)} for turn in turns)
        data = json.dumps(messages)
        decoding = [self.max_tokens, self.temperature]
        digest = sha256(f"[{data}, {json.dumps([version, self.model, decoding])[1:]}0".encode("ascii"))
        return Question(digest.hexdigest(), messages, data, schema, about)

    def request(self, question: Question, capability: Capability, attempt: int = 0) -> str:
        """The request as the server reads it, a JSON text in ASCII; a later `attempt` draws a fresh sample."""
        options = self.options(question.schema, capability, attempt > 0)
        if capability == "grammar":
            from text2grad.wire.quotable import Quotable

            grammar = json.dumps({"structured_outputs": {"grammar": Quotable(question.about).grammar()}})
            options = f"{options[:-1]}, {grammar[1:]}"
        return f'{{"messages": {question.data}, {options[1:]}'

    @lru_cache(maxsize=64)  # noqa: B019 - frozen, and a few of a job
    def options(self, schema: str, capability: Capability, fresh: bool = False) -> str:
        """Everything of a request but its messages."""
        options: dict[str, Any] = {"model": self.model, self.form.limit: self.max_tokens}
        if self.temperature is not None and self.form.temperature:
            options["temperature"] = max(self.temperature, FRESH_TEMPERATURE) if fresh else self.temperature
        if capability == "json_object":
            options["response_format"] = {"type": "json_object"}
        elif capability == "json_schema":
            wanted = {"name": "critique", "strict": True, "schema": json.loads(schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": wanted}
        return json.dumps(options)
