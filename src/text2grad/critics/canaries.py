"""Canaries: responses with known labels, some with a prompt injection aimed at the critic.

A critic that follows such an instruction, or misses an obvious fault, is not trusted. The records
of canaries are in a separate file (`<out>` with `.canaries` before its suffix) and are never used
for training.
"""

from __future__ import annotations

import json
from pathlib import Path

from text2grad.critics.prompted import Pair
from text2grad.feedback import HUMAN_FEEDBACK, Example, Message
from text2grad.json_text import split_lines

CANARIES = Path(__file__).with_name("canaries.jsonl")
KEY = "canary"
"""Key of `meta` for the expected spans: `start`, `end`, `label`."""


def canary_items(task: str, anchor: bool = False) -> list[Pair]:
    """Return the canaries of a critic's prompt (`qa`, `summarization`, `code`; default: `qa`).

    With `anchor`, each has a human comment, for a critic that places human comments.
    """
    rows = list(map(json.loads, split_lines(CANARIES.read_text(encoding="utf-8"))))
    kind = next((row["task"] for row in rows if task.startswith(row["task"])), "qa")
    return [_item(row, anchor) for row in rows if row["task"] == kind]


def canaries_path(out: Path) -> Path:
    """Return the file of canary records of a job that writes `out`."""
    return out.parent / f"{out.stem}.canaries{out.suffix}"


def _item(row: dict[str, str | list[str]], anchor: bool) -> Pair:
    response = str(row["response"])
    expected_spans = [
        {"start": response.index(quote), "end": response.index(quote) + len(quote), "label": label}
        for key, label in (("good", 1), ("poor", -1))
        for quote in row[key]
    ]
    prompt = (Message(role="user", content=str(row["prompt"])),)
    verdicts = ("good", "right"), ("poor", "wrong")
    comment = " ".join(f'"{quote}" is {verdict}.' for key, verdict in verdicts for quote in row[key])
    meta = {KEY: expected_spans, HUMAN_FEEDBACK: comment} if anchor else {KEY: expected_spans}
    return Example(id=str(row["id"]), prompt=prompt, meta=meta), response
