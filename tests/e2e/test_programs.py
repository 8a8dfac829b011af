"""Programs through the command line: preference pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import TOY, Command

from text2grad.errors import EXIT_USAGE


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_annotate_writes_pairs_of_one_question(command: Command, run: Path) -> None:
    words = (*TOY, "--annotate.samples_per_prompt", "12", "--run.folder", run)
    ended = command("annotate", "--pairs", "--json", *words)
    figures = json.loads(ended.out.splitlines()[-1])
    assert ended.code == 0
    assert set(figures["outcomes"]) <= {"passed", "failed", "broken", "timeout", "crashed", "no_program"}
    assert sum(figures["outcomes"].values()) == figures["records"] + figures["heldout_records"]
    pairs = lines(run / "pairs.jsonl")
    assert len(pairs) == figures["pairs"] > 0
    rows = lines(run / "feedback.jsonl")
    verdicts = {(row["id"], row["response"]): row["score"] for row in rows}
    for pair in pairs:
        assert verdicts[pair["id"], pair["chosen"][0]["content"]] == 1.0
        assert verdicts[pair["id"], pair["rejected"][0]["content"]] == -1.0
    assert {row["meta"]["outcome"] for row in rows} <= set(figures["outcomes"])
    assert all(row["meta"]["tier"] in ("namespaces", "landlock") for row in rows)


def test_pairs_of_one_answer_are_refused_at_once(command: Command, run: Path) -> None:
    ended = command("annotate", "--pairs", "--run.folder", run, *TOY, "--annotate.samples_per_prompt", "1")
    assert ended.code == EXIT_USAGE and "needs several answers" in ended.err
