"""A signal while requests are open: what is paid for is awaited as long as that is worth it, and
kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from chat_server import KEY, ChatServer, Reply, last_message, said
from text2grad.chat import EndpointSettings, OpenAIChat
from text2grad.feedback import Message
from text2grad.signals import Stopped, StopRequest

QUESTIONS = [[Message(role="user", content=f"q{n}")] for n in range(6)]


class Signalling(ChatServer):
    """Sends this process a signal when the second question is open; answers it when `late` is
    set."""

    def __init__(self) -> None:
        self.late = Event()
        self.signals = True

        def answer(text: str, turn: int, body: dict[str, Any]) -> Reply:
            if text == "q1" and self.signals:
                self.signals = False
                os.kill(os.getpid(), signal.SIGINT)
                self.late.wait(20)
            return said(f"answer to {text}")

        super().__init__(answer, last_message)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signalling]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made = Signalling()
    yield made
    made.late.set()
    made.close()


def ask(server: Signalling, journal: Path) -> tuple[list[str], dict[str, float | None]]:
    settings = EndpointSettings(model="gpt-4o-mini", base_url=server.url, concurrency=1)
    with OpenAIChat(settings, journal) as chat:
        texts = [getattr(answer, "text", "") for answer in chat.complete(QUESTIONS)]
        return texts, chat.tally(())


def test_open_answers_are_kept_and_not_asked_again(
    server: Signalling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OpenAIChat, "_stop", released(server, OpenAIChat._stop))
    with pytest.raises(KeyboardInterrupt):
        ask(server, tmp_path / "journal")
    assert "waiting for open requests" in capsys.readouterr().err
    assert dict(server.turns) == {"q0": 1, "q1": 1}
    texts, tally = ask(server, tmp_path / "journal")
    assert texts == [f"answer to q{n}" for n in range(6)]
    assert set(server.turns.values()) == {1} and tally["usd_without_answer"] == 0


def released(server: Signalling, stop: Any) -> Any:
    """The server answers only once the client has heard of the signal."""

    def heard(*given: Any) -> Any:
        server.late.set()
        return stop(*given)

    return heard


def test_a_slow_answer_is_abandoned_and_counted_at_its_maximum_price(server: Signalling, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), StopRequest(patience=0.3):
        with pytest.raises(Stopped):
            ask(server, tmp_path / "journal")
        assert dict(server.turns) == {"q0": 1, "q1": 1}
    server.late.set()
    texts, tally = ask(server, tmp_path / "journal")
    assert texts == [f"answer to q{n}" for n in range(6)]
    assert server.turns["q1"] == 2 and server.turns["q0"] == 1
    assert tally["usd_without_answer"] is not None and tally["usd_without_answer"] > 0
