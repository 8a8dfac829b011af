"""Unit tests as a critic: the critiques of many programs, word by word, and the outcome of every
kind of run.

`programs.yaml` has the responses and `critiques.json` their judgements; WRITE_GOLDEN=1 writes the
second one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from text2grad.critics.program import ProgramCritic, outcome_counts
from text2grad.critics.program.case import Case
from text2grad.critics.program.critique import brief_critique
from text2grad.feedback import Critique, Example, Feedback, Judgement, Message
from text2grad.sandbox import Runner

HERE = Path(__file__).parent
GOLDEN = HERE / "critiques.json"
TESTS = """from solution import f

def test_small():
    assert f([1, 2, 3]) == 5

def test_empty():
    assert f([]) == 0
"""
RIGHT = "def f(xs):\n    ys = [x for x in xs if x >= 2]\n    return sum(ys)\n"
WRONG = RIGHT.replace(">=", ">")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(seconds=1.0) as made:
        yield made


def example(reference: str = "", tests: str = TESTS) -> Example:
    prompt = (Message(role="user", content="Write f(xs)."),)
    return Example(id="p1", prompt=prompt, reference=reference, meta={"tests": tests} if tests else {})


def test_critiques_are_those_of_the_golden_file(runner: Runner) -> None:
    cases = yaml.safe_load((HERE / "programs.yaml").read_text(encoding="utf-8"))
    judgements = {case["name"]: without_python(judge(runner, **case)) for case in cases}
    if os.environ.get("WRITE_GOLDEN"):
        lines = (f"{json.dumps(name)}: {json.dumps(it)}" for name, it in judgements.items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert judgements.keys() == expected.keys()
    assert not {name: (it, expected[name]) for name, it in judgements.items() if it != expected[name]}


def test_a_fault_is_found_by_a_reference_in_a_fence_too(runner: Runner) -> None:
    bare, fenced = (judge(runner, "", WRONG, reference) for reference in (RIGHT, f"```python\n{RIGHT}```"))
    assert fenced == bare and "x > 2" in json.dumps(bare)


def without_python(judgement: dict[str, Any]) -> dict[str, Any]:
    """Leave out the words of Python's parser, which change with its version."""
    text = re.sub(r"(SyntaxError|IndentationError): .*? \(<", r"\1: ... (<", json.dumps(judgement))
    stripped: dict[str, Any] = json.loads(text)
    return stripped


def judge(
    runner: Runner, name: str, response: str, reference: str = "", tests: str = TESTS, **options: Any
) -> dict[str, Any]:
    """Return the judgement; spans as [start, label, quote, weight, reason], which must quote the
    response."""
    [judgement] = ProgramCritic(runner, **options).critique([example(reference, tests)], [response])
    meta = {key: value for key, value in judgement.meta.items() if key not in ("tier", "test_output")}
    if not isinstance(judgement, Critique):
        return {"failure": judgement.kind, "message": judgement.message, "meta": meta}
    for span in judgement.spans:
        assert response[span.start : span.end] == span.text != "" and span.text.strip() in ("", span.text), name
    spans = [[span.start, span.label, span.text, span.weight, span.reason] for span in judgement.spans]
    return {"text": judgement.text, "score": judgement.score, "spans": spans, "meta": meta}


def test_every_outcome_is_in_its_row_and_in_the_summary(runner: Runner) -> None:
    loop = "def f(xs):\n    while True:\n        pass\n"
    deep = "def f(xs):\n    return f(xs)\n"
    nested = "def f(xs):\n    return " + "-" * 3000 + "1\n"
    long = "def f(xs):\n" + "    xs = xs\n" * 1_000_000
    cases = [
        *[(text, TESTS) for text in (RIGHT, WRONG, loop, deep, nested, "def f(:\n", long, "I cannot do that.")],
        *[(RIGHT, tests) for tests in ("", "x = 1\n", "import no_such_module\n")],
        (RIGHT, "while True:\n    pass\n"),
    ]
    critic = ProgramCritic(runner)
    examples = [example(tests=tests) for _, tests in cases]
    judgements = critic.critique(examples, [text for text, _ in cases])
    triples = zip(examples, cases, judgements, strict=True)
    rows = [Feedback.of(asked, text, judgement, critic.source) for asked, (text, _), judgement in triples]
    outcomes = [row.meta["outcome"] for row in rows]
    assert outcomes[:3] == ["passed", "failed", "timeout"]
    assert set(outcomes[3:5]) <= {"failed", "crashed", "broken"}
    assert outcomes[5:11] == ["broken", "broken", "no_program", "no_tests", "no_tests", "unsupported"]
    assert outcomes[11] in ("timeout", "bad_tests")
    assert [row.error is None for row in rows[:8]] == [True] * 8
    assert [row.score for row in rows[:8]] == [1.0] + [-1.0] * 7
    assert [row.error.kind for row in rows[8:11] if row.error] == ["unsupported"] * 3
    assert sum(outcome_counts(rows).values()) == len(rows)


def test_equal_responses_to_one_example_are_judged_once(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def counting(case: Case) -> Critique:
        judged.append(case.attempt.response)
        return brief_critique(case)

    monkeypatch.setattr("text2grad.critics.program.critic.brief_critique", counting)
    other = example(tests=TESTS.replace("== 5", "== 6"))
    asked = [example(), example(), example(), other]
    found: list[Judgement] = ProgramCritic(runner, brief=True).critique(asked, [RIGHT, WRONG, RIGHT, RIGHT])
    assert judged == [RIGHT, WRONG, RIGHT] and found[0] == found[2]
    scores = [critique.score for critique in found if isinstance(critique, Critique)]
    assert scores == [1.0, -1.0, 1.0, -1.0], "the tests of an example are part of the question"


def test_equal_jobs_run_once() -> None:
    with Runner() as counting:
        assert counting.run_all([(RIGHT, TESTS)] * 2) == [counting.run(RIGHT, TESTS)] * 2
        assert len(counting._verdicts) == 1
