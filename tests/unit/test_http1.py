"""Answers of every framing HTTP/1 has, in pieces of any size, and those that are cut."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from text2grad.annotation.endpoint import Endpoint, retry_after
from text2grad.annotation.http1 import Connection, CutError
from text2grad.errors import UserError

BODY = b'{"a": "\xf0\x9f\x99\x82"}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LENGTH = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\n%s\r\n%x\r\n%s\r\n0\r\nTrailer: 1\r\n\r\n" % (
    BODY[:5],
    len(BODY) - 5,
    BODY[5:],
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
OLD = b"HTTP/1.0 200 OK\r\n\r\n" + BODY


@pytest.fixture
def answering() -> Iterator[Any]:
    """`answering(data, size)`: a URL that answers one request with `data`, sent in pieces, then hangs up."""
    listeners: list[socket.socket] = []
    threads: list[Thread] = []

    def start(data: bytes, size: int) -> Any:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for place in range(0, len(data), size):
                    peer.sendall(data[place : place + size])

        threads.append(Thread(target=serve, daemon=True))
        threads[-1].start()
        return urlsplit(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")

    yield start
    for thread in threads:
        thread.join(5)
    for listener in listeners:
        listener.close()


def asked(url: Any) -> Any:
    connection = Connection(url, 5.0)
    try:
        return connection.post(b"POST / HTTP/1.1\r\n", b"{}")
    finally:
        connection.close()


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "keep"),
    [(LENGTH, True), (CHUNKED, True), (CONTINUED, True), (OLD, False)],
    ids=["l", "c", "100", "1.0"],
)
def test_every_framing(answering: Any, data: bytes, keep: bool, size: int) -> None:
    answer = asked(answering(data, size))
    assert (answer.status, answer.body, answer.keep) == (200, BODY, keep)


@pytest.mark.parametrize("data", [LENGTH, CHUNKED])
def test_a_cut_answer_is_never_taken_for_a_whole_one(answering: Any, data: bytes) -> None:
    for cut in range(0, len(data), 9):
        with pytest.raises(CutError) as caught:
            asked(answering(data[:cut], 10_000))
        assert caught.value.empty == (cut == 0)


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", HEAD + b"Content-Length: -4\r\n\r\n"]
)
def test_what_is_no_http(answering: Any, data: bytes) -> None:
    with pytest.raises(CutError):
        asked(answering(data, 10_000))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_the_key_is_struck_out_and_a_url_may_hold_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    endpoint = Endpoint("http://localhost:1/v1", 1.0)
    assert endpoint.redact("key sk-secret!") == "key [key]!" and "sk-secret" not in repr(endpoint)
    for url, words in (("ftp://x", "no http"), ("http://me:pw@host/v1", "no password")):
        with pytest.raises(UserError, match=words):
            Endpoint(url, 1.0)
