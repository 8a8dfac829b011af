"""The stub gate: tests that a stub passes are no tests."""

from __future__ import annotations

import pytest

from codeverdict import Gate, Runner, stub_gate
from codeverdict.gate import stubs
from codeverdict.reading import read


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("from solution import f\ndef test():\n    assert f(1) is None\n", "returns None"),
        ("from solution import f\ndef test():\n    f(1)\n", "returns None"),
        ("from solution import f\ndef test():\n    assert f([1]) == [1]\n", "first argument"),
        ("def test():\n    assert f(1)\n    assert g(0)\n", "returns True"),
        (
            "from solution import *\ndef test():\n    t = T()\n    t.add(1)\n    assert 1 in t\n",
            "between all bounds",
        ),
        ("from solution import T\ndef test():\n    assert isinstance(T(), T)\n    assert T().ok\n", "a class of"),
        ("import solution\ndef test():\n    assert solution.f([3, 1, 2]) == [1, 2, 3]\n", "sorted"),
        ("from solution import f\ndef test():\n    assert 1.4 < f(2) < 1.5\n", "between all bounds"),
        (
            "from solution import f\ndef test():\n    for got, want in zip(f(2), [1, 4]):\n"
            "        assert got == want\n",
            "returns ''",
        ),
        (
            "import pytest\nfrom solution import f\ndef test():\n    with pytest.raises(ValueError):\n"
            "        f(1)\n",
            "raises",
        ),
        (
            "import pytest\nfrom solution import f, BadError\ndef test():\n    with pytest.raises(BadError):\n"
            "        f(1)\n",
            "raises BadError",
        ),
        ("from solution import Money\ndef test():\n    assert Money(5) == 5\n", "first argument"),
    ],
)
def test_a_task_that_a_stub_passes_is_rejected(runner: Runner, tests: str, reason: str) -> None:
    gate = stub_gate(runner, tests)
    assert not gate.accepted
    assert reason in gate.reason


@pytest.mark.parametrize(
    "tests",
    [
        "from solution import f\ndef test():\n    assert f(1) == 2\n",
        "from solution import f\ndef test():\n    assert abs(f(1) - 2.0) < 1e-6\n",
        "from solution import T\ndef test():\n    t = T()\n    t.add(1)\n    assert 1 in t and 2 not in t\n",
        "import pytest\nfrom solution import f\ndef test():\n    assert f(2) == 4\n"
        "    with pytest.raises(ValueError):\n        f(1)\n",
        "def test_f(:\n",
    ],
)
def test_a_task_that_needs_a_solution_is_accepted(runner: Runner, tests: str) -> None:
    assert stub_gate(runner, tests) == Gate(True)


def test_a_task_is_accepted_only_with_a_reference_that_passes(runner: Runner) -> None:
    tests = "from solution import f\ndef test():\n    assert f(1) == 2\n"
    assert stub_gate(runner, tests, reference="def f(x):\n    return x + 1\n").accepted
    assert stub_gate(runner, tests, reference="def f(x):\n    return x\n").reason == "the reference: failed"
    broken = stub_gate(runner, tests, reference="import no_such_module\n").reason
    assert broken == "the reference: broken: ModuleNotFoundError: No module named 'no_such_module'"


def test_there_are_some_thirty_stubs() -> None:
    found = dict(stubs(("f", "OwnError")))
    assert 30 <= len(found) <= 40
    assert len(set(found.values())) == len(found)


def test_names_are_read_from_the_tests() -> None:
    tests = "from solution import a, b as c\nimport os\ndef test():\n    assert c(d(len(os.name)))\n"
    assert read(tests).taken == ("a", "b", "d")
