"""HumanEval, MBPP and EvalPlus: tests pass right programs and fail wrong ones."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from places import SHARED
from text2grad.data.published import read_examples
from text2grad.errors import UserError
from text2grad.feedback import Example
from text2grad.sandbox import Runner
from text2grad.tasks.base import TaskSettings, load_task
from text2grad_lab.benchmarks.checks import check_module
from text2grad_lab.benchmarks.plus_oracle import Expected
from text2grad_lab.benchmarks.programs import MBPP_SPLITS, SHAPES

needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not here")
FILES = {"humaneval/HumanEval.jsonl": 164, "mbpp/mbpp.jsonl": 974, "mbpp/sanitized-mbpp.json": 427}
HUMANEVAL = {
    "task_id": "HumanEval/x",
    "prompt": 'def triple(n: int) -> int:\n    """Three times n."""\n',
    "entry_point": "triple",
    "canonical_solution": "    return 3 * n\n",
    "test": "def check(candidate):\n    assert candidate(2) == 6\n",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to double a number.",
    "code": "def double(n):\n    return 2 * n",
    "test_setup_code": "import math",
    "test_list": ["assert double(2) == 4", "assert double(math.inf) == math.inf"],
}
HUMANEVAL_PLUS = {
    "task_id": "HumanEval/x",
    "prompt": 'def halve(xs: list) -> list:\n    """Half of each."""\n',
    "canonical_solution": "    for i in range(len(xs)):\n        xs[i] = xs[i] / 2\n    return xs\n",
    "entry_point": "halve",
    "base_input": [[[1, 2]], [[]]],
    "plus_input": [[[n, 0.1]] for n in range(120)],
    "atol": 0,
}
MBPP_PLUS = {
    "task_id": "Mbpp/2",
    "prompt": '"""\nFind the shared elements.\nassert set(similar_elements((1, 2), (2, 3))) == {2}\n"""\n',
    "canonical_solution": "\ndef similar_elements(a, b):\n    return tuple(set(a) & set(b))\n",
    "entry_point": "similar_elements",
    "base_input": [[[1, 2, 3], [2, 3]]],
    "plus_input": [[[], []]],
    "atol": 0,
}


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(seconds=60.0, workers=2) as started:  # mbpp-123 takes ten seconds on a busy machine
        yield started


def names(module: str) -> list[str]:
    return [line.split("(")[0][4:] for line in module.splitlines() if line.startswith("def test")]


def problems_of(folder: Path, *rows: dict[str, Any]) -> list[Example]:
    path = folder / "problems.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return read_examples(str(path), SHAPES)


@pytest.mark.parametrize("row", [HUMANEVAL, MBPP, HUMANEVAL_PLUS, MBPP_PLUS])
def test_tests_pass_the_reference_and_fail_a_wrong_program(
    tmp_path: Path, runner: Runner, row: dict[str, Any]
) -> None:
    (problem,) = problems_of(tmp_path, row)
    wrong = re.sub(r"return .*", "return None", problem.reference)
    assert runner.run(problem.reference, problem.meta["tests"]).outcome == "passed"
    assert runner.run(wrong, problem.meta["tests"]).outcome == "failed"


@needs_data
@pytest.mark.parametrize("file", FILES)
def test_published_references_pass(runner: Runner, file: str) -> None:
    examples = read_examples(str(SHARED / file), SHAPES)
    verdicts = runner.run_all([(example.reference, str(example.meta["tests"])) for example in examples])
    failed = {
        example.id: verdict for example, verdict in zip(examples, verdicts, strict=True) if not verdict.passed
    }
    assert (len(examples), failed) == (FILES[file], {})
    if file.startswith("humaneval"):
        counts = [len(names(example.meta["tests"])) for example in examples]
        assert sum(count > 1 for count in counts) > 150 and sum(counts) > 1100


def test_benchmarks_are_all_held_out(tmp_path: Path) -> None:
    rows = [{**MBPP, "task_id": number} for number in (5, 11, 510, 511, 974)]
    (tmp_path / "mbpp.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = "text2grad_lab.benchmarks.programs:MBPP"
    settings = TaskSettings(name=task, data=str(tmp_path / "mbpp.jsonl"))
    mbpp = load_task(settings)
    assert [problem.id for problem in mbpp.examples("heldout")] == ["mbpp-11", "mbpp-510"]
    assert (mbpp.name, mbpp.examples("train"), mbpp.examples("sft")) == ("mbpp", [], [])
    first = load_task(settings.model_copy(update={"limit": 1}))
    assert [problem.id for problem in first.examples("heldout")] == ["mbpp-11"]
    for changes in ({"name": f"{task}Plus"}, {"split": (0.3, 0.5, 0.2)}):
        with pytest.raises(UserError):
            load_task(TaskSettings.model_validate({"name": task, **changes}))


def test_mbpps_splits_share_no_problem() -> None:
    numbers = [number for first, last in MBPP_SPLITS.values() for number in range(first, last + 1)]
    assert len(numbers) == len(set(numbers)) == 974


# HumanEval's checks.


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


def test_each_assertion_is_a_test_with_the_code_before_it(runner: Runner) -> None:
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
def test_assertions_that_need_each_other_stay_together(body: str) -> None:
    assert names(check_module(f"def check(candidate):\n{body}", "total")) == ["test_1"]


def test_helpers_come_from_the_question_not_the_solution(runner: Runner) -> None:
    """HumanEval/38 calls encode(), which the prompt defines: a solution must not replace it."""
    prompt = "def encode(s):\n    return s[::-1]\n\ndef decode(s):\n    '''Undo encode.'''\n"
    module = check_module("def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n", "decode", prompt)
    assert runner.run(f"{prompt}    return s[::-1]\n", module).passed
    forged = "def encode(s):\n    return s\n\ndef decode(s):\n    return s\n"
    assert runner.run(forged, module).outcome == "failed"
    assert runner.run("def decode(s):\n    return s[::-1]\n", module).passed


@pytest.mark.parametrize("test", ["def verify(candidate):\n    pass\n", "def check(candidate:\n"])
def test_tests_without_a_check_are_refused(test: str) -> None:
    with pytest.raises(ValueError):
        check_module(test, "f")


# EvalPlus.


def test_evalplus_inputs_are_judged_by_the_reference(tmp_path: Path, runner: Runner) -> None:
    problem, other = problems_of(tmp_path, HUMANEVAL_PLUS, MBPP_PLUS)
    tests = problem.meta["tests"]
    assert names(tests) == ["test_base_1", "test_base_2", "test_plus_1", "test_plus_2", "test_plus_3"]
    almost = "def halve(xs):\n    return [x * 0.5000000001 for x in xs]\n"
    assert runner.run(almost, tests).passed, "floats are compared with a tolerance"
    assert runner.run("def halve(xs):\n    return [x / 2 for x in xs][:1]\n", tests).outcome == "failed"
    off = runner.run("def halve(xs):\n    return [x / 2.001 for x in xs]\n", tests)
    assert [result.passed for result in off.results] == [False, True, False, False, False]
    assert (off.results[0].call, off.results[0].expected) == ("halve([1, 2])", "[0.5, 1.0]")
    assert other.prompt[0].content.endswith("satisfy:\nassert set(similar_elements((1, 2), (2, 3))) == {2}")


def test_mbpp_inputs_have_their_types_restored(tmp_path: Path, runner: Runner) -> None:
    (problem,) = problems_of(tmp_path, MBPP_PLUS)
    assert "similar_elements((1, 2, 3), (2, 3))" in problem.meta["tests"]
    wants_tuples = "def similar_elements(a, b):\n    return list(set(a + ()) & set(b))\n"
    assert runner.run(wants_tuples, problem.meta["tests"]).passed, "compared as sets: order and type are free"


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
def test_answers_that_count_as_right(
    name: str, arguments: list[Any], value: Any, got: Any, mbpp: bool, right: bool
) -> None:
    tolerance = 0.5 if name == "surface_Area" else 1e-4 if name == "find_zero" else 0
    assert (got == Expected(name, arguments, value, tolerance, mbpp)) is right
