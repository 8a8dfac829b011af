"""The chat client as a critic calls it; tests of `annotate` have what servers may answer
(tests/unit/stages)."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from chat_server import KEY, ChatServer, Reply, error, last_message, said, servers_of
from text2grad.chat import Answer, Completion, EndpointSettings, OpenAIChat, ScriptedChat
from text2grad.chat.asking import global_pause
from text2grad.chat.journal import State
from text2grad.chat.pace import FIRST_PAUSE, Pace, retry_delay
from text2grad.chat.questions import Question
from text2grad.errors import UserError
from text2grad.feedback import Failure, Message


def asked(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def chat_at(url: str, **options: Any) -> OpenAIChat:
    return OpenAIChat(EndpointSettings(model="judge", base_url=url, **options))


def test_answers_come_in_the_order_of_the_questions_and_a_failure_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    odd = {"q3": error(400, "content_filter"), "q5": said("go", "length")}

    def answer(name: str, turn: int, body: dict[str, Any]) -> Reply:
        time.sleep(0.02)
        return odd.get(name, said(f"answer to {name}"))

    with servers_of(ChatServer) as start:
        server = start(answer, last_message)
        with chat_at(server.url, concurrency=4, max_tokens=99, temperature=None) as chat:
            answers = chat.complete([asked(f"q{n}") for n in range(20)])
    # The server counts 1,000 tokens of a word in the prompt, which is not believed.
    usage = {"completion_tokens": 100.0}
    expected = [Completion(text=f"answer to q{n}", usage=usage) for n in range(20)]
    assert isinstance(answers[3], Failure) and answers[3].kind == "refused"
    assert answers[5] == Completion(text="go", usage=usage, truncated=True)
    assert [*answers[:3], answers[4], *answers[6:]] == [*expected[:3], expected[4], *expected[6:]]
    assert 1 < server.most_open <= 4
    assert server.bodies[0]["max_tokens"] == 99 and "temperature" not in server.bodies[0]
    assert server.keys == {f"Bearer {KEY}"}


def test_an_unreachable_server_is_one_line() -> None:
    with chat_at("http://127.0.0.1:9/v1") as chat, pytest.raises(UserError, match=r"127\.0\.0\.1:9"):
        chat.complete([asked("hello")])


def test_scripted_chat_replays_and_records() -> None:
    failure = Failure(kind="refused", message="no")
    chat = ScriptedChat(["yes", failure])
    assert chat.complete([asked("a"), asked("b")]) == [Completion(text="yes"), failure]
    assert chat.asked == [asked("a"), asked("b")]
    with pytest.raises(IndexError):
        chat.complete([asked("c")])
    echo = ScriptedChat(lambda conversation: conversation[-1].content.upper())
    assert echo.complete([asked("a")]) == [Completion(text="A")]


def test_a_question_asked_twice_costs_both_answers(tmp_path: Path) -> None:
    def verdict(question: Question, answer: Answer, last: bool) -> State | None:
        return "ok" if getattr(answer, "text", "") == "good" else None

    with servers_of(ChatServer) as start:
        server = start(lambda _, turn, body: said(["bad", "good"][turn]), last_message)
        settings = EndpointSettings(model="judge", base_url=server.url)
        for _ in range(2):  # the second time from the journal alone
            with OpenAIChat(settings, tmp_path / "answers.jsonl") as chat:
                question = chat.asker.questioner.question(asked("hello"))
                chat.settle([question], verdict)
                paid = chat.paid_answer(question)
            assert paid is not None and paid.usage["completion_tokens"] == 200.0
    assert server.turns["hello"] == 2


def test_after_an_error_the_next_call_asks_again(tmp_path: Path) -> None:
    """A service of critics lives longer than an outage of its server."""
    replies = {"first": error(401), "second": said("fine")}
    with servers_of(ChatServer) as start:
        server = start(lambda text, turn, body: replies[text], last_message)
        with chat_at(server.url) as chat:
            with pytest.raises(UserError, match="401"):
                chat.complete([asked("first")])
            (answer,) = chat.complete([asked("second")])
    assert isinstance(answer, Completion) and answer.text == "fine"


def test_a_free_place_is_given_to_a_thread_that_waits_for_it_and_not_to_a_sleeper() -> None:
    pace = Pace(1)
    assert pace.enter()
    entered = Event()
    Thread(target=pace.sleep, args=(30,), daemon=True).start()
    time.sleep(0.1)
    Thread(target=lambda: pace.enter() and entered.set(), daemon=True).start()
    time.sleep(0.1)
    pace.leave(answered=True)
    is_entered = entered.wait(5)
    pace.stop()
    assert is_entered


def test_a_wait_of_nothing_is_no_pause_for_an_overloaded_server() -> None:
    assert retry_delay(3, 0.0) >= 2 and retry_delay(0, 7.0) >= 7 and global_pause(0.0) == FIRST_PAUSE
