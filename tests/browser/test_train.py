"""Twenty answers of a policy are marked in the browser, one command trains on them, and it scores higher."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from browser_pages import serving, until
from places import ROOT
from text2grad.feedback import read_records
from text2grad.page.mark import mark_page

sys.path.append(str(ROOT / "tests" / "e2e"))

from commands import TOY
from toy_task import FUNCTIONS

ANSWERS = 20
PROGRAM = "from text2grad.cli import main; main()"
LEARNING = ("--offline.epochs", "12", "--offline.lr", "3e-3", "--offline.batch_size", "4")


def command(*words: str) -> dict[str, Any]:
    """The summary of a command."""
    path = f"{ROOT / 'tests' / 'e2e'}"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({path!r}); {PROGRAM}", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A policy that imitates right and wrong functions alike, and its answers in `answers.jsonl`."""
    folder = tmp_path / "run"
    settings = ("--run.folder", str(folder), *TOY)
    command("sft", *settings)
    prompts = [{"id": f"p{n}", "prompt": f"Write f(x): {words}."} for n, words in enumerate(FUNCTIONS)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    asked = ("--prompts", str(tmp_path / "prompts.jsonl"), "--with", "sft", "-k", "3")
    command("sample", *asked, "--out", str(folder / "answers.jsonl"), "--run.folder", str(folder))
    return folder


def is_right(prompt: str, response: str) -> bool:
    """Whether a person who can program would call the function right."""
    words = prompt.removeprefix("Write f(x): ").removesuffix(".")
    return response.strip().endswith(f"return {FUNCTIONS[words][0]}")


def mark(tab: Any, right: bool) -> None:
    """Two spans and a verdict, by keyboard: the head is good, and what is returned is good or poor."""
    for key in ("Home", *["Shift+ArrowRight"] * 5, "g", "Enter", "ArrowRight", "ArrowRight", "Shift+End"):
        tab.keyboard.press(key)
    tab.keyboard.press("g" if right else "p")
    tab.keyboard.type("as asked" if right else "not what was asked")
    tab.keyboard.press("Enter")
    tab.keyboard.press("5" if right else "1")


def test_what_is_marked_in_the_browser_trains(tab: Any, run: Path) -> None:
    source = run / "answers.jsonl"
    with serving(partial(mark_page, source, None, "ann", False)) as server:
        tab.goto(server.url)
        for number, record in enumerate(read_records(source)[:ANSWERS]):
            tab.get_by_role("heading", name=record.id, exact=True).wait_for()
            mark(tab, is_right(record.prompt[-1].content, record.response))
            until(tab, "document.getElementById('saved').textContent === 'saved'")
            if number < ANSWERS - 1:
                tab.keyboard.press("j")
        told = tab.locator(".loop code").all_text_contents()[0]
    marked = read_records(run / "answers.marked.jsonl")
    assert len(marked) == ANSWERS and all(len(record.spans) == 2 for record in marked)
    program, *words = shlex.split(told)
    assert program == "text2grad"
    settings = ("--config", str(run / "config.yaml"), "--evaluate.samples", "8", "--evaluate.limit", "8")
    before = command("evaluate", "sft", *settings)
    command(*words, *LEARNING)
    after = command("evaluate", "offline", *settings)
    assert after["sampled_pass"] > before["sampled_pass"], (before, after)
