"""Twenty answers of a policy are marked in the browser, one command trains on them, and it scores
higher."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from when_task import THINGS, question

from browser_pages import serving, until
from text2grad.jsonl import read_records
from text2grad.page.mark import MarkPage

ANSWERS = 20
HERE = Path(__file__).parent
PROGRAM = f"import sys; sys.path.append({str(HERE)!r}); from text2grad.cli import main; main()"
SETTINGS = (
    *("--task.name", "when_task:WhenTask", "--run.threads", "1", "--generation.max_new_tokens", "12"),
    *("--tiny.vocabulary", "300", "--sft.epochs", "60", "--sft.batch_size", "10", "--sft.lr", "1e-2"),
    *("--evaluate.samples", "8", "--evaluate.limit", "8"),
)
LEARNING = ("--offline.epochs", "6", "--offline.lr", "3e-3", "--offline.batch_size", "4")


def command(*words: str) -> dict[str, Any]:
    """The summary of a command."""
    asked = [sys.executable, "-c", PROGRAM, *words, "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A policy that imitates right and wrong answers alike, and answers of it in
    `answers.jsonl`."""
    folder = tmp_path / "run"
    command("sft", "--run.folder", str(folder), *SETTINGS)
    prompts = [{"id": thing, "prompt": question(thing)} for thing in THINGS["train"]]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    asked = ("--prompts", str(tmp_path / "prompts.jsonl"), "--with", "sft", "-k", "2")
    command("sample", *asked, "--out", str(folder / "answers.jsonl"), "--run.folder", str(folder))
    return folder


def mark(tab: Any, right: bool) -> None:
    """Two spans and a verdict, by keyboard: `It is due` is good, and when is good or poor."""
    for key in ("Home", "Shift+ArrowRight", "Shift+ArrowRight", "g", "Enter", "ArrowRight", "Shift+ArrowRight"):
        tab.keyboard.press(key)
    tab.keyboard.press("g" if right else "p")
    tab.keyboard.type("the mail says so" if right else "the mail says Friday")
    tab.keyboard.press("Enter")
    tab.keyboard.press("5" if right else "1")


def test_what_is_marked_in_the_browser_trains(tab: Any, run: Path) -> None:
    source = run / "answers.jsonl"
    answers = read_records(source)
    assert len(answers) == ANSWERS
    with serving(partial(MarkPage, source, None, "ann", False)) as server:
        tab.goto(server.url)
        for number, record in enumerate(answers):
            tab.get_by_role("heading", name=f"{number + 1} of {ANSWERS} · ").wait_for()
            mark(tab, "on Friday" in record.response)
            until(tab, "document.getElementById('saved').textContent === 'saved'")
            if number < ANSWERS - 1:
                tab.keyboard.press("j")
        told = tab.locator(".loop code").all_text_contents()[0]
    marked = read_records(run / "answers.marked.jsonl")
    assert len(marked) == ANSWERS and all(len(record.spans) == 2 for record in marked)
    program, *words = shlex.split(told)
    assert program == "text2grad"
    config = ("--config", str(run / "config.yaml"))
    before = command("evaluate", "sft", *config)
    command(*words, *LEARNING)
    after = command("evaluate", "offline", *config)
    assert after["sampled_right"] > before["sampled_right"], (before, after)
