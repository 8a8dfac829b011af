"""A critic in another process: the client of `text2grad serve`, and the JSON that both sides write.

A request is `{"examples": [...], "responses": [...]}`, records as in a file; a response that is a
transcript is the list of its messages. The answer is `{"judgements": [...]}`, a critique or a
failure for each response.
"""

from __future__ import annotations

import ipaddress
import json
import os
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter, model_validator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from text2grad.critics.spec import CriticSpec
from text2grad.errors import UserError, first_error, warn_once
from text2grad.feedback import Critique, Example, Failure, Judgement, Overlap, Record, ResponseText, Source
from text2grad.json_text import from_json
from text2grad.signals import stop_here

if TYPE_CHECKING:
    from httpx2 import Response

TOKEN = "TEXT2GRAD_TOKEN"
"""The environment variable with the secret that a server asks for, and its clients send."""
MOST_BYTES, MOST_RESPONSES = 1 << 24, 1024
"""Limits of one request; a client splits longer ones."""
SECONDS = 600.0
"""The longest that a server lets a critic judge one batch."""
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before a request is sent again to a server that does not answer: it may be starting."""
PASSING = (429, 502, 503, 504)
"""The statuses of a server that may answer later."""


class Batch(Record):
    """The body of a request."""

    examples: list[Example] = Field(max_length=MOST_RESPONSES)
    responses: list[ResponseText] = Field(max_length=MOST_RESPONSES)

    @model_validator(mode="after")
    def _has_pairs(self) -> Batch:
        if len(self.examples) != len(self.responses):
            raise ValueError(f"{len(self.examples)} examples for {len(self.responses)} responses")
        return self


_PAIR = TypeAdapter(tuple[Example, ResponseText])
_JUDGEMENTS = TypeAdapter(list[Critique | Failure])


def written_judgements(judgements: Sequence[Judgement]) -> bytes:
    """Return the body of an answer. A judgement whose `meta` JSON cannot hold is a failure in
    it."""
    return json.dumps({"judgements": [_as_data(judgement) for judgement in judgements]}).encode()


def _as_data(judgement: Judgement) -> dict[str, Any]:
    try:  # records leave out the meta of a failure
        return {**judgement.model_dump(mode="json"), "meta": to_jsonable_python(judgement.meta)}
    except PydanticSerializationError as error:
        return Failure(kind="invalid", message=f"the critique is not JSON: {error}").model_dump(mode="json")


def is_address(kind: str) -> bool:
    """True if a `critic.kind` is the address of a server."""
    return kind.startswith(("http://", "https://"))


def checked_address(url: str) -> str:
    """Return the address of a server without its last slash.

    Raises:
        ValueError: it cannot be one.
    """
    parts = urlsplit(url)
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
    if not (is_address(url) and parts.hostname and parts.port != 0 and plain and url.isascii()):
        raise ValueError("the address of text2grad serve reads http://HOST:PORT")
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """True if a host name or address is this machine's own, which no other machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_of_environment() -> str:
    """Return the secret in `TEXT2GRAD_TOKEN`; empty if there is none.

    Raises:
        UserError: it has characters that a header cannot have.
    """
    token = os.environ.get(TOKEN, "")
    if not (token.isascii() and token.isprintable() and token == token.strip()):
        raise UserError(f"{TOKEN} has characters that no header has", f"export {TOKEN}=... again")
    return token


