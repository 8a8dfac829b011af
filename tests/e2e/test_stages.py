"""Stages through the command line: programs become pairs, plain rows are imitated, files are
measured."""

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


def test_questions_and_answers_in_plain_text_are_imitated(command: Command, tmp_path: Path) -> None:
    rows = [{"prompt": f"Say {n}.", "response": f"It is {n}."} for n in range(12)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny = (*TOY, "--task.name", "qa", "--sft.epochs", "1", "--task.heldout_share", "0")
    data = ("--task.data", tmp_path / "answers.jsonl", "--run.folder", tmp_path / "new")
    ended = command("sft", *tiny, *data, "--json")
    assert ended.code == 0 and json.loads(ended.out.splitlines()[-1])["examples"] == 12


def test_a_file_of_answers_is_one_json_object(command: Command, tmp_path: Path) -> None:
    row = {"id": "1", "prompt": "Sum up.", "response": "the cat sat", "reference": "the cat sat down"}
    (tmp_path / "gpt.jsonl").write_text(json.dumps(row) + "\n")
    words = ("--task", "summarization", "--run.folder", tmp_path / "run", "--json")
    ended = command("evaluate", "--answers", tmp_path / "gpt.jsonl", *words)
    assert ended.code == 0, ended.err
    figures = json.loads(ended.out.splitlines()[-1])
    assert {"rouge1", "rouge2", "rouge_l", "bleu", "empty"} <= figures.keys()
    assert (figures["rouge1"], figures["empty"]) == (6 / 7, 0)
