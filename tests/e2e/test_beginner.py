"""Mistakes a beginner makes: each ends in one line with the cure and the right exit code, and writes nothing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from commands import TOY, Command
from test_bad_input import FAILED, contents, one_line

FILES = {
    "rows.jsonl": "".join(f'{{"prompt": "ask {n}", "response": "say {n}"}}\n' for n in range(13)),
    "questions.jsonl": "".join(f'{{"prompt": "question {number}"}}\n' for number in range(13)),
    "keys.jsonl": '{"q": "a"}\n',
    "empty.jsonl": "",
}
MISTAKES = [
    ("train --run.folder {run} --critic.kind program --task.name qa --task.data rows.jsonl", "no prompt has tests"),
    ("annotate --run.folder {run} --annotate.critic program --task.name qa --task.data rows.jsonl", "has tests"),
    (
        "train --run.folder {run} --critic.kind reference --task.name qa --task.data questions.jsonl",
        "reference answer",
    ),
    ("sft --run.folder {run}", "--restart"),
    ("evaluate ok.jsonl --run.folder {run}", "known: sft, text2grad"),
    ("merge nosuch --run.folder {run} --out o", "no policy 'nosuch'"),
    ("sample hi --with nosuch --run.folder {run}", "known: sft"),
    ("sample --prompts keys.jsonl --run.folder {run}", "no 'prompt'"),
    ("sample --prompts empty.jsonl --run.folder {run}", "has no prompts"),
    ("sample hi --run.folder {run} --critique --critic.kind program", "no prompt has tests"),
]
"""Mistakes beside a finished run, and a part of what is said; golden/test_messages.py has those without one."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of a beginner, which is the current one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_mistake_beside_a_run_is_one_line_and_writes_nothing(
    command: Command, finished: Path, place: Path
) -> None:
    before = contents(place), contents(finished)
    for line, said in MISTAKES:
        words = line.format(run=finished).split()
        toy = TOY if words[0] in ("sft", "train") and "qa" not in words else ()
        ended = command(words[0], *toy, *words[1:])
        one_line(ended, FAILED, said)
        assert len(ended.err.splitlines()) == 1, line
    assert (contents(place), contents(finished)) == before


def test_a_mistyped_model_without_a_network_is_told_at_once(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for name in ("https_proxy", "http_proxy", "all_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    words = ("sft", "--run.folder", "new", "--policy.model")
    one_line(command(*words, "owner/no-such-model"), FAILED, "'owner/no-such-model'", "no network to")
    one_line(command(*words, "smolm2"), FAILED, "did you mean smollm2?")
    assert not Path("new").exists()


def test_questions_and_answers_in_plain_text_are_imitated(command: Command, place: Path) -> None:
    Path("answers.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Say {n}.", "response": f"It is {n}."}) + "\n" for n in range(12))
    )
    tiny = (*TOY, "--task.name", "qa", "--sft.epochs", "1", "--run.folder", "new")
    ended = command("sft", *tiny, "--task.data", "answers.jsonl", "--task.heldout_share", "0", "--json")
    assert ended.code == 0 and json.loads(ended.out.splitlines()[-1])["examples"] == 12
