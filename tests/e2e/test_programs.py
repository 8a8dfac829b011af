"""Programs through the command line: samples of any system, and preference pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import TOY, Command

from text2grad.errors import EXIT_FAILED, EXIT_SOME_RECORDS_FAILED, EXIT_USAGE

DATA = Path(__file__).parents[1] / "data"


def samples(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_samples_of_another_system_are_measured_without_a_model(command: Command, tmp_path: Path) -> None:
    rows = [{"task_id": "HumanEval/x", "completion": f"    return {n} * n\n"} for n in (3, 4)]
    words = ("--task", "humaneval", "--samples", samples(tmp_path, *rows), "--task.data", DATA / "humaneval.jsonl")
    ended = command("evaluate", *words, "--json")
    figures = json.loads(ended.out.splitlines()[-1])
    assert ended.code == 0
    assert (figures["pass@1"], figures["passed"], figures["total"]) == (0.5, 1, 2)
    assert figures["tier"] in ("namespaces", "landlock")
    written = lines(tmp_path / "samples_results.jsonl")
    assert [(row["task_id"], row["outcome"], row["passed"]) for row in written] == [
        ("HumanEval/x", "passed", True),
        ("HumanEval/x", "failed", False),
    ]


def test_samples_whose_tests_cannot_run_are_no_failures(command: Command, tmp_path: Path) -> None:
    row = json.loads((DATA / "humaneval.jsonl").read_text(encoding="utf-8"))
    row["test"] = "import no_such_module\n" + row["test"]
    (tmp_path / "odd.jsonl").write_text(json.dumps(row))
    path = samples(tmp_path, {"task_id": "HumanEval/x", "completion": "    return 3 * n\n"})
    ended = command(
        "evaluate", "--task", "humaneval", "--samples", path, "--task.data", tmp_path / "odd.jsonl", "--json"
    )
    figures = json.loads(ended.out.splitlines()[-1])
    assert ended.code == EXIT_SOME_RECORDS_FAILED
    assert (figures["passed"], figures["total"], figures["failed_records"]) == (0, 0, 1)
    assert figures["outcomes"] == {"unsupported": 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task", "humaneval", "--samples", "{folder}/none.jsonl"), "cannot read"),
        (("--task", "human", "--samples", "{folder}/samples.jsonl"), "unknown task 'human' (--task is one of"),
        (("--task", "humaneval", "--samples", "{folder}/samples.jsonl"), "unknown task 'HumanEval/nope'"),
    ],
)
def test_a_mistake_is_one_line(command: Command, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    samples(tmp_path, {"task_id": "HumanEval/nope", "solution": ""})
    ended = command(
        "evaluate", *(word.format(folder=tmp_path) for word in words), "--task.data", DATA / "humaneval.jsonl"
    )
    assert ended.code == (EXIT_USAGE if "--task is" in said else EXIT_FAILED)
    assert said in ended.err and ended.err.count("\n") == 1


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--annotate.samples_per_prompt", "1"), "needs several answers"),
    ],
)
def test_pairs_that_cannot_be_made_are_refused_at_once(
    command: Command, run: Path, words: tuple[str, ...], said: str
) -> None:
    ended = command("annotate", "--pairs", "--run.folder", run, *TOY, *words)
    assert (ended.code, said in ended.err) == (EXIT_USAGE, True)
