"""Client of `text2grad serve`, a critic in another process, and the JSON of both sides.

A request is `{"examples": [...], "responses": [...]}`, with records as in a file; a transcript is
the list of its messages. The answer is `{"judgements": [...]}`, one critique or failure per
response.
"""

from __future__ import annotations

import ipaddress
import json
import os
import time
from collections.abc import Iterable, Sequence
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
"""Environment variable with the secret of a server, which clients send."""
MAX_BYTES, MAX_RESPONSES = 1 << 24, 1024
"""Limits of one request; the client splits larger batches."""
TIMEOUT_SECONDS = 600.0
"""Time limit of the server for judging one batch."""
RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds between attempts to reach a server, which may be starting."""
RETRY_STATUSES = (429, 502, 503, 504)
"""Statuses of a server that may answer later."""


class Batch(Record):
    """The body of a request."""

    examples: list[Example] = Field(max_length=MAX_RESPONSES)
    responses: list[ResponseText] = Field(max_length=MAX_RESPONSES)

    @model_validator(mode="after")
    def _check_lengths(self) -> Batch:
        if len(self.examples) != len(self.responses):
            raise ValueError(f"{len(self.examples)} examples for {len(self.responses)} responses")
        return self


_PAIR = TypeAdapter(tuple[Example, ResponseText])
_JUDGEMENTS = TypeAdapter(list[Critique | Failure])


def dump_judgements(judgements: Sequence[Judgement]) -> bytes:
    """Return the body of an answer; a judgement whose `meta` is not JSON becomes a failure."""
    return json.dumps({"judgements": [_dump_judgement(judgement) for judgement in judgements]}).encode()


def _dump_judgement(judgement: Judgement) -> dict[str, Any]:
    try:  # serialised failures have no meta
        return {**judgement.model_dump(mode="json"), "meta": to_jsonable_python(judgement.meta)}
    except PydanticSerializationError as error:
        return Failure(kind="invalid", message=f"the critique is not JSON: {error}").model_dump(mode="json")


def is_address(kind: str) -> bool:
    """True if a `critic.kind` is the address of a server."""
    return kind.startswith(("http://", "https://"))


def parse_address(url: str) -> str:
    """Return the address of a server without a trailing slash.

    Raises:
        ValueError: the address is malformed.
    """
    parts = urlsplit(url)
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
    if not (is_address(url) and parts.hostname and parts.port != 0 and plain and url.isascii()):
        raise ValueError("the address of text2grad serve must be http://HOST:PORT")
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """True if a host name or address is only reachable from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token() -> str:
    """Return the secret in `TEXT2GRAD_TOKEN`, or an empty string.

    Raises:
        UserError: the secret has characters that are invalid in a header.
    """
    token = os.environ.get(TOKEN, "")
    if not (token.isascii() and token.isprintable() and token == token.strip()):
        raise UserError(f"{TOKEN} has characters that are invalid in a header", f"export {TOKEN}=... again")
    return token


