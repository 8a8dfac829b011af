"""Evaluating a policy on code: each answer says what came of it and what protected the machine, the
summary too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from places import CONFIGS
from text2grad.config import load_config
from text2grad.eval.measures import TaskMeasure
from text2grad.feedback import Example
from text2grad.sandbox import Runner
from text2grad.stages.evaluate import policy as stage
from text2grad.stages.evaluate.policy import Exam, PolicyResults, evaluate_policy

TESTS = "from solution import f\n\ndef test():\n    assert f(1) == 2\n"
RIGHT = "```python\ndef f(x):\n    return x + 1\n```"


class Words:
    """A task whose answers are not run."""

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"length": len(response) / 10}


def problem(name: str, tests: str) -> Example:
    prompt = [{"role": "user", "content": "?"}]
    return Example.model_validate({"id": name, "prompt": prompt, "reference": "r", "meta": {"tests": tests}})


def measured(monkeypatch: pytest.MonkeyPatch, problems: list[Example], answers: list[str]) -> PolicyResults:
    monkeypatch.setattr(stage, "sample", lambda policy, examples, *_: [([], text) for text in answers])
    with Runner(seconds=10.0, tier="landlock") as runner:
        policy: Any = SimpleNamespace(tokenizer=None)
        task: Any = Words()
        exam = Exam(problems, TaskMeasure(task, runner), load_config(CONFIGS / "demo.yaml").generation, 1, 0)
        return evaluate_policy(policy, exam)


def test_rows_and_summary_of_programs_carry_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [problem("a", TESTS), problem("b", TESTS), problem("c", "import subprocess\n" + TESTS)]
    found = measured(monkeypatch, problems, [RIGHT, "no code", RIGHT])
    rows = [(row["scores"], row["outcome"], row.get("tier")) for row in found.answers]
    assert rows == [
        ({"pass": 1.0}, "passed", "landlock"),
        ({"pass": 0.0}, "broken", "landlock"),
        ({}, "unsupported", None),  # its tests are refused, and nothing is run
    ]
    assert (found.summary.tier, found.summary.figures["greedy_pass"]) == ("landlock", 0.5)


def test_where_nothing_was_run_there_is_no_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, [problem("a", "")], ["four"])
    assert found.answers == [{"id": "a", "response": "four", "scores": {"length": 0.4}}]
    assert "tier" not in found.summary.as_dict()
