"""Wrap the openai SDK's client with limits on the time and size of answers.

Redirections, retries and compression are disabled. The SDK takes 0.4 s of CPU to import, so only
code that sends requests imports this module.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import openai

from text2grad.chat.reply import NoReplyError, ProblemKind
from text2grad.errors import UserError

MOST_BYTES = 1 << 24
"""Maximum size of an answer."""
TOTAL_TIMEOUT_FACTOR = 5.0
"""Maximum time of an answer, as a multiple of the time that a server may be silent."""


class OversizedError(Exception):
    """The answer exceeds `MOST_BYTES`."""


KINDS: Mapping[type, ProblemKind] = {
    OversizedError: "oversized",
    httpx2.ReadTimeout: "timeout",
    httpx2.WriteTimeout: "timeout",
    httpx2.RemoteProtocolError: "cut",
    httpx2.ReadError: "cut",
    httpx2.WriteError: "cut",
}
"""The kind of problem of an exception; any other means that the server was not reached."""
CHECK_SERVER = "is the server running? check critic.prompted.base_url"


class Client:
    """The SDK's client for chat requests to the server at `url`; an empty `key` sends no key.

    Raises:
        UserError: the environment names an invalid proxy.
    """

    def __init__(self, url: str, key: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = urlsplit(url)
        self._options: openai.RequestOptions = {} if key else {"headers": {"Authorization": openai.Omit()}}
        self._sdk = openai.OpenAI(
            api_key=key or "none",
            base_url=parts._replace(query="", fragment="").geturl(),
            default_query=dict(parse_qsl(parts.query)),
            default_headers={"Accept-Encoding": "identity", **headers},
            timeout=timeout,
            max_retries=0,
            http_client=_http_client(timeout),
        )

    def post(self, body: bytes) -> httpx2.Response:
        """Send one chat request and return the complete response, with any status.

        Raises:
            NoReplyError: there is no response, or it is too large.
        """
        try:
            return self._sdk.post("/chat/completions", cast_to=httpx2.Response, content=body, options=self._options)
        except openai.APIStatusError as error:
            return error.response
        except (openai.APIConnectionError, OversizedError, httpx2.HTTPError) as error:
            cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
            kind = KINDS.get(type(cause), "unreachable")
            cure = self._connection_cure(cause) if kind == "unreachable" else ""
            raise NoReplyError(kind, str(cause) or type(cause).__name__, cure) from error

    def read_stream(self, response: httpx2.Response) -> dict[str, Any]:
        """Join the events of a streamed answer into the body of a normal one.

        Raises:
            NoReplyError: the stream ended before the answer, or an event is not JSON.
        """
        try:
            return joined_chunks(openai.Stream(cast_to=object, response=response, client=self._sdk))
        except openai.APIError as error:
            return {"error": error.body}
        except ValueError as error:
            raise NoReplyError("cut", f"an event of the stream is not JSON: {error}") from error

    def _connection_cure(self, cause: BaseException | None) -> str:
        """Return what to check when the server was not reached."""
        url = urlsplit(str(self._sdk.base_url))
        proxy = getproxies().get(url.scheme) or getproxies().get("all")
        if "CERTIFICATE_VERIFY_FAILED" in str(cause):
            return "export SSL_CERT_FILE=/path/to/the/authority.pem if you trust the server's certificate"
        if proxy and not proxy_bypass(str(url.hostname)):
            return f"is the proxy in {url.scheme}_proxy running? unset it, or export no_proxy={url.hostname}"
        return CHECK_SERVER

    def close(self) -> None:
        """Close the connections."""
        self._sdk.close()


def joined_chunks(chunks: Iterable[Any]) -> dict[str, Any]:
    """Join the chunks of a streamed chat completion; return {} if they have another format.

    Raises:
        NoReplyError: no chunk has a finish reason, so the answer may be incomplete.
    """
    texts = {"content": "", "refusal": ""}
    finish, usage = None, None
    for chunk in chunks:
        if not isinstance(chunk, dict):
            continue
        usage = chunk.get("usage") or usage
        try:
            for choice in chunk.get("choices") or ():
                part = choice.get("delta") or choice.get("message") or {}
                for name in texts:
                    texts[name] += part.get(name) or ""
                finish = choice.get("finish_reason") or finish
        except (AttributeError, TypeError):
            return {}
    if finish is None:
        raise NoReplyError("cut", "the stream ended before the answer")
    return {"choices": [{"message": texts, "finish_reason": finish}], "usage": usage}


def _http_client(timeout: float) -> httpx2.Client:
    def bound(response: httpx2.Response) -> None:
        response.headers.pop("content-encoding", None)
        stream = response.stream
        assert isinstance(stream, httpx2.SyncByteStream)
        response.stream = _BoundedStream(stream, time.monotonic() + TOTAL_TIMEOUT_FACTOR * timeout)

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    try:
        return httpx2.Client(limits=limits, follow_redirects=False, event_hooks={"response": [bound]})
    except (ValueError, ImportError, httpx2.InvalidURL) as error:
        cure = "export http_proxy=http://HOST:PORT, or unset it"
        raise UserError("the proxy in the environment is not an http(s) address", cure) from error


class _BoundedStream(httpx2.SyncByteStream):
    """A response body limited to `deadline` (monotonic seconds) and `MOST_BYTES`."""

    def __init__(self, stream: httpx2.SyncByteStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._stream:
            size += len(piece)
            if size > MOST_BYTES:
                raise OversizedError(f"an answer of more than {MOST_BYTES >> 20} MiB")
            if time.monotonic() > self._deadline:
                raise httpx2.ReadTimeout("the answer takes too long")
            yield piece

    def close(self) -> None:
        self._stream.close()