class ServedCritic:
    """The critic that `text2grad serve` holds at `url`; it judges as it would in this process.

    A server that does not answer is asked again for half a minute; then every response of the
    request is a failure. Any thread may ask.

    Args:
        url: the address that the server prints, `http://HOST:PORT`.
        token: the server's secret; None: the one in the environment variable `TEXT2GRAD_TOKEN`.

    Raises:
        ValueError: the address cannot be one.
        UserError: by the methods: no such server, another token, or a mistake of the critic's
            set-up.
    """

    overlap: Overlap = "helps"

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = checked_address(url)
        self._token = token_of_environment() if token is None else token

    @cached_property
    def source(self) -> Source:
        """The source of its critiques, as the server says.

        Raises:
            UserError: the server does not answer, or is something else.
        """
        answer = self._send("GET", "/health")
        if isinstance(answer, str):
            raise UserError(answer, "is it running? text2grad serve FOLDER prints its address")
        try:
            return Source.model_validate(_value_of(answer, "source"))
        except ValueError as error:
            raise self._other_server(answer.status_code) from error

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Have the server judge `responses[i]` as an answer to `examples[i]`.

        Raises:
            UserError: see the class.
        """
        pairs = zip(examples, responses, strict=True)
        return [judgement for body, count in _bodies(pairs) for judgement in self._judged(body, count)]

    def _judged(self, body: bytes | None, count: int) -> list[Judgement]:
        if body is None:
            message = f"the example and its response take more than {MOST_BYTES >> 20} MiB"
            return [Failure(kind="unsupported", message=message)]
        answer = self._send("POST", "/critique", body)
        if isinstance(answer, str):
            return [Failure(kind="exhausted", message=answer)] * count
        try:
            judgements = _JUDGEMENTS.validate_python(_value_of(answer, "judgements"))
            if len(judgements) != count:
                raise ValueError(f"{len(judgements)} judgements of {count} responses")
        except ValueError as error:
            message = f"{self.url} answered with something else: {first_error(error)}"
            return [Failure(kind="invalid", message=message)] * count
        return list(judgements)

    def _send(self, method: str, path: str, body: bytes = b"") -> Response | str:
        """Return the answer with status 200, or the reason why there is none.

        Raises:
            UserError: the server refuses, and would refuse again.
        """
        from httpx2 import ReadTimeout, TransportError

        problem = ""
        for pause in (0.0, *PAUSES):
            time.sleep(pause)
            stop_here()
            try:
                answer: Response = self._client.request(method, path, content=body)
            except ReadTimeout:
                return f"no answer from {self.url} within {SECONDS:g} s"
            except TransportError as error:
                problem = f"no answer from {self.url}: {error}"
            else:
                if answer.status_code == 200:
                    return answer
                if answer.status_code not in PASSING:
                    raise self._refused(answer)
                problem = f"{self.url} answered {answer.status_code}"
            warn_once(f"{problem}; asking again")
        return problem

    @cached_property
    def _client(self) -> Any:
        """The HTTP client. Each request opens a connection, so none is stale, even after a fork."""
        from httpx2 import Client, Limits, Timeout  # imported here: it takes time

        place = urlsplit(self.url)
        return Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
            timeout=Timeout(SECONDS + 30, connect=10.0),
            limits=Limits(max_keepalive_connections=0),
            trust_env=not is_loopback(str(place.hostname)),  # no proxy leads to this machine
            verify=place.scheme == "https",  # certificates take 0.2 s to load
        )

    def _refused(self, answer: Response) -> UserError:
        status, line = answer.status_code, _value_of(answer, "error")
        if line is None:
            return self._other_server(status)
        if status == 401:
            return UserError(f"{self.url} refused the token", f"export {TOKEN}=... as the server has it")
        if status == 500:
            return UserError(f"the critic at {self.url}: {line}")
        return UserError(f"{self.url} answered {status}: {line}", "is it of the same version?")

    def _other_server(self, status: int) -> UserError:
        return UserError(f"{self.url} is no text2grad serve: it answered {status}", "check the address")


def _value_of(answer: Response, key: str) -> Any:
    """Return a value of the JSON object in an answer; None if it has none."""
    try:
        return from_json(answer.text)[key]
    except (ValueError, LookupError, TypeError):
        return None


def _bodies(pairs: Iterator[tuple[Example, str]]) -> Iterator[tuple[bytes | None, int]]:
    """Yield the bodies of requests with the number of their pairs; None in place of a pair that is
    too long.

    Raises:
        UserError: the `meta` of an example holds what JSON cannot.
    """
    waiting: list[tuple[str, str]] = []
    size = 0
    for pair in pairs:
        written = _written_pair(pair)
        length = sum(map(len, written)) + 100
        if waiting and (size + length > MOST_BYTES or len(waiting) == MOST_RESPONSES):
            yield _body(waiting), len(waiting)
            waiting, size = [], 0
        if length > MOST_BYTES:
            yield None, 1
        else:
            waiting.append(written)
            size += length
    if waiting:
        yield _body(waiting), len(waiting)


def _body(pairs: Sequence[tuple[str, str]]) -> bytes:
    examples, responses = (", ".join(texts) for texts in zip(*pairs, strict=True))
    return f'{{"examples": [{examples}], "responses": [{responses}]}}'.encode("ascii")


def _written_pair(pair: tuple[Example, str]) -> tuple[str, str]:
    """Return an example and its response as JSON in ASCII, in which every text can be written."""
    try:
        example, response = _PAIR.dump_python(pair, mode="json")
    except PydanticSerializationError as error:
        problem = f"example {pair[0].id!r} has what JSON cannot hold: {error}"
        raise UserError(problem, "leave that column out of the data") from error
    return json.dumps(example), json.dumps(response)


def served_spec(url: str) -> CriticSpec:
    """Return the spec of the critic at an address. Its `make` asks the server for its source."""

    def make(settings: object, ready: object) -> ServedCritic:
        critic = ServedCritic(url)
        _ = critic.source
        return critic

    return CriticSpec("served", make=make)
