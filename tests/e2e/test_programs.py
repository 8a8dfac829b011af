"""Programs through the command line: judged answers become preference pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import TOY, Command


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_judged_programs_become_pairs_of_one_question(command: Command, run: Path) -> None:
    ended = command("annotate", "--json", *TOY, "--annotate.samples_per_prompt", "12", "--run.folder", run)
    figures = json.loads(ended.out.splitlines()[-1])
    assert ended.code == 0
    assert set(figures["outcomes"]) <= {"passed", "failed", "broken", "timeout", "crashed", "no_program"}
    assert sum(figures["outcomes"].values()) == figures["records"] + figures["heldout_records"]
    rows = lines(run / "feedback.jsonl")
    assert {row["meta"]["outcome"] for row in rows} <= set(figures["outcomes"])
    assert all(row["meta"]["tier"] in ("namespaces", "landlock") for row in rows)
    words = ("export", run / "feedback.jsonl", "--as", "preference", "--pairs-per-prompt", "4")
    assert command(*words, "--out", run / "pairs.jsonl").code == 0
    verdicts = {(row["id"], row["response"]): row["score"] for row in rows}
    pairs = lines(run / "pairs.jsonl")
    assert pairs
    for pair in pairs:
        assert verdicts[pair["id"], pair["chosen"][0]["content"]] == 1.0
        assert verdicts[pair["id"], pair["rejected"][0]["content"]] == -1.0
