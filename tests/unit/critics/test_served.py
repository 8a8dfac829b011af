"""A critic behind HTTP says what it says in this process, and what fails there is a failure
here."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Timer
from typing import Any

import httpx2
import numpy as np
import pytest

from chat_server import ChatServer, Reply, ok
from serving import served
from text2grad.critics import served as client_side
from text2grad.critics import service as server_side
from text2grad.critics.served import ServedCritic
from text2grad.errors import UserError
from text2grad.feedback import (
    Critique,
    Example,
    Failure,
    Judgement,
    Message,
    QuoteCounts,
    Source,
    Span,
    Transcript,
)

SPAN = Span(start=0, end=1, label=-1, text="a", reason="why", weight=0.5)
RICH = Critique(
    text="Ünïcode \ud800 \u2028",
    spans=(SPAN,),
    score=0.1 + 0.2,
    turn_scores=(0.5, None),
    quotes=QuoteCounts(unmatched=2, foreign=1),
    forced=1,
    lost=("x",),
    omissions=("y",),
    meta={"outcome": "failed", "numbers": [1, 2.5]},
)
FAILED = Failure(kind="truncated", message="cut", raw="{", meta={"unmatched": 3})
TALK = Transcript.of(
    [((Message(role="user", content="go"),), "ab"), ((), ""), ((Message(role="tool", content="ok"),), "c")],
    after=[Message(role="tool", content="end")],
)


class Scripted:
    """Answers by a function, after a pause, and remembers what it was asked."""

    source = Source(kind="reward_model", model="scripted", prompt_version="7")
    tokens = 12.0

    def __init__(self, answer: Callable[[Example, str], Any] = lambda *_: RICH, seconds: float = 0.0) -> None:
        self.answer, self.seconds = answer, seconds
        self.asked: list[list[tuple[Example, str]]] = []

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        self.asked.append(list(zip(examples, responses, strict=True)))
        time.sleep(self.seconds)
        return [self.answer(*pair) for pair in self.asked[-1]]


def example(id: str, **more: Any) -> Example:
    return Example(id=id, prompt=(Message(role="user", content="Why?"),), **more)


def asked(critic: ServedCritic, *responses: str) -> list[Judgement]:
    return critic.critique([example(str(n)) for n in range(len(responses))], responses)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_side, "RETRY_DELAYS", (0.2, 0.2))


def no_server() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_questions_and_judgements_arrive_as_they_are() -> None:
    critic = Scripted(lambda example, response: FAILED if example.id == "b" else RICH)
    examples = [example("a", reference=TALK, meta={"tests": "\ud800", "n": [1, None, 0.1]}), example("b")]
    with served(critic) as url:
        client = ServedCritic(url)
        assert client.critique(examples, [TALK, "plain \ud800"]) == critic.critique(
            examples, [TALK, "plain \ud800"]
        )
        failure = client.critique(examples, ["", ""])[1]
        assert client.source == critic.source and client.critique([], []) == []
    assert isinstance(failure, Failure) and failure.meta == FAILED.meta
    there, here = critic.asked[0], critic.asked[1]
    assert there == here and isinstance(there[0][1], Transcript) and there[0][0].reference == TALK


def test_requests_are_merged_while_the_critic_is_busy() -> None:
    critic = Scripted(seconds=0.3)
    with served(critic) as url, ThreadPoolExecutor(9) as pool:
        clients = [ServedCritic(url) for _ in range(8)]
        assert {client.source for client in clients} == {critic.source}  # they are connected
        first = pool.submit(asked, clients[0], "first")
        time.sleep(0.15)
        others = [pool.submit(asked, client, "one", "two") for client in clients]
        assert {len(other.result()) for other in others} == {2} and len(first.result()) == 1
    assert [len(batch) for batch in critic.asked] == [1, 16]


def test_a_token_is_asked_for_and_a_browser_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Scripted(), token="sesame") as url:
        assert len(asked(ServedCritic(url, "sesame"), "a")) == 1
        for wrong in ("", "sesam", "sesamee", "Sesame"):
            with pytest.raises(UserError, match="TEXT2GRAD_TOKEN"):
                asked(ServedCritic(url, wrong), "a")
        monkeypatch.setenv("TEXT2GRAD_TOKEN", "sesame")
        assert ServedCritic(url).source == Scripted.source
        for path in ("critique", "health", "metrics", "nothing"):
            assert httpx2.get(f"{url}/{path}").status_code == 401
        monkeypatch.setenv("TEXT2GRAD_TOKEN", "sesame\n")
        with pytest.raises(UserError, match="invalid in a header"):
            ServedCritic(url)
    with served(Scripted()) as url:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "[::"}):
            assert httpx2.get(f"{url}/health", headers=headers).status_code == 403
        assert httpx2.get(f"{url}/health", headers={"Host": "localhost:1"}).status_code == 200


GOOD = {"id": "a", "prompt": [{"role": "user", "content": "Why?"}]}
BAD: list[tuple[bytes, str]] = [
    (b"", "Expecting value"),
    (b"\xff", "utf-8"),
    (b"[" * 5000, "nested"),
    (b"[]", "valid dictionary or instance of Batch"),
    (json.dumps({"examples": [GOOD], "responses": []}).encode(), "1 examples for 0 responses"),
    (json.dumps({"examples": [{**GOOD, "id": 1}], "responses": ["x"]}).encode(), "examples.0.id"),
    (json.dumps({"examples": [GOOD], "responses": [[]]}).encode(), "responses.0"),
    (json.dumps({"examples": [GOOD], "responses": ["x"], "more": 1}).encode(), "more"),
    (json.dumps({"examples": [GOOD] * 1025, "responses": ["x"] * 1025}).encode(), "1024"),
]


@pytest.fixture(scope="module")
def address() -> Any:
    with served(Scripted()) as url:
        yield url


@pytest.mark.parametrize(("body", "words"), BAD)
def test_a_bad_body_is_one_line(address: str, body: bytes, words: str) -> None:
    answer = httpx2.post(f"{address}/critique", content=body)
    assert answer.status_code == 422 and words in answer.json()["error"] and "\n" not in answer.json()["error"]


def test_a_body_that_is_too_long_or_too_slow_is_not_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side, "MAX_BYTES", 1000)
    monkeypatch.setattr(server_side, "BODY_SECONDS", 0.3)
    for content in (b"x" * 1001, iter([b"x" * 600] * 2)):
        assert httpx2.post(f"{address}/critique", content=content).status_code == 413
    port = int(address.rpartition(":")[2])
    with closing(socket.create_connection(("127.0.0.1", port))) as slow:
        slow.sendall(b"POST /critique HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_what_the_critic_cannot_do_fails_alone_and_a_mistake_of_its_set_up_ends_the_run() -> None:
    def answer(example: Example, response: str) -> Any:
        if response == "raise":
            raise RuntimeError("no")
        if response == "meta":
            return RICH.model_copy(update={"meta": {"array": np.zeros(2), "object": object()}})
        return None if response == "none" else RICH

    with served(Scripted(answer)) as url:
        kinds = [
            getattr(judgement, "kind", "ok")
            for judgement in asked(ServedCritic(url), *["raise", "meta", "none", "a"])
        ]
        assert kinds == ["exhausted", "invalid", "invalid", "ok"]

    def broke(example: Example, response: str) -> Any:
        raise UserError("the budget of 1 USD is reached", "raise it")

    with served(Scripted(broke)) as url:
        for _ in range(2):
            with pytest.raises(UserError, match="budget of 1 USD is reached"):
                asked(ServedCritic(url), "a")


def test_metrics_count_requests_failures_and_seconds() -> None:
    critic = Scripted(lambda example, response: FAILED if response == "b" else RICH, seconds=0.1)
    with served(critic) as url:
        asked(ServedCritic(url), "a", "b", "b")
        httpx2.post(f"{url}/critique", content=b"?")
        text = httpx2.get(f"{url}/metrics").text
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    seconds = float(samples.pop("text2grad_serve_seconds_total"))
    assert 0.1 < seconds < 5
    assert samples == {
        'text2grad_serve_requests_total{status="200"}': "1",
        'text2grad_serve_requests_total{status="422"}': "1",
        'text2grad_serve_failures_total{kind="truncated"}': "2",
        "text2grad_serve_responses_total": "3",
        "text2grad_serve_tokens_total": "12.0",
    }


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_not_there_fails_every_response_and_may_come_later() -> None:
    url = no_server()
    client = ServedCritic(url)
    judgements = asked(client, "a", "b")
    assert [judgement.kind for judgement in judgements if isinstance(judgement, Failure)] == ["exhausted"] * 2
    with pytest.raises(UserError, match="text2grad serve FOLDER"):
        _ = client.source
    port = int(url.rpartition(":")[2])
    late = Timer(0.1, lambda: stack.enter_context(served(Scripted(), port=port)))
    with ExitStack() as stack:
        late.start()
        assert asked(client, "a") == [RICH]
        late.join()


@pytest.mark.usefixtures("quick")
def test_other_answers_are_told_apart() -> None:
    judgement = json.loads(client_side.dump_judgements([RICH]))["judgements"]

    def answered(reply: Reply) -> list[Judgement]:
        server = Other(reply)
        with closing(server):
            return asked(ServedCritic(server.url.removesuffix("/v1")), "a", "b")

    for body in ({}, {"judgements": judgement}, {"judgements": [1, 2]}, {"judgements": None}, []):
        assert {getattr(item, "kind", "ok") for item in answered(ok(body))} == {"invalid"}, body
    assert {getattr(item, "kind", "ok") for item in answered((503, {}, b"busy"))} == {"exhausted"}
    for status in (302, 404, 200 + 4):
        with pytest.raises(UserError, match="is not text2grad serve"):
            answered((status, {"location": "http://127.0.0.1:9/"}, b"<html>"))
    with pytest.raises(UserError, match="same version"):
        answered((422, {}, b'{"error": "more: Extra inputs"}'))


class Other(ChatServer):
    """A server that answers every request alike."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(lambda *_: reply)
        self._reply = reply

    def service(self, path: str, data: bytes) -> Reply:
        return self._reply