class ServedCritic:
    """The critic behind `text2grad serve` at `url`; thread-safe.

    A server that does not answer is retried for half a minute; then every response of the request
    is a failure.

    Args:
        url: the address that the server prints, `http://HOST:PORT`.
        token: the server's secret; None: that in the environment variable `TEXT2GRAD_TOKEN`.

    Raises:
        ValueError: the address is malformed.
        UserError: by the methods: no such server, a wrong token, or a misconfigured critic.
    """

    overlap: Overlap = "helps"

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = parse_address(url)
        self._token = read_token() if token is None else token

    @cached_property
    def source(self) -> Source:
        """The source of its critiques, reported by the server.

        Raises:
            UserError: the server does not answer, or is not `text2grad serve`.
        """
        answer = self._send("GET", "/health")
        if isinstance(answer, str):
            raise UserError(answer, "is it running? text2grad serve FOLDER prints its address")
        try:
            return Source.model_validate(_json_value(answer, "source"))
        except ValueError as error:
            raise self._wrong_server(answer.status_code) from error

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Have the server judge `responses[i]` as an answer to `examples[i]`."""
        pairs = list(zip(examples, responses, strict=True))
        chunks = (pairs[start : start + MAX_RESPONSES] for start in range(0, len(pairs), MAX_RESPONSES))
        return [judgement for chunk in chunks for judgement in self._request(chunk)]

    def _request(self, pairs: Sequence[tuple[Example, str]]) -> list[Judgement]:
        body, count = _body(pairs), len(pairs)
        if len(body) > MAX_BYTES and count > 1:
            return [*self._request(pairs[: count // 2]), *self._request(pairs[count // 2 :])]
        if len(body) > MAX_BYTES:
            message = f"the example and its response take more than {MAX_BYTES >> 20} MiB"
            return [Failure(kind="unsupported", message=message)]
        answer = self._send("POST", "/critique", body)
        if isinstance(answer, str):
            return [Failure(kind="exhausted", message=answer)] * count
        try:
            judgements = _JUDGEMENTS.validate_python(_json_value(answer, "judgements"))
            if len(judgements) != count:
                raise ValueError(f"{len(judgements)} judgements for {count} responses")
        except ValueError as error:
            message = f"{self.url} sent an invalid answer: {first_error(error)}"
            return [Failure(kind="invalid", message=message)] * count
        return list(judgements)

    def _send(self, method: str, path: str, body: bytes = b"") -> Response | str:
        """Return the answer with status 200, or a message about the failed request.

        Raises:
            UserError: the server refuses for a permanent reason.
        """
        from httpx2 import ReadTimeout, TransportError

        problem = ""
        for delay in (0.0, *RETRY_DELAYS):
            time.sleep(delay)
            stop_here()
            try:
                answer: Response = self._client.request(method, path, content=body)
            except ReadTimeout:
                return f"no answer from {self.url} within {TIMEOUT_SECONDS:g} s"
            except TransportError as error:
                problem = f"no answer from {self.url}: {error}"
            else:
                if answer.status_code == 200:
                    return answer
                if answer.status_code not in RETRY_STATUSES:
                    raise self._refusal(answer)
                problem = f"{self.url} answered {answer.status_code}"
            warn_once(f"{problem}; retrying")
        return problem

    @cached_property
    def _client(self) -> Any:
        """The HTTP client; it opens a connection per request, so none is stale after a fork."""
        from httpx2 import Client, Limits, Timeout  # slow to import

        address = urlsplit(self.url)
        return Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._token}"} if self._token else {},
            timeout=Timeout(TIMEOUT_SECONDS + 30, connect=10.0),
            limits=Limits(max_keepalive_connections=0),
            trust_env=not is_loopback(str(address.hostname)),  # no proxy for this machine
            verify=address.scheme == "https",  # certificates take 0.2 s to load
        )

    def _refusal(self, answer: Response) -> UserError:
        status, line = answer.status_code, _json_value(answer, "error")
        if line is None:
            return self._wrong_server(status)
        if status == 401:
            return UserError(f"{self.url} refused the token", f"export {TOKEN}=... with the server's value")
        if status == 500:
            return UserError(f"the critic at {self.url}: {line}")
        return UserError(f"{self.url} answered {status}: {line}", "is it of the same version?")

    def _wrong_server(self, status: int) -> UserError:
        return UserError(f"{self.url} is not text2grad serve: it answered {status}", "check the address")


def _json_value(answer: Response, key: str) -> Any:
    """Return a value of the JSON object in an answer; None if it is missing."""
    try:
        return from_json(answer.text)[key]
    except (ValueError, LookupError, TypeError):
        return None


def _body(pairs: Iterable[tuple[Example, str]]) -> bytes:
    """Return the body of a request as ASCII JSON, which can encode lone surrogates.

    Raises:
        UserError: the `meta` of an example is not JSON.
    """
    examples, responses = [], []
    for pair in pairs:
        try:
            example, response = _PAIR.dump_python(pair, mode="json")
        except PydanticSerializationError as error:
            problem = f"example {pair[0].id!r} is not JSON: {error}"
            raise UserError(problem, "remove that column from the data") from error
        examples.append(example)
        responses.append(response)
    return json.dumps({"examples": examples, "responses": responses}).encode("ascii")


def served_spec(url: str) -> CriticSpec:
    """Return the spec of the critic at an address; its `make` asks the server for its source."""

    def make(settings: object, ready: object) -> ServedCritic:
        critic = ServedCritic(url)
        _ = critic.source
        return critic

    return CriticSpec("served", make=make)
