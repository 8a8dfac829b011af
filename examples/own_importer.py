"""Your own importer: tickets of a help desk, with the replies that customers rated.

    text2grad import tickets.jsonl --kind own_importer:HELP_DESK --out feedback.jsonl
    python examples/own_importer.py

The first command reads your file; run it in the folder of this module. The second prints the
records of two tickets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from text2grad.data.opinions import Importer, Mark, Names, Opinion
from text2grad.data.records import import_feedback

TICKETS = [
    {"ticket": 7, "asked": "When is it due?", "reply": "It is due next week.", "stars": 2,
     "flags": [{"from": 10, "to": 19, "kind": "wrong", "why": "the letter says Friday"}]},
    {"ticket": 8, "asked": "Who signs?", "reply": "Ann signs it.", "stars": 5, "remark": "Quick and right."},
]  # fmt: skip


def opinions(row: dict[str, Any], id: str, names: Names) -> Iterator[Opinion]:
    """Yield the customer's opinion of the reply to a ticket."""
    opinion = Opinion(str(row["ticket"]), row["reply"], row["asked"])
    opinion.marks = [
        Mark.parse(flag, start="from", end="to", label="kind", reason="why") for flag in row.get("flags", [])
    ]
    opinion.add_answer("remark", row.get("remark"), names)
    opinion.add_answer("stars", row["stars"], names)
    yield opinion


HELP_DESK = Importer("help_desk", opinions, keys=frozenset({"ticket", "asked", "reply", "stars"}))

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tickets.jsonl"
        file.write_text("\n".join(map(json.dumps, TICKETS)), encoding="utf-8")
        imported = import_feedback(file, "own_importer:HELP_DESK", scales=["stars=1..5"])
    for record in imported.records:
        marks = [(span.text, span.label, span.reason) for span in record.spans]
        print(record.id, record.response, record.score, marks, record.critique)