def test_a_long_request_is_split_and_only_what_fits_nowhere_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    critic = Scripted(lambda example, response: Critique(text=response[:3]))
    monkeypatch.setattr(client_side, "MAX_BYTES", 4000)
    monkeypatch.setattr(server_side, "MAX_BYTES", 4000)
    monkeypatch.setattr(client_side, "MAX_RESPONSES", 3)
    responses = ["aaa", "b" * 3000, "c" * 3000, "d" * 5000, "eee", "fff", "ggg", "hhh"]
    with served(critic) as url:
        judgements = asked(ServedCritic(url), *responses)
    texts = [item.text if isinstance(item, Critique) else item.kind for item in judgements]
    assert texts == ["aaa", "bbb", "ccc", "unsupported", "eee", "fff", "ggg", "hhh"]
    assert [len(batch) for batch in critic.asked] == [1, 1, 1, 2, 2]


def test_an_example_that_json_cannot_hold_is_named(address: str) -> None:
    with pytest.raises(UserError, match="example 'odd'"):
        ServedCritic(address).critique([example("odd", meta={"image": object()})], ["a"])


@pytest.mark.parametrize("url", ["http://", "http://a:0", "http://a/path", "http://u:p@a", "a:80", "http://a?b"])
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        ServedCritic(url)
