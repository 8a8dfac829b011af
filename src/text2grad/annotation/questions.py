"""What is asked about an item: the request body, and the id under which its answer is paid for once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

from text2grad import wire
from text2grad.annotation.items import Item
from text2grad.critics.prompted import check_prompt, judge_messages
from text2grad.errors import UserError
from text2grad.feedback import storable

Capability = Literal["json_schema", "json_object", "text"]
LADDER: tuple[Capability, ...] = ("json_schema", "json_object", "text")
"""How far a server can be held to JSON, most first. What it then writes is checked all the same."""
FRESH_TEMPERATURE = 0.7
"""Of the second try after a broken answer, where the first was greedy: the same would come again."""


@dataclass(frozen=True)
class Prompt:
    """A prompt file: its text and its version (`tasks.base.prompt_version`)."""

    text: str
    version: str


@dataclass(frozen=True)
class Decoding:
    """How the model is asked to write. `temperature` None leaves the server's own."""

    max_tokens: int
    temperature: float | None = 0.0
    samples: int = 1

    def check(self) -> None:
        """Several greedy samples are one, paid for several times.

        Raises:
            UserError: they are asked for.
        """
        if self.samples > 1 and self.temperature == 0:
            raise UserError(f"{self.samples} samples at temperature 0 are the same", "--annotate.temperature 0.7")


@dataclass(frozen=True)
class Question:
    """One request: about `item`, its `sample`-th (from 0). `id` is the key of the journal, `data` the messages as
    JSON: they are encoded once, for the id and for every request.
    """

    id: str
    item: Item
    sample: int
    prompt: Prompt
    messages: tuple[dict[str, str], ...]
    data: str


@dataclass(frozen=True)
class Questioner:
    """Asks `model` about items with `judge`, and grounds what people wrote with `ground`.

    `tested` takes the place of `judge` where it is known what came of an item's tests.
    """

    model: str
    decoding: Decoding
    judge: Prompt
    ground: Prompt
    new_limit_name: bool = False
    """OpenAI's reasoning models only know `max_completion_tokens`, servers at home only `max_tokens`."""
    tested: Prompt | None = None

    def __post_init__(self) -> None:
        self.decoding.check()
        for prompt in (self.judge, self.ground, self.tested):
            if prompt is not None:
                check_prompt(prompt.text)

    def prompt_for(self, item: Item) -> Prompt:
        """Which prompt an item is asked with."""
        if item.human_feedback:
            return self.ground
        return self.tested if self.tested and item.tested else self.judge

    def questions(self, item: Item) -> Iterator[Question]:
        """The requests of one item, one per sample.

        The id is a sha256 of everything that decides the answer: the messages (so the item), the prompt's
        version, the model, the decoding parameters and the number of the sample.
        """
        prompt = self.prompt_for(item)
        turns = judge_messages(prompt.text, item.example, item.response)
        messages = tuple({"role": turn.role, "content": storable(turn.content)} for turn in turns)
        data = json.dumps(messages)
        decoding = [self.decoding.max_tokens, self.decoding.temperature]
        start = sha256(f"[{data}, {json.dumps([prompt.version, self.model, decoding])[1:]}".encode("ascii"))
        for sample in range(self.decoding.samples):
            digest = start.copy()
            digest.update(b"%d" % sample)
            yield Question(digest.hexdigest(), item, sample, prompt, messages, data)

    def request(self, question: Question, capability: Capability, attempt: int = 0) -> str:
        """The request as the server reads it, a JSON text in ASCII; a later `attempt` draws a fresh sample."""
        return f'{{"messages": {question.data}, {self._options(question.prompt.text, capability, attempt > 0)[1:]}'

    def request_options(self, question: Question, capability: Capability) -> str:
        """What a request says besides its messages."""
        return self._options(question.prompt.text, capability, False)

    @lru_cache(maxsize=16)  # noqa: B019 - frozen, and one or two of a job
    def _options(self, prompt: str, capability: Capability, fresh: bool) -> str:
        """Everything of a request but its messages."""
        limit = "max_completion_tokens" if self.new_limit_name else "max_tokens"
        options: dict[str, Any] = {"model": self.model, limit: self.decoding.max_tokens}
        temperature = self.decoding.temperature
        if temperature is not None:
            options["temperature"] = max(temperature, FRESH_TEMPERATURE) if fresh else temperature
        if capability == "json_object":
            options["response_format"] = {"type": "json_object"}
        elif capability == "json_schema":
            schema = wire.json_schema('"reasoning"' in prompt, '"improvable_spans"' in prompt)
            wanted = {"name": "critique", "strict": True, "schema": schema}
            options["response_format"] = {"type": "json_schema", "json_schema": wanted}
        return json.dumps(options)
