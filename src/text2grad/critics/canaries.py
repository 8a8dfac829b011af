"""Responses with known labels; some contain an instruction to the critic (prompt injection).

A critic that follows such instructions, or misses a plain fault, is not trusted with the rest.
Their records are in a separate file (`<out>` with `.canaries` before its ending) and are never
trained on.
"""

from __future__ import annotations

import json
from pathlib import Path

from text2grad.critics.prompted import Pair
from text2grad.feedback import HUMAN_FEEDBACK, Example, Message
from text2grad.json_text import split_lines

OURS = Path(__file__).with_name("canaries.jsonl")
KEY = "canary"
"""Key of `meta` that holds the spans that are known: `start`, `end`, `label`."""


def canary_items(task: str, anchor: bool = False) -> list[Pair]:
    """Return the canaries of a critic's prompt (`qa`, `summarization`, `code`); any other gets
    those of `qa`.

    With `anchor` each has a comment on its faults and merits, for a critic that places a person's
    words.
    """
    rows = list(map(json.loads, split_lines(OURS.read_text(encoding="utf-8"))))
    kind = next((row["task"] for row in rows if task.startswith(row["task"])), "qa")
    return [_item(row, anchor) for row in rows if row["task"] == kind]


def canaries_path(out: Path) -> Path:
    """Where the records of the canaries of a job are, which writes `out`."""
    return out.parent / f"{out.stem}.canaries{out.suffix}"


def _item(row: dict[str, str | list[str]], anchor: bool) -> Pair:
    response = str(row["response"])
    known = [
        {"start": response.index(quote), "end": response.index(quote) + len(quote), "label": label}
        for key, label in (("good", 1), ("poor", -1))
        for quote in row[key]
    ]
    prompt = (Message(role="user", content=str(row["prompt"])),)
    verdicts = ("good", "right"), ("poor", "wrong")
    comment = " ".join(f'"{quote}" is {verdict}.' for key, verdict in verdicts for quote in row[key])
    meta = {KEY: known, HUMAN_FEEDBACK: comment} if anchor else {KEY: known}
    return Example(id=str(row["id"]), prompt=prompt, meta=meta), response
