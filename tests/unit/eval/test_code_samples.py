"""Samples of any system: what is run, what is counted, and what is said of what cannot be run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from places import DATA
from text2grad.data.published import read_examples
from text2grad.errors import UserError
from text2grad.eval.code import SampleResult, judge_samples, sample_summary
from text2grad.feedback import Example, Message
from text2grad.sandbox import Runner
from text2grad.tasks import code

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
"""A class with a comparison of its own, which cannot be judged against a number."""
GOOD, BAD = "    return 3 * n\n", "    return 4 * n\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as made:
        yield made


def problems() -> list[Example]:
    return read_examples(str(DATA / "humaneval.jsonl"), code.SHAPES)


def samples(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def asked(*ids: str) -> list[Example]:
    return [Example(id=id, prompt=(Message(role="user", content=id),)) for id in ids]


def result(task: str, passed: bool | None) -> SampleResult:
    outcome = {True: "passed", False: "failed", None: "unsupported"}[passed]
    return SampleResult(task_id=task, sample=0, outcome=outcome, passed=passed, error="", tier="landlock")


def test_solutions_and_completions_are_run_and_counted(tmp_path: Path, runner: Runner) -> None:
    (problem,) = problems()
    whole = problem.meta["completes"] + GOOD
    rows = [
        {"task_id": problem.id, "completion": GOOD},
        {"task_id": problem.id, "completion": BAD},
        {"task_id": problem.id, "solution": whole},
        {"task_id": problem.id, "solution": f"Here it is:\n```python\n{whole}```\nDone."},
        {"task_id": problem.id, "solution": "I do not know."},
    ]
    found = judge_samples(samples(tmp_path, *rows), [problem], runner)
    assert [each.passed for each in found] == [True, False, True, True, False]
    assert [each.sample for each in found] == [0, 1, 2, 3, 4]
    summary = sample_summary(found, [problem])
    assert summary["pass@1"] == pytest.approx(0.6)
    assert summary["pass@5"] == 1.0
    assert (summary["passed"], summary["total"], summary["tasks"], summary["missing"]) == (3, 5, 1, 0)
    assert summary["tier"] == found[0].tier in ("namespaces", "landlock")


def test_what_is_late_gets_a_second_chance(tmp_path: Path) -> None:
    (problem,) = problems()
    busy = "    while time.process_time() < 1.5:\n        pass\n"
    slow = f"import time\n{problem.meta['completes']}{busy}{GOOD}"
    path = samples(tmp_path, {"task_id": problem.id, "solution": slow})
    with Runner(seconds=0.5) as hasty, Runner(seconds=20.0) as patient:
        assert [each.outcome for each in judge_samples(path, [problem], hasty)] == ["timeout"]
        assert [each.outcome for each in judge_samples(path, [problem], hasty, patient)] == ["passed"]


def test_a_sample_that_sees_to_having_no_verdict_has_failed(tmp_path: Path, runner: Runner) -> None:
    """Ten right answers and many that make the tests impossible to run once were pass@1 1.0."""
    (problem,) = problems()
    problem = problem.model_copy(update={"meta": {**problem.meta, "tests": BOX}})
    dodge, right = DODGE_BOX, RIGHT_BOX
    rows = [{"task_id": problem.id, "solution": text} for text in (dodge, right, dodge)]
    found = judge_samples(samples(tmp_path, *rows), [problem.model_copy(update={"reference": right})], runner)
    assert [each.passed for each in found] == [False, True, False]
    assert "the reference has a verdict" in found[0].error
    nobody_can = judge_samples(samples(tmp_path, *rows), [problem.model_copy(update={"reference": dodge})], runner)
    assert [each.passed for each in nobody_can] == [None, True, None]
    unknown = judge_samples(samples(tmp_path, *rows), [problem.model_copy(update={"reference": None})], runner)
    assert [each.passed for each in unknown] == [False, True, False]


def test_pass_at_k_is_the_mean_over_tasks_of_the_chance_that_a_drawn_set_holds_a_pass() -> None:
    verdicts = {"a": [True, False, False, True, False], "b": [False] * 5, "c": [True] * 6}
    results = [result(task, passed) for task, each in verdicts.items() for passed in each]
    summary = sample_summary(results, asked(*verdicts))
    for k in (1, 5):
        drawn = [[any(some) for some in combinations(each, k)] for each in verdicts.values()]
        oracle = sum(sum(each) / len(each) for each in drawn) / len(drawn)
        assert summary[f"pass@{k}"] == pytest.approx(oracle)
    assert "pass@10" not in summary


def test_a_missing_task_is_not_solved() -> None:
    summary = sample_summary([result("a", True)], asked("a", "b"))
    assert (summary["pass@1"], summary["passed"], summary["total"], summary["missing"]) == (0.5, 1, 2, 1)


def test_a_sample_without_a_verdict_is_neither_passed_nor_failed() -> None:
    summary = sample_summary([result("a", True), result("b", None)], asked("a", "b"))
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
def test_a_line_that_is_no_sample_is_named(tmp_path: Path, runner: Runner, row: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        judge_samples(samples(tmp_path, row), problems(), runner)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task_id", ["Mbpp/7", "mbpp-7", 7, "7"])
def test_mbpp_is_known_by_every_way_its_ids_are_written(tmp_path: Path, runner: Runner, task_id: str | int) -> None:
    examples = read_examples(str(DATA / "mbpp.jsonl"), code.SHAPES)
    row = {"task_id": task_id, "solution": "def double(n):\n    return n + n\n"}
    (found,) = judge_samples(samples(tmp_path, row), examples, runner)
    assert (found.task_id, found.passed) == (examples[0].id, True)
