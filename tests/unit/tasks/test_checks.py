"""Published checks become test modules: one test for each assertion, and EvalPlus's inputs with its rules."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from places import ROOT, SHARED
from text2grad.data.published import read_examples
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.sandbox import Runner
from text2grad.tasks import code
from text2grad.tasks.base import TaskSettings, load_task
from text2grad.tasks.benchmarks.evalplus import cached_file
from text2grad.tasks.benchmarks.plus_oracle import Expected
from text2grad.tasks.checks import check_module

needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(seconds=5.0) as made:
        yield made


def names(module: str) -> list[str]:
    return [line.split("(")[0][4:] for line in module.splitlines() if line.startswith("def test")]


CHECK = """
METADATA = {"author": "x"}

def near(a, b):
    return abs(a - b) < 1e-6

def check(candidate):
    data = [1, 2]
    assert candidate(data) == 3, "first"
    for n in range(3):
        assert candidate([n]) == n
    bigger = data + [4]
    assert near(candidate(bigger), 7)
"""


def test_each_assertion_is_a_test_with_what_comes_before_it(runner: Runner) -> None:
    module = check_module(CHECK, "total")
    assert names(module) == ["test_1", "test_2", "test_3"]
    verdict = runner.run("def total(xs):\n    return sum(xs[:2])\n", module)
    assert [result.passed for result in verdict.results] == [True, True, False]
    assert runner.run("def total(xs):\n    return sum(xs)\n", module).passed
    assert "candidate" not in module.replace("check(candidate)", "")


@pytest.mark.parametrize(
    "body",
    [
        "    for n in (1, 2):\n        last = candidate([n])\n        assert last == n\n    assert last == 2\n",
        "    last = 0\n    if candidate([1]) == 1:\n        last = 1\n        assert last\n    assert last == 1\n",
    ],
)
def test_what_hangs_together_stays_together(body: str) -> None:
    assert names(check_module(f"def check(candidate):\n{body}", "total")) == ["test_1"]


def test_helpers_of_the_question_are_not_taken_from_the_solution(runner: Runner) -> None:
    """HumanEval/38 calls encode(), which the prompt defines: a solution must not bring its own."""
    prompt = "def encode(s):\n    return s[::-1]\n\ndef decode(s):\n    '''Undo encode.'''\n"
    module = check_module("def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n", "decode", prompt)
    assert runner.run(f"{prompt}    return s[::-1]\n", module).passed
    forged = "def encode(s):\n    return s\n\ndef decode(s):\n    return s\n"
    assert runner.run(forged, module).outcome == "failed"
    assert runner.run("def decode(s):\n    return s[::-1]\n", module).passed


def test_a_check_that_is_not_there_is_the_datas_mistake() -> None:
    with pytest.raises(ValueError, match="no check"):
        check_module("def verify(candidate):\n    pass\n", "f")
    with pytest.raises(ValueError, match="cannot read"):
        check_module("def check(candidate:\n", "f")


# EvalPlus.

HUMANEVAL_PLUS = {
    "task_id": "HumanEval/x",
    "prompt": 'def halve(xs: list) -> list:\n    """Half of each."""\n',
    "canonical_solution": "    for i in range(len(xs)):\n        xs[i] = xs[i] / 2\n    return xs\n",
    "entry_point": "halve",
    "contract": "",
    "base_input": [[[1, 2]], [[]]],
    "plus_input": [[[n, 0.1]] for n in range(120)],
    "atol": 0,
}
MBPP_PLUS = {
    "task_id": "Mbpp/2",
    "prompt": '"""\nFind the shared elements.\nassert set(similar_elements((1, 2), (2, 3))) == {2}\n"""\n',
    "canonical_solution": "\ndef similar_elements(a, b):\n    return tuple(set(a) & set(b))\n",
    "entry_point": "similar_elements",
    "contract": "",
    "assertion": "",
    "base_input": [[[1, 2, 3], [2, 3]]],
    "plus_input": [[[], []]],
    "atol": 0,
}


def plus(folder: Path, *rows: dict[str, Any]) -> list[Example]:
    path = folder / "Plus.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return read_examples(str(path), code.SHAPES)


def test_evalplus_inputs_are_judged_by_the_reference(tmp_path: Path, runner: Runner) -> None:
    problem, other = plus(tmp_path, HUMANEVAL_PLUS, MBPP_PLUS)
    tests = problem.meta["tests"]
    assert names(tests) == ["test_base_1", "test_base_2", "test_plus_1", "test_plus_2", "test_plus_3"]
    assert runner.run(problem.reference, tests).passed
    almost = "def halve(xs):\n    return [x * 0.5000000001 for x in xs]\n"
    assert runner.run(almost, tests).passed, "floats are compared with a tolerance"
    assert runner.run("def halve(xs):\n    return [x / 2 for x in xs][:1]\n", tests).outcome == "failed"
    off = runner.run("def halve(xs):\n    return [x / 2.001 for x in xs]\n", tests)
    assert [result.passed for result in off.results] == [False, True, False, False, False]
    assert (off.results[0].call, off.results[0].expected) == ("halve([1, 2])", "[0.5, 1.0]")
    assert other.prompt[0].content.endswith("satisfy:\nassert set(similar_elements((1, 2), (2, 3))) == {2}")


def test_mbpp_inputs_get_back_the_types_that_json_lost(tmp_path: Path, runner: Runner) -> None:
    _, problem = plus(tmp_path, HUMANEVAL_PLUS, MBPP_PLUS)
    assert "similar_elements((1, 2, 3), (2, 3))" in problem.meta["tests"]
    assert runner.run(problem.reference, problem.meta["tests"]).passed
    wants_tuples = "def similar_elements(a, b):\n    return list(set(a + ()) & set(b))\n"
    assert runner.run(wants_tuples, problem.meta["tests"]).passed, "as sets: the order and the type are free"


@pytest.mark.parametrize(
    ("name", "arguments", "value", "got", "mbpp", "right"),
    [
        ("f", [], 1.0, 1.0 + 1e-8, False, True),
        ("f", [], 1.0, 1.001, False, False),
        ("f", [], 1.0, 1, False, True),
        ("f", [], [1.0], (1.0,), False, False),
        ("f", [], 1, 1.0000001, False, False),
        ("f", [], float("inf"), float("inf"), False, True),
        ("find_zero", [[-2, 1]], 1.9, 2.0, False, True),
        ("find_zero", [[-2, 1]], 1.9, 1.9, False, False),
        ("sum_div", [8], 7, 0, True, True),
        ("sum_div", [8], 7, 1, True, False),
        ("check_str", ["a"], "match", "other match", True, True),
        ("check_str", ["a"], None, "match", True, False),
        ("check_str", ["a"], "match", False, True, False),
        ("Diff", [], [1, 2], [2, 1, 1], True, True),
        ("digit_distance_nums", [1, 2], 9, 1, True, True),
        ("surface_Area", [3, 4], 0, 33, True, False),
        ("surface_Area", [3, 4], 0, 34.63, True, True),
    ],
)
def test_when_an_answer_counts_as_right(
    name: str, arguments: list[Any], value: Any, got: Any, mbpp: bool, right: bool
) -> None:
    tolerance = 0.5 if name == "surface_Area" else 1e-4 if name == "find_zero" else 0
    assert (got == Expected(name, arguments, value, tolerance, mbpp)) is right


def test_the_newest_file_in_the_cache_of_evalplus_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HUMANEVAL_OVERRIDE_PATH", "MBPP_OVERRIDE_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"--task.data HumanEvalPlus.jsonl.gz"):
        load_task(TaskSettings(name="humaneval+"))
    folder = tmp_path / "evalplus"
    folder.mkdir()
    for version in ("v0.1.9", "v0.1.10", "Mini-v0.1.11", "NoExtreme-v0.1.12"):
        mark = {**HUMANEVAL_PLUS, "task_id": f"HumanEval/{version}"}
        (folder / f"HumanEvalPlus-{version}.jsonl").write_text(json.dumps(mark))
    assert [example.id for example in load_task(TaskSettings(name="humaneval+")).examples("heldout")] == [
        "HumanEval/v0.1.10"
    ]
    monkeypatch.setenv("MBPP_OVERRIDE_PATH", os.fspath(tmp_path / "mine.jsonl"))
    assert cached_file("mbpp+") == tmp_path / "mine.jsonl"


@pytest.mark.parametrize("change", [{"base_input": 3}, {"plus_input": [1]}, {"entry_point": ""}])
def test_a_bad_evalplus_row_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="record 2: "):
        plus(tmp_path, HUMANEVAL_PLUS, {**MBPP_PLUS, **change})


def test_a_torn_gzip_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}' * 50)[:30])
    with pytest.raises(UserError, match=r"cannot read .*gzip"):
        read_examples(str(tmp_path / "torn.jsonl.gz"), code.SHAPES)


# ILF, and the benchmarks as tasks.


@needs_data
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 500)])
def test_a_benchmark_is_all_held_out(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    task = load_task(TaskSettings(name=name))
    assert (task.name, len(task.examples("heldout"))) == (name, count)
    assert task.examples("train") == task.examples("sft") == []


@needs_data
def test_assertions_of_humaneval_become_tests_of_their_own() -> None:
    problems = read_examples(str(SHARED / "humaneval" / "HumanEval.jsonl"), code.SHAPES)
    counts = [len(names(problem.meta["tests"])) for problem in problems]
    assert sum(count > 1 for count in counts) > 150
    assert sum(counts) > 1100
