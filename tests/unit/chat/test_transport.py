"""Answers of every framing HTTP/1 has, in pieces of any size, and those that are cut."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import product
from threading import Thread
from typing import Any

import pytest

from chat_server import ChatServer, said, servers_of
from text2grad.chat import transport
from text2grad.chat.endpoint import Endpoint, redactor, retry_after
from text2grad.chat.reply import NoReplyError, Reply
from text2grad.chat.transport import Client
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


def receive(peer: socket.socket) -> bytes:
    """A whole request: its body is `{}`."""
    data = b""
    while not data.endswith(b"{}"):
        data += peer.recv(1 << 16)
    return data


@pytest.fixture
def answering() -> Iterator[Any]:
    """`answering(data, size)`: a URL that answers one request with `data`, sent in pieces, then
    hangs up."""
    listeners: list[socket.socket] = []
    threads: list[Thread] = []

    def start(data: bytes, size: int) -> Any:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                receive(peer)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for place in range(0, len(data), size):
                    peer.sendall(data[place : place + size])

        threads.append(Thread(target=serve, daemon=True))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    yield start
    for thread in threads:
        thread.join(5)
    for listener in listeners:
        listener.close()


def post(url: str, timeout: float = 5.0) -> Any:
    with closing(Client(url, "", {}, timeout)) as client:
        return client.post(b"{}")


def trouble(url: str, timeout: float = 5.0) -> str:
    """Why there is no answer."""
    with pytest.raises(NoReplyError) as caught:
        post(url, timeout)
    return caught.value.kind


def test_every_framing_in_pieces_of_any_size(answering: Any) -> None:
    for data, size in product((LENGTH, CHUNKED, CONTINUED, OLD), (1, 7, 10_000)):
        answer = post(answering(data, size))
        assert (answer.status_code, answer.content) == (200, BODY), (data, size)


def test_a_cut_answer_is_never_taken_for_a_complete_one(answering: Any) -> None:
    cut = [data[:end] for data in (LENGTH, CHUNKED) for end in range(0, len(data), 9)]
    no_http = [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", HEAD + b"Content-Length: -4\r\n\r\n"]
    for data in cut + no_http:
        assert trouble(answering(data, 10_000)) == "cut", data


def test_an_answer_is_not_decompressed(answering: Any) -> None:
    """A few bytes may hold gigabytes, and none was asked for."""
    packed = gzip.compress(b"0" * 1_000_000)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    assert post(answering(head + packed, 10_000)).content == packed


def test_retry_after() -> None:
    waits: list[tuple[dict[str, str], float | None]] = [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        *[({"retry-after": odd}, None) for odd in ("soon", "nan", "1e400", "9" * 5000)],
        ({"retry-after": "Wed, 21 Oct 99999 07:28:00 GMT"}, None),
        ({}, None),
    ]
    assert [retry_after(headers) for headers, _ in waits] == [seconds for _, seconds in waits]


ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "body": (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x"),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "rest": (HEAD + b"\r\n", b"x"),
}


@pytest.fixture
def endless() -> Iterator[Any]:
    """`endless(begin, piece, pause)`: a URL whose answer begins so, and then has pieces until
    nobody listens."""
    listener = socket.create_server(("127.0.0.1", 0))

    def start(begin: bytes, piece: bytes, pause: float) -> Any:
        def serve() -> None:
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                receive(peer)
                peer.sendall(begin)
                while True:
                    peer.sendall(piece)
                    time.sleep(pause)

        Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    yield start
    listener.close()


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_answers_are_limited_in_time_and_size(
    endless: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, piece = ENDLESS[name]
    start = time.monotonic()
    assert trouble(endless(begin, piece, 0.02), 0.1) == "timeout"
    assert time.monotonic() - start < 5.0
    monkeypatch.setattr(transport, "MOST_BYTES", 200_000)
    assert trouble(endless(begin.replace(b"1000000", b"200001"), piece * 1000, 0.0), 20.0) == "oversized"


def test_every_answer_of_a_connection_has_its_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_BYTES", 600)
    with servers_of(ChatServer) as start:
        server = start(lambda name, turn, body: said("x" * 100))
        with closing(Client(server.url, "", {}, 0.3)) as client:
            for _ in range(6):
                assert client.post(b'{"messages": [{"content": ""}]}').status_code == 200
                time.sleep(0.3)


def test_a_closed_keepalive_connection_costs_no_answer() -> None:
    """It closes after each answer without a word."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def serve() -> None:
        for _ in range(4):
            peer, _ = listener.accept()
            with peer:
                requests.append(receive(peer))
                peer.sendall(LENGTH)

    Thread(target=serve, daemon=True).start()
    with listener, closing(Client(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "", {}, 5.0)) as client:
        for _ in range(4):
            assert client.post(b"{}").content == BODY
            time.sleep(0.1)
    assert len(requests) == 4


MESSAGE = '{"messages": [{"content": ""}]}'


def ask(server: ChatServer, url: str) -> None:
    with closing(Endpoint(url)) as endpoint:
        reply = endpoint.ask(MESSAGE)
    assert isinstance(reply, Reply) and reply.text == "Fine."


def test_the_key_that_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key none; Azure's also through a proxy, which gets the whole address: no name is
    looked up."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-secret")
    with servers_of(ChatServer) as start:
        plain, proxy = (start(lambda name, turn, body: said("Fine.")) for _ in range(2))
        ask(plain, plain.url)
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        ask(proxy, "http://me.openai.azure.com/openai/deployments/d?api-version=2024-10-21")
    path = "http://me.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21"
    assert plain.keys == {""} and proxy.paths == {path} and proxy.keys == {"Bearer azure-secret"}


def test_an_invalid_proxy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy in ("socks5://me:secret@127.0.0.1:1", "ftp://x:1", "http://[::1"):
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(UserError, match="http_proxy") as caught:
            Endpoint("http://example.org/v1")
        assert "secret" not in str(caught.value)


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


def test_the_key_is_redacted_however_it_is_escaped() -> None:
    redact = redactor("sk-secret/key")
    for echo in ECHOES:
        assert redact(f"key {echo}!") == "key [key]!" and redact(f"{echo}{echo}") == "[key][key]", echo
    assert redact("sk-secret, key") == "sk-secret, key"


def test_short_keys_are_not_redacted_and_redaction_is_fast() -> None:
    assert redactor("EMPTY")("EMPTY") == "EMPTY" and redactor("")("") == ""
    redact = redactor("sk-secret/key")
    for text in ("\\" * 300_000, "sk-secret/ke" * 30_000 + "\\", "&#0" * 100_000, "%73" * 100_000):
        assert redact(text) == text


def test_a_url_is_http_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert "sk-secret" not in repr(Endpoint("http://localhost:1/v1"))
    hosts = ("http://höst/v1", "ftp://x", "http://[::1", "http://host:99999/v1", "http://host:port/v1")
    for url in (*hosts, "http://me:pw@host/v1"):
        with pytest.raises(UserError, match="base_url"):
            Endpoint(url)
