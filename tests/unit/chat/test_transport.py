"""Answers of every framing HTTP/1 has, in pieces of any size, and those that are cut."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from text2grad.chat import transport
from text2grad.chat.endpoint import Endpoint, redactor, retry_after
from text2grad.chat.transport import Connection, CutError, OversizedError
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
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": "Wed, 21 Oct 99999 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "body": (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x"),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "rest": (HEAD + b"\r\n", b"x"),
    "headers": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
}


@pytest.fixture
def endless() -> Iterator[Any]:
    """`endless(begin, piece, pause)`: a URL whose answer begins so, and then has pieces until nobody listens."""
    listener = socket.create_server(("127.0.0.1", 0))

    def start(begin: bytes, piece: bytes, pause: float) -> Any:
        def serve() -> None:
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                peer.recv(1 << 16)
                peer.sendall(begin)
                while True:
                    peer.sendall(piece)
                    time.sleep(pause)

        Thread(target=serve, daemon=True).start()
        return urlsplit(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")

    yield start
    listener.close()


@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_that_trickles_in_has_an_end_in_time(endless: Any, name: str) -> None:
    connection = Connection(endless(*ENDLESS[name], 0.02), 0.1)
    try:
        with pytest.raises(TimeoutError):
            connection.post(b"POST / HTTP/1.1\r\n", b"{}")
    finally:
        connection.close()


@pytest.mark.parametrize("name", ENDLESS)
def test_an_answer_without_end_has_one_in_size(endless: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_BYTES", 200_000)
    begin, piece = ENDLESS[name]
    connection = Connection(endless(begin.replace(b"1000000", b"200001"), piece * 1000, 0.0), 20.0)
    try:
        with pytest.raises(OversizedError):
            connection.post(b"POST / HTTP/1.1\r\n", b"{}")
    finally:
        connection.close()


def test_a_request_that_trickled_leaves_no_short_timeout_behind(answering: Any) -> None:
    connection = Connection(answering(LENGTH, 10_000), 5.0)
    connection._socket.settimeout(1e-9)
    assert connection.post(b"POST / HTTP/1.1\r\n", b"{}").body == BODY
    connection.close()


ECHOES = [
    "sk-secret/key",
    r"sk-secret\/key",
    r"\u0073\u006b-secret/key",
    r"sk\u002Dsecret\u002fkey",
    r"sk-secret\\/key",
    r"\\u0073k-secret\\u002fkey",
    r"\x73k-secret\57key",
    r"\U00000073k\-secret/key",
    "sk%2dsecret%2Fkey",
    "sk&#45;secret&#x2F;key",
]


@pytest.mark.parametrize("echo", ECHOES)
def test_the_key_is_struck_out_however_it_is_escaped(echo: str) -> None:
    redact = redactor("sk-secret/key")
    assert redact(f"key {echo}!") == "key [key]!" and redact(f"{echo}{echo}") == "[key][key]"
    assert redact("sk-secret, key") == "sk-secret, key"


def test_what_opens_no_account_is_no_secret_and_nothing_takes_long() -> None:
    assert redactor("EMPTY")("EMPTY") == "EMPTY" and redactor("")("") == ""
    redact = redactor("sk-secret/key")
    for text in ("\\" * 300_000, "sk-secret/ke" * 30_000 + "\\", "&#0" * 100_000, "%73" * 100_000):
        assert redact(text) == text


def test_the_key_is_struck_out_and_a_url_may_hold_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    endpoint = Endpoint("http://localhost:1/v1", 1.0)
    assert endpoint.redact("key sk-secret!") == "key [key]!" and "sk-secret" not in repr(endpoint)
    for url, words in (
        ("http://höst/v1", "in ASCII"),
        ("ftp://x", "not an http"),
        ("http://me:pw@host/v1", "must not hold a password"),
    ):
        with pytest.raises(UserError, match=words):
            Endpoint(url, 1.0)
