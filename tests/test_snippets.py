"""Python blocks of pages that no other test runs, with values for the variables they leave open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from blocks import fenced
from chat_server import ChatServer, said
from places import ROOT
from text2grad.align.rewards import TokenCredit
from text2grad.critics.served import ServedCritic


def blocks_of(page: str) -> list[str]:
    return fenced((ROOT / "docs" / page).read_text("utf-8"), "python")


def test_the_served_critic_of_the_serving_page(tokenizer: Tokenizer) -> None:
    [block] = blocks_of("serving.md")
    space: dict[str, object] = {"TokenCredit": TokenCredit, "ServedCritic": ServedCritic, "tokenizer": tokenizer}
    exec(compile(block, "docs/serving.md", "exec"), space)
    assert isinstance(space["credit"], TokenCredit)


def test_the_prompt_of_the_extension_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = blocks_of("extend.md")
    space: dict[str, object] = {"text": "Judge {{response}}.", "words_schema": {}, "parse_words": len}
    exec(compile(block, "docs/extend.md", "exec"), space)
    assert space["WORDS"].text == "Judge {{response}}."  # type: ignore[attr-defined]


def test_the_check_of_a_server_on_the_deployment_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = blocks_of("deploy.md")
    rows = [
        {
            "prompt": [{"role": "user", "content": word}],
            "answers": [{"name": "SFT", "response": "no"}, {"name": "offline", "response": f"{word}!"}],
        }
        for word in ("one", "two", "three")
    ]
    file = tmp_path / "runs" / "mine" / "before_after.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    server = ChatServer(
        lambda name, turn, body: said("two!" if name == "two" else "one!"),
        name=lambda body: str(body["messages"][-1]["content"]),
    )
    try:
        exec(compile(block.replace("http://localhost:8000/v1", server.url), "docs/deploy.md", "exec"), {})
    finally:
        server.close()
    assert {body["temperature"] for body in server.bodies} == {0}
    assert capsys.readouterr().out == "2 of 3 answers are equal\n"
