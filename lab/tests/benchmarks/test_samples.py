"""The command `samples`: running, counting and refusing programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from test_programs import HUMANEVAL, MBPP, problems_of

from text2grad.errors import EXIT_FAILED, EXIT_SOME_RECORDS_FAILED, UserError
from text2grad.feedback import Example, Message
from text2grad.sandbox import Runner
from text2grad_lab.benchmarks.samples import SampleResult, judge_samples, pass_at_k, sample_summary

BOX = """
import solution

def test_it():
    box = solution.Box(2)
    assert box.value == 2
    assert box == 2
"""
RIGHT_BOX = """
class Box(int):
    @property
    def value(self):
        return int(self)
"""
DODGE_BOX = """
class Box:
    def __init__(self, value):
        self.value = value
    def __eq__(self, other):
        return self.value == other
"""
"""A class with its own comparison, which cannot be judged against a number."""
GOOD, BAD = "    return 3 * n\n", "    return 4 * n\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as started:
        yield started


def samples(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def examples_of(*ids: str) -> list[Example]:
    return [Example(id=id, prompt=(Message(role="user", content=id),)) for id in ids]


def result(task: str, passed: bool | None) -> SampleResult:
    outcome = {True: "passed", False: "failed", None: "unsupported"}[passed]
    return SampleResult(task_id=task, sample=0, outcome=outcome, passed=passed, error="", tier="landlock")


def test_solutions_and_completions_are_run_and_counted(tmp_path: Path, runner: Runner) -> None:
    (problem,) = problems_of(tmp_path, HUMANEVAL)
    program = problem.meta["completes"] + GOOD
    rows = [
        {"task_id": problem.id, "completion": GOOD},
        {"task_id": problem.id, "completion": BAD},
        {"task_id": problem.id, "solution": program},
        {"task_id": problem.id, "solution": f"Here it is:\n```python\n{program}```\nDone."},
        {"task_id": problem.id, "solution": "I do not know."},
    ]
    results = judge_samples(samples(tmp_path, *rows), [problem], runner, runner)
    assert [sample.passed for sample in results] == [True, False, True, True, False]
    assert [sample.sample for sample in results] == [0, 1, 2, 3, 4]
    summary = sample_summary(results, [problem])
    assert (summary["pass@1"], summary["pass@5"]) == (pytest.approx(0.6), 1.0)
    assert (summary["passed"], summary["total"], summary["tasks"], summary["missing"]) == (3, 5, 1, 0)
    assert summary["tier"] == results[0].tier in ("namespaces", "landlock")


def test_a_slow_program_is_run_again(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, HUMANEVAL)
    busy = "    while time.process_time() < 1.5:\n        pass\n"
    slow = f"import time\n{problem.meta['completes']}{busy}{GOOD}"
    path = samples(tmp_path, {"task_id": problem.id, "solution": slow})
    with Runner(seconds=0.5) as hasty, Runner(seconds=20.0) as patient:
        assert [sample.outcome for sample in judge_samples(path, [problem], hasty, hasty)] == ["timeout"]
        assert [sample.outcome for sample in judge_samples(path, [problem], hasty, patient)] == ["passed"]


def test_a_sample_that_prevents_its_verdict_fails(tmp_path: Path, runner: Runner) -> None:
    """Samples that make the tests impossible to run must not raise pass@1."""
    (problem,) = problems_of(tmp_path, HUMANEVAL)
    problem = problem.model_copy(update={"meta": {**problem.meta, "tests": BOX}})
    texts = (DODGE_BOX, RIGHT_BOX, DODGE_BOX)
    path = samples(tmp_path, *({"task_id": problem.id, "solution": text} for text in texts))
    cases = ((RIGHT_BOX, [False, True, False]), (DODGE_BOX, [None, True, None]), (None, [False, True, False]))
    for reference, passed in cases:
        problems = [problem.model_copy(update={"reference": reference})]
        assert [sample.passed for sample in judge_samples(path, problems, runner, runner)] == passed


def test_pass_at_k_is_the_mean_over_tasks() -> None:
    verdicts = {"a": [True, False, False, True, False], "b": [False] * 5, "c": [True] * 6}
    results = [result(task, passed) for task, task_verdicts in verdicts.items() for passed in task_verdicts]
    summary = sample_summary(results, examples_of(*verdicts))
    for k in (1, 5):
        drawn = [[any(some) for some in combinations(task_verdicts, k)] for task_verdicts in verdicts.values()]
        oracle = sum(sum(passes) / len(passes) for passes in drawn) / len(drawn)
        assert summary[f"pass@{k}"] == pytest.approx(oracle)
    assert "pass@10" not in summary


def test_pass_at_k_of_one_problem() -> None:
    for samples in range(1, 7):
        for passed in range(samples + 1):
            for k in range(1, samples + 1):
                draws = list(combinations([True] * passed + [False] * (samples - passed), k))
                assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    for impossible in ((3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, 0), (0, 0, 1)):
        with pytest.raises(ValueError):
            pass_at_k(*impossible)


def test_missing_tasks_are_unsolved_and_samples_without_a_verdict_left_out() -> None:
    missing = sample_summary([result("a", True)], examples_of("a", "b"))
    assert (missing["pass@1"], missing["passed"], missing["total"], missing["missing"]) == (0.5, 1, 2, 1)
    summary = sample_summary([result("a", True), result("b", None)], examples_of("a", "b"))
    assert (summary["pass@1"], summary["total"], summary["failed_records"]) == (1.0, 1, 1)
    assert summary["outcomes"] == {"passed": 1, "unsupported": 1}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"task_id": "HumanEval/999", "completion": GOOD}, "record 1: unknown task 'HumanEval/999'"),
        ({"completion": GOOD}, "record 1: no 'task_id'"),
        ({"task_id": "HumanEval/x"}, "record 1: neither 'solution' nor 'completion'"),
        ({"task_id": "HumanEval/x", "solution": 3}, "record 1: neither 'solution' nor 'completion'"),
    ],
)
def test_invalid_lines_are_refused_by_number(
    tmp_path: Path, runner: Runner, row: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        judge_samples(samples(tmp_path, row), problems_of(tmp_path, HUMANEVAL), runner, runner)


@pytest.mark.parametrize("task_id", ["Mbpp/7", "mbpp-7", 7, "7"])
def test_mbpp_task_ids_are_normalised(tmp_path: Path, runner: Runner, task_id: str | int) -> None:
    examples = problems_of(tmp_path, MBPP)
    row = {"task_id": task_id, "solution": "def double(n):\n    return n + n\n"}
    (sample,) = judge_samples(samples(tmp_path, row), examples, runner, runner)
    assert (sample.task_id, sample.passed) == (examples[0].id, True)


def test_the_command_separates_failures_from_tests_that_cannot_run(command: Command, tmp_path: Path) -> None:
    odd = {**HUMANEVAL, "task_id": "HumanEval/odd", "test": "import no_such_module\n" + HUMANEVAL["test"]}
    problems_of(tmp_path, HUMANEVAL, odd)
    rows = [{"task_id": "HumanEval/x", "completion": text} for text in (GOOD, BAD)]
    data = ("--task.data", tmp_path / "problems.jsonl.gz")
    ended = command("samples", samples(tmp_path, *rows, {**rows[0], "task_id": odd["task_id"]}), *data, "--json")
    figures = json.loads(ended.out.splitlines()[-1])
    assert ended.code == EXIT_SOME_RECORDS_FAILED
    assert (figures["pass@1"], figures["total"], figures["failed_records"]) == (0.5, 2, 1)
    results = [json.loads(line) for line in (tmp_path / "samples_results.jsonl").read_text().splitlines()]
    assert [(row["outcome"], row.get("passed")) for row in results] == [
        ("passed", True),
        ("failed", False),
        ("unsupported", None),
    ]
    assert command("samples", tmp_path / "none.jsonl", *data).code == EXIT_FAILED
