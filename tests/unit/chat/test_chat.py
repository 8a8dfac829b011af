"""The chat client against a scripted local server: retries, typed failures, and the user's mistakes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from chat_server import KEY, ChatServer, Reply, error, escaped, in_turn, last_message, said, said_with, servers_of
from text2grad.chat import Answer, Completion, EndpointSettings, OpenAIChat, ScriptedChat, asking, endpoint
from text2grad.critics.prompted import PromptedCritic
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Failure, Message, Source

USAGE = {"completion_tokens": 100.0}
"""What is believed of what the server counts: not 1,000 tokens of a word."""


def asked(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def chat_at(url: str | None, **options: Any) -> OpenAIChat:
    return OpenAIChat(EndpointSettings(model="judge", base_url=url, **options))


class Server(ChatServer):
    """Answers the n-th request for a text with the n-th reply scripted for it (the last one repeats)."""

    def __init__(self, script: dict[str, Sequence[Reply]], delay: float = 0.0) -> None:
        def answer(text: str, turn: int, body: dict[str, Any]) -> Reply:
            time.sleep(delay)
            return in_turn(script[text], turn)

        super().__init__(answer, last_message)

    def chat(self, **options: Any) -> OpenAIChat:
        return chat_at(self.url, **options)


@pytest.fixture(autouse=True)
def planted_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(asking, "RETRIES", 3)
    monkeypatch.setattr(endpoint, "TIMEOUT", 5.0)


@pytest.fixture
def serve() -> Iterator[Any]:
    with servers_of(lambda delay=0.0, **script: Server(script, delay)) as start:
        yield start


def one(server: Server, **options: Any) -> Answer:
    with server.chat(**options) as chat:
        (answer,) = chat.complete([asked("hello")])
    return answer


def test_answers_come_in_the_order_of_the_questions(serve: Any) -> None:
    server = serve(0.02, **{f"q{n}": [said(f"a{n}")] for n in range(20)})
    with server.chat(concurrency=4, max_tokens=99, temperature=None) as chat:
        answers = chat.complete([asked(f"q{n}") for n in range(20)])
    assert [a.text for a in answers] == [f"a{n}" for n in range(20)]
    assert answers[0].usage == USAGE
    assert 1 < server.most_open <= 4
    assert server.bodies[0]["max_tokens"] == 99 and "temperature" not in server.bodies[0]
    assert server.keys == {f"Bearer {KEY}"}


def test_too_many_requests_waits_as_long_as_the_server_says_and_then_gives_one_answer(serve: Any) -> None:
    slow = (429, {"retry-after": "1"}, error(429, "rate_limit_exceeded", "slow down")[2])
    server = serve(hello=[slow, error(429), error(429), said("done")])
    start = time.monotonic()
    assert one(server) == Completion(text="done", usage=USAGE)
    assert time.monotonic() - start >= 1.0
    assert len(server.bodies) == 4


def test_server_errors_until_the_last_retry_are_a_typed_failure_of_that_conversation_only(serve: Any) -> None:
    server = serve(bad=[error(500)], good=[said("fine")])
    with server.chat() as chat:
        bad, good = chat.complete([asked("bad"), asked("good")])
    assert isinstance(bad, Failure) and bad.kind == "exhausted"
    assert isinstance(good, Completion) and good.text == "fine"
    assert sum(last_message(request) == "bad" for request in server.bodies) == 4


def test_nobody_listens() -> None:
    with chat_at("http://127.0.0.1:9/v1") as chat, pytest.raises(UserError, match=r"127\.0\.0\.1:9"):
        chat.complete([asked("hello")])


FAILURES: list[tuple[Reply, str, int]] = [
    (said(None, refusal="I would rather not"), "refused", 1),
    (said("I ca", "content_filter"), "refused", 1),
    (error(400, "content_filter"), "refused", 1),
    (error(400, "context_length_exceeded", "too long"), "unsupported", 1),
    ((200, {}, b'{"id": "1", "object": "chat.completion", "choices": []}'), "exhausted", 2),
    ((200, {}, b'{"choices": ' + b"[" * 3000), "invalid", 1),
    ((429, {"retry-after": "36000"}, b"{}"), "exhausted", 1),
]
"""Replies, the failures that they are, and how often each is asked for."""


def test_what_is_no_answer_is_a_typed_failure(serve: Any) -> None:
    for reply, kind, requests in FAILURES:
        server = serve(hello=[reply])
        answer = one(server)
        assert isinstance(answer, Failure) and answer.kind == kind, (reply, answer)
        assert len(server.bodies) == requests, reply


def test_odd_counts_and_contents_are_answers(serve: Any) -> None:
    odd = said_with("ok", {"prompt_tokens": 10**400, "completion_tokens": float("nan")})
    for reply in (odd, said([{"type": "text"}])):  # type: ignore[arg-type]
        answer = one(serve(hello=[reply]))
        assert isinstance(answer, Completion) and answer.usage in ({}, USAGE)


def test_an_answer_cut_at_the_limit_says_so(serve: Any) -> None:
    answer = one(serve(hello=[said('{"critique": "go', "length")]))
    assert isinstance(answer, Completion) and answer.truncated


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (error(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"), "refused the key"),
        (error(403), "refused the key"),
        (error(404, "model_not_found"), "has no such model"),
        (error(429, "insufficient_quota", "You exceeded your current quota"), "quota"),
    ],
)
def test_a_mistake_that_would_fail_every_conversation_stops_at_once(serve: Any, reply: Reply, words: str) -> None:
    server = serve(**{f"q{n}": [reply] for n in range(50)})
    with server.chat(concurrency=2) as chat, pytest.raises(UserError, match=words) as caught:
        chat.complete([asked(f"q{n}") for n in range(50)])
    assert KEY not in str(caught.value)
    assert len(server.bodies) < 10, "requests that had not started are not sent, and none is repeated"


def test_no_key_for_openai_itself_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        chat_at(None)


def test_scripted_chat_plays_back_and_remembers() -> None:
    failure = Failure(kind="refused", message="no")
    chat = ScriptedChat(["yes", failure])
    assert chat.complete([asked("a"), asked("b")]) == [Completion(text="yes"), failure]
    assert chat.asked == [asked("a"), asked("b")]
    with pytest.raises(IndexError):
        chat.complete([asked("c")])
    echo = ScriptedChat(lambda conversation: conversation[-1].content.upper())
    assert echo.complete([asked("a")]) == [Completion(text="A")]


ECHOES = [
    KEY,
    escaped(KEY),
    KEY.replace("-", "\\u002d"),
    f"\\\\{KEY[0]}{KEY[1:]}",
    escaped(KEY).replace("\\", "\\\\"),
]


@pytest.mark.parametrize("echo", ECHOES)
def test_a_critic_of_the_training_loop_never_tells_the_key(serve: Any, echo: str) -> None:
    z = f'{{"critique": "Your key is {echo}.", "good_spans": [], "poor_spans": []}}'
    raw = said("KEY")[2].replace(b"KEY", echo.encode())
    server = serve(
        said=[said(z)],
        raw=[(200, {}, raw)],
        refused=[said(None, refusal=f"not with {echo}")],
        unfit=[error(400, "invalid", f"bad key {echo}")],
        cut=[(200, {}, f"<html>{echo}".encode())],
    )
    names = ["said", "raw", "refused", "unfit", "cut"]
    with server.chat() as chat:
        answers = chat.complete([asked(name) for name in names])
        source = Source(kind="llm", model="judge")
        critic = PromptedCritic(chat, "=== user ===\n{{prompt}}{{response}}", source)
        (critique,) = critic.critique([Example(id="1", prompt=tuple(asked("said")))], [""])
    assert isinstance(critique, Critique) and "[key]" in critique.text
    for answer in [*answers, critique]:
        assert KEY not in answer.model_dump_json() and KEY not in str(answer)
    assert "[key]" in answers[0].model_dump_json() and "[key]" in answers[2].model_dump_json()


def test_half_a_surrogate_pair_is_sent_as_a_question_mark(serve: Any) -> None:
    server = serve(**{"half ? a pair": [said("fine")]})
    with server.chat() as chat:
        (answer,) = chat.complete([asked("half \ud83d a pair")])
    assert isinstance(answer, Completion)
