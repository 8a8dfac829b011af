"""Talking to a chat model: one method, one client for every OpenAI-compatible server, one scripted fake.

A model that fails on one conversation answers with a `Failure` in its place; only a mistake that would fail
every conversation (a wrong key, an unknown model, an empty account) is raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from pydantic import Field

from text2grad.errors import UserError
from text2grad.feedback import Failure, Message, Overlap, Record

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion

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

    At most `concurrency` requests are open at once. The SDK retries 408, 409, 429 and 5xx up to `retries`
    times, with jitter, and waits as long as Retry-After says. The key is read from the environment variable
    `key_variable` and goes nowhere else. `temperature` None leaves the server's own. `grounded` sends critiques
    their grammar (`structured_outputs` of vLLM, with its guidance backend), until a server refuses it.

    Raises:
        UserError: there is no key for OpenAI itself; from `complete`: 401, 403, 404, or an account without
            quota. Requests that have not started by then are not sent.
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
        self._server = base_url or "OpenAI"
        self._concurrency = concurrency
        # Local servers only know the older name; OpenAI's reasoning models refuse it.
        limit = "max_tokens" if base_url else "max_completion_tokens"
        self._options: dict[str, Any] = {limit: max_tokens}
        if temperature is not None:
            self._options["temperature"] = temperature
        self._json_schema = json_schema
        self._client = _client(base_url, key_variable, timeout, retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the server."""
        self._client.close()

    def complete(self, conversations: Sequence[Conversation]) -> list[Answer]:
        """Ask for all conversations at once, `concurrency` at a time."""
        return self._all(conversations, [""] * len(conversations))

    def complete_about(self, conversations: Sequence[Conversation], texts: Sequence[str]) -> list[Answer]:
        """The same; if `grounded`, answer i is a critique that can only quote `texts[i]`."""
        from text2grad.wire.quotable import Quotable

        grammars = [Quotable(text).grammar() for text in texts] if self._grounded else [""] * len(texts)
        return self._all(conversations, grammars)

    def _all(self, conversations: Sequence[Conversation], grammars: Sequence[str]) -> list[Answer]:
        pool = ThreadPoolExecutor(self._concurrency)
        try:
            asked = zip(conversations, grammars, strict=True)
            pending = [pool.submit(self._one, conversation, grammar) for conversation, grammar in asked]
            done, _ = wait(pending, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in pending]
        finally:
            # After a user's mistake, or Ctrl-C, nothing more is sent (and paid).
            pool.shutdown(cancel_futures=True)

    def _one(self, conversation: Conversation, grammar: str) -> Answer:
        import openai

        try:
            return _answer(self._request(conversation, grammar))
        except openai.APIStatusError as error:
            return self._refused_request(error)
        except openai.APIConnectionError as error:
            return Failure(kind="exhausted", message=f"no answer from {self._server}: {error}")

    def _request(self, conversation: Conversation, grammar: str) -> ChatCompletion:
        import openai

        messages: list[Any] = [{"role": turn.role, "content": turn.content} for turn in conversation]
        constraint = self._constraint(grammar)
        try:
            return self._create(messages, {**self._options, **constraint})
        except openai.BadRequestError as error:
            refused = [name for name in ("response_format", "structured_outputs") if name in str(error.body)]
            if not constraint or not refused:
                raise
            # This server cannot constrain its answers; wire.parse judges them all the same.
            self._json_schema, self._grounded = None, False
            return self._create(messages, self._options)

    def _constraint(self, grammar: str) -> dict[str, Any]:
        """What keeps the server's answer to the format: the grammar of a critique, or the schema."""
        if grammar and self._grounded:
            return {"extra_body": {"structured_outputs": {"grammar": grammar}}}
        if self._json_schema is None:
            return {}
        schema = {"name": "critique", "schema": self._json_schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def _create(self, messages: list[Any], options: dict[str, Any]) -> ChatCompletion:
        reply: ChatCompletion = self._client.chat.completions.create(model=self.name, messages=messages, **options)
        return reply

    def _refused_request(self, error: openai.APIStatusError) -> Failure:
        """The failure of one conversation, or the user's mistake that would fail them all."""
        status = error.status_code
        if status in (401, 403):
            raise UserError(f"{self._server} refused the key ({status})", "check the API key") from None
        if status == 404:
            raise UserError(f"{self._server} has no model {self.name!r}", "check the model and base_url") from None
        if error.code == "insufficient_quota":
            raise UserError(f"{self._server}: the account's quota is used up", "add credit") from None
        if error.code == "content_filter":
            return Failure(kind="refused", message=f"{self._server}: content filter")
        if status == 429 or status >= 500:
            return Failure(kind="exhausted", message=f"{self._server} answered {status} to the last retry")
        return Failure(kind="unsupported", message=f"{self._server} answered {status}: {error.message}")


def _client(base_url: str | None, key_variable: str, timeout: float, retries: int) -> openai.OpenAI:
    import openai

    key = os.environ.get(key_variable, "")
    if not key and base_url is None:
        raise UserError(f"no API key in {key_variable}", f"export {key_variable}=... or set a base_url")
    # Servers at home take any key, but the SDK insists on one.
    return openai.OpenAI(
        api_key=key or "none",
        base_url=base_url,
        timeout=timeout,
        max_retries=retries,
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [_do_not_retry_empty_account]}),
    )


def _do_not_retry_empty_account(response: Any) -> None:
    """OpenAI answers 429 both to haste and to an empty account; waiting only cures the first."""
    if response.status_code == 429 and b"insufficient_quota" in response.read():
        response.headers["x-should-retry"] = "false"


def _answer(reply: ChatCompletion) -> Answer:
    if not reply.choices:
        return Failure(kind="invalid", message="the server answered without a choice")
    choice = reply.choices[0]
    text = choice.message.content or ""
    if choice.message.refusal or choice.finish_reason == "content_filter":
        return Failure(kind="refused", message=choice.message.refusal or "content filter", raw=text)
    usage: dict[str, float] = {}
    if reply.usage is not None:
        usage = {
            "prompt_tokens": reply.usage.prompt_tokens,
            "completion_tokens": reply.usage.completion_tokens,
        }
    return Completion(text=text, truncated=choice.finish_reason == "length", usage=usage)


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
