"""Take the pictures of docs/marking.md: a run as `view` shows it, and answers as `mark` does.

    python tests/browser/pictures.py runs/quick [--name text2grad] [--out docs/figures]

Needs Chromium and Playwright (`make test-page` brings the latter). `view.png` is of the last sample
of the run with both good and poor spans, `mark.png` of the same answer in the annotation page, its
poor words marked. The last line of stdout is one JSON object: the files, and their bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browser_pages import chromium, missing, serving, until
from text2grad.errors import exit_on_user_error
from text2grad.page.mark import MarkPage
from text2grad.page.view import ViewPage
from text2grad.unicode_words import units

SIZE = {"width": 1280, "height": 800}
READY = "document.getElementById('sample').textContent.length > 100"


def chosen(run: Path, name: str) -> int:
    """The line of the last sample that was learned from, where both good and poor words are
    marked."""
    lines = (run / "ppo" / name / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    labels = [set() if row.get("probe") else {span["label"] for span in row["spans"]} for row in rows]
    both = [number for number, each in enumerate(labels) if {1, -1} <= each]
    return both[-1] if both else len(rows) - 1


def picture(browser: Any, make: Any, act: Any, file: Path) -> None:
    """A page after `act`, as a file."""
    with serving(make) as server:
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.goto(server.url)
        until(page, READY)
        act(page, server.url)
        page.wait_for_timeout(500)
        page.screenshot(path=str(file))


def show(key: str, page: Any, url: str) -> None:
    """Open the sample, and point at a token."""
    page.goto(f"{url}#sample={key}")
    page.reload()
    until(page, READY)
    page.locator("#sample").evaluate("element => element.scrollIntoView()")


def mark(row: dict[str, Any], page: Any, url: str) -> None:
    """Move to the words that the critic found poor, by the keyboard; mark them, and say why."""
    span = next((span for span in row["spans"] if span["label"] < 0), {"start": 0, "end": 1, "reason": ""})
    places = list(units(row["response"]))
    before = sum(end <= span["start"] for _, end in places)
    within = sum(span["start"] <= start < span["end"] for start, _ in places)
    reason = span["reason"] or row["critique"].partition(". ")[0]
    page.locator("#talk").focus()
    moves = ["ArrowRight"] * before + ["Shift+ArrowRight"] * (within - 1)
    for key in (*moves, "p", *reason, "Enter", "2"):
        page.keyboard.press(key)


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", default="text2grad")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    arguments = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    number = chosen(arguments.run, arguments.name)
    answers = arguments.run / "ppo" / arguments.name / "samples.jsonl"
    with chromium() as browser, tempfile.TemporaryDirectory() as place:
        lines_read = answers.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(row) for row in (lines_read[number], *lines_read[-8:-1])]
        source = Path(place) / "answers.jsonl"
        lines = ({"id": row["id"], "prompt": row["prompt"], "response": row["response"]} for row in rows)
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        view, marked = arguments.out / "view.png", arguments.out / "mark.png"
        picture(browser, partial(ViewPage, arguments.run), partial(show, f"{arguments.name}/{number}"), view)
        picture(browser, partial(MarkPage, source, None, "you", False), partial(mark, rows[0]), marked)
    print(json.dumps({file.name: file.stat().st_size for file in (view, marked)}))


if __name__ == "__main__":
    with exit_on_user_error():
        main()
