"""Servers that answer in another way than OpenAI: streams, character sets, reasons to end, no
system role."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from chat_server import ChatServer, Reply, completion, error, said, servers_of
from text2grad.chat.base import Completion
from text2grad.chat.client import OpenAIChat
from text2grad.chat.endpoint import Endpoint
from text2grad.chat.reply import Problem
from text2grad.chat.reply import Reply as Answered
from text2grad.chat.settings import EndpointSettings
from text2grad.errors import UserError
from text2grad.feedback import Message

JSON = {"content-type": "application/json"}
Ask = Callable[[Reply], Answered | Problem]
EVENTS = {"content-type": "text/event-stream"}
CAFE = json.dumps(completion("café"), ensure_ascii=False)


@pytest.fixture
def asked() -> Iterator[Ask]:
    """What an endpoint makes of a reply."""
    with servers_of(lambda reply: ChatServer(lambda *_: reply, lambda _: "any")) as start:
        yield lambda reply: ask(start(reply).url)


def ask(url: str) -> Answered | Problem:
    with closing(Endpoint(url)) as endpoint:
        return endpoint.ask("{}")


def events(*data: str, end: str = "data: [DONE]\n\n") -> bytes:
    return (": keep-alive\n\n" + "".join(f"data: {part}\n\n" for part in data) + end).encode()


def chunk(text: str = "", finish: str | None = None, **more: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more})


@pytest.mark.parametrize(
    "reply",
    [
        (
            200,
            EVENTS,
            events(chunk("do"), chunk("ne"), chunk(finish="stop"), chunk(usage={})),
        ),
        (200, JSON, events(chunk("do"), chunk("ne", "stop"), end="")),
        (200, EVENTS, events(json.dumps(completion("done")))),
        (200, JSON, b"\n \n" + said("done")[2]),
    ],
    ids=["chunks", "another content type and no [DONE]", "one event", "empty lines that keep alive"],
)
def test_answers_are_parsed_in_every_format(asked: Ask, reply: Reply) -> None:
    outcome = asked(reply)
    assert isinstance(outcome, Answered) and outcome.text == "done" and not outcome.truncated


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ((200, EVENTS, events(chunk("half"))), "cut"),
        ((200, EVENTS, events('{"choices": [')), "cut"),
        ((200, EVENTS, events('{"error": {"message": "overloaded", "code": 503}}')), "broken"),
        ((200, EVENTS, events('{"choices": ["done"]}')), "broken"),
        ((200, JSON, CAFE.encode("latin-1")), "broken"),
        ((200, {"content-type": "application/json; charset=none"}, CAFE.encode()), "broken"),
    ],
    ids=[
        "no reason to end",
        "half an event",
        "an error among the events",
        "a chunk of another shape",
        "bytes that are not UTF-8",
        "no such character set",
    ],
)
def test_an_incomplete_answer_is_a_problem(asked: Ask, reply: Reply, kind: str) -> None:
    outcome = asked(reply)
    assert isinstance(outcome, Problem) and outcome.kind == kind and outcome.may_cost


def test_the_declared_character_set_is_used(asked: Ask) -> None:
    outcome = asked((200, {"content-type": "application/json; charset=ISO-8859-1"}, CAFE.encode("latin-1")))
    assert isinstance(outcome, Answered) and outcome.text == "café"


@pytest.mark.parametrize(
    ("finish", "truncated", "refused"),
    [("MAX_TOKENS", True, False), ("SAFETY", False, True), ("Length", True, False), ("STOP", False, False)],
)
def test_finish_reasons_of_other_vendors_are_recognised(
    asked: Ask, finish: str, truncated: bool, refused: bool
) -> None:
    outcome = asked(said("done", finish))
    assert isinstance(outcome, Answered) and (outcome.truncated, bool(outcome.refusal)) == (truncated, refused)


def test_a_model_without_a_system_role_gets_its_text_in_the_first_message() -> None:
    def answer(_: str, turn: int, body: dict[str, Any]) -> Reply:
        roles = [message["role"] for message in body["messages"]]
        return error(400, message="System role not supported") if "system" in roles else said("done")

    turns = [Message(role="system", content="Be strict."), Message(role="user", content="Judge.")]
    with servers_of(lambda: ChatServer(answer, lambda _: "any")) as start:
        server = start()
        with OpenAIChat(EndpointSettings(model="judge", base_url=server.url)) as chat:
            first, second, _ = chat.complete([turns, [turns[0], Message(role="user", content="Again.")], turns[:1]])
    assert isinstance(first, Completion) and isinstance(second, Completion)
    assert [len(body["messages"]) for body in server.bodies] == [2, 1, 1, 1]  # refused once, remembered
    shown = {body["messages"][0]["content"] for body in server.bodies[2:]}
    assert shown == {"Be strict.\n\nAgain.", "Be strict."}
    assert all(body["stream"] is False for body in server.bodies)


@pytest.mark.parametrize(
    ("reply", "setting"),
    [
        ((404, JSON, b'{"detail": "Not Found"}'), "base_url"),
        ((404, {}, b"404 page not found"), "base_url"),
        ((200, JSON, b'{"error": "Unexpected endpoint or method. (POST /chat/completions)"}'), "base_url"),
        ((404, JSON, b'{"error": {"message": "model \'judge\' not found", "type": "api_error"}}'), "model"),
    ],
)
def test_a_missing_path_is_not_a_missing_model(asked: Ask, reply: Reply, setting: str) -> None:
    outcome = asked(reply)
    assert isinstance(outcome, Problem) and outcome.kind == "fatal" and setting in outcome.cure.split(" and ")[0]


def test_the_path_of_a_request_is_not_a_base_url() -> None:
    with pytest.raises(UserError) as caught:
        Endpoint("http://localhost:8000/v1/chat/completions")
    assert "http://localhost:8000/v1" in str(caught.value) + str(caught.value.cure)


def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    problem = ask("http://judge.example/v1")
    assert isinstance(problem, Problem) and problem.kind == "unreachable" and "http_proxy" in problem.cure
