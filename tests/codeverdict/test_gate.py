"""The stub gate: tests that a stub passes are no tests."""

from __future__ import annotations

from corpus import sections

from codeverdict import Gate, Runner, stub_gate
from codeverdict.gate import stubs
from codeverdict.reading import read_test_file


def test_a_task_is_accepted_if_no_stub_passes_it(runner: Runner) -> None:
    wrong = {}
    for title, tests in sections("stubs.txt"):
        name, _, reason = title.partition(" | ")
        gate = stub_gate(runner, tests)
        if reason not in gate.reason or gate.accepted != (not reason) or (gate.accepted and gate != Gate(True)):
            wrong[name] = gate
    assert not wrong


def test_a_task_is_accepted_only_with_a_reference_that_passes(runner: Runner) -> None:
    tests = "from solution import f\ndef test():\n    assert f(1) == 2\n"
    assert stub_gate(runner, tests, reference="def f(x):\n    return x + 1\n").accepted
    assert stub_gate(runner, tests, reference="def f(x):\n    return x\n").reason == "the reference: failed"
    broken = stub_gate(runner, tests, reference="import no_such_module\n").reason
    assert broken == "the reference: broken: ModuleNotFoundError: No module named 'no_such_module'"


def test_a_slow_reference_is_given_more_time(runner: Runner) -> None:
    tests = "from solution import f\ndef test():\n    assert f(1) == 2\n"
    with Runner(seconds=0.3, tier=runner.tier) as impatient:
        slow = "import time\ndef f(x):\n    end = time.process_time() + 0.6\n"
        slow += "    while time.process_time() < end:\n        pass\n    return x + 1\n"
        assert impatient.run(slow, tests).outcome == "timeout"
        assert stub_gate(impatient, tests, reference=slow).accepted


def test_there_are_about_thirty_stubs() -> None:
    found = dict(stubs(("f", "OwnError")))
    assert 30 <= len(found) <= 40
    assert len(set(found.values())) == len(found)


def test_names_are_read_from_the_tests() -> None:
    tests = "from solution import a, b as c\nimport os\ndef test():\n    assert c(d(len(os.name)))\n"
    assert read_test_file(tests).solution_names == ("a", "b", "d")
