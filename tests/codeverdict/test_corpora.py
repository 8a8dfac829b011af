"""Hostile, forging, weak and right programs: each test lists the programs with a wrong verdict.

The best tier of the machine runs them all; the second one runs nightly.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from corpus import (
    DATA,
    FAMILIES,
    FORGING,
    HOSTILE,
    LIMITS,
    RIGHT,
    SCRIPTS,
    WEAK,
    Program,
    judged,
    lent_classes,
    passes_really,
    secrets_found,
)
from hostile import Machine, left_over

from codeverdict import NO_VERDICT, Job, Runner, Tier, Verdict, stub_gate

Verdicts = dict[Job, Verdict]
FORGED = (*FORGING, *FAMILIES)
MOST_UNSUPPORTED_FORGED, MOST_UNSUPPORTED_RIGHT = 0.08, 0.15
"""Shares of tasks that cannot be judged, by the nature of their tests."""
BY_NATURE = re.compile(
    r"derived from one of the solution|tests that use |tests that replace |that the solution decorates|"
    r"cannot cross to the solution|and a plain value|driven from outside|a pickle of|asynchronous tests|"
    r"the result of an object and a plain value|of an object of the tests"
)
"""The reasons for `unsupported` in docs/sandbox.md."""
SQUARE = "from solution import f\ndef test():\n    assert f(2) == 4 and f(3) == 9\n"
RIGHT_SQUARE = "def f(x):\n    return x * x\n"


def test_the_corpora_are_complete() -> None:
    sizes = {
        FORGING: (80, 10),
        FAMILIES: (80, 6),
        WEAK: (40, 6),
        RIGHT: (220, 1),
        HOSTILE: (60, 1),
        SCRIPTS: (15, 5),
    }
    for programs, (count, families) in sizes.items():
        assert len({(program.code, program.tests) for program in programs}) == len(programs) >= count
        assert len({program.family for program in programs}) >= families


def names_in(text: str) -> set[tuple[str, str]]:
    """Return (module, attribute) for each name in the sandbox's own modules that a program reaches
    for."""
    modules = re.findall(r"codeverdict\.inside(?:\.| import )(\w+)", text)
    used = {pair for module in modules for pair in re.findall(rf"\b({module})\.(_?[A-Za-z]\w+)", text)}
    return used | {(module, "__name__") for module in modules}


def test_names_that_attacks_use_exist_in_the_sandbox() -> None:
    """A program that forges by a name that has moved tests nothing."""
    names = {name for file in DATA.glob("*.txt") for name in names_in(file.read_text(encoding="utf-8"))}
    missing = [pair for pair in names if not hasattr(import_module(f"codeverdict.inside.{pair[0]}"), pair[1])]
    assert names and missing == []


@pytest.fixture(scope="module")
def honest(tier: Tier) -> Verdicts:
    with Runner(seconds=5.0, workers=2, tier=tier, memory_mb=512) as runner:
        return judged(runner, [program.honest_job() for program in FORGED])


@pytest.fixture(scope="module")
def forged(tier: Tier) -> Verdicts:
    """The verdict on each forging program, with the honest one as its reference."""
    tested = [program for program in FORGED if program.tests]
    with Runner(seconds=1.0, workers=2, tier=tier, memory_mb=512) as runner:
        verdicts = judged(runner, [program.job() for program in FORGED if not program.tests])
        pairs = [(program.code, program.tests) for program in tested]
        with_reference = runner.run_all(pairs, references=[program.honest for program in tested])
        return verdicts | {program.job(): verdict for program, verdict in zip(tested, with_reference, strict=True)}


def test_every_forging_program_fails_and_the_honest_one_passes(honest: Verdicts, forged: Verdicts) -> None:
    wrong = {}
    for program in FORGED:
        good, bad = honest[program.honest_job()], forged[program.job()]
        json.dumps(dataclasses.asdict(bad), ensure_ascii=False).encode()
        honest_is_right = good.outcome in ("passed", "unsupported")
        if not honest_is_right or bad.passed or (bad.outcome in NO_VERDICT and good.passed):
            wrong[program.name] = (good, bad)
    assert not wrong
    unsupported = [program.name for program in FORGED if not honest[program.honest_job()].passed]
    assert len(unsupported) <= MOST_UNSUPPORTED_FORGED * len(FORGED), unsupported


def test_no_secret_is_in_the_memory_of_a_program(tier: Tier) -> None:
    with Runner(seconds=30.0, tier=tier) as runner:
        assert secrets_found(runner) == 0


def test_no_class_of_the_test_process_can_be_called(tier: Tier) -> None:
    with Runner(seconds=30.0, tier=tier) as runner:
        assert lent_classes(runner) == 0


def test_forged_coverage_names_no_line(tier: Tier) -> None:
    """A verdict has no lines that did not run or do not exist."""
    programs = [program for program in FORGING if program.family == "coverage"]
    with Runner(seconds=5.0, tier=tier, coverage=True) as runner:
        verdicts = judged(runner, [program.job() for program in programs])
    for program in programs:
        verdict, numbers = verdicts[program.job()], range(1, program.code.count("\n") + 1)
        assert not verdict.passed and verdict.outcome not in NO_VERDICT, verdict
        lines = [line for result in verdict.results for line in result.lines]
        assert all(type(line) is int and line in numbers for line in lines), lines
    assert programs


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_task_with_weak_tests_is_admitted(share: int) -> None:
    """Each is tried with some thirty stubs: by day every third task."""
    wrong = {}
    with Runner(seconds=5.0, workers=2, memory_mb=512) as runner:
        for weak in WEAK[::share]:
            verdict = runner.run(weak.honest, weak.tests)
            if verdict.outcome not in ("passed", "unsupported") or stub_gate(runner, weak.tests).accepted:
                wrong[weak.name] = verdict
    assert not wrong


@pytest.fixture(scope="module")
def right(tier: Tier) -> Verdicts:
    with Runner(seconds=5.0, workers=2, tier=tier, memory_mb=512) as runner:
        return judged(runner, [program.job() for program in (*RIGHT, *LIMITS)])


def test_no_right_program_is_scored_wrong(right: Verdicts) -> None:
    """A program beyond the known limits (docs/sandbox.md) that passes belongs to the right
    programs."""
    verdicts = {program.name: right[program.job()] for program in RIGHT}
    wrong = {name: it for name, it in verdicts.items() if it.outcome not in ("passed", "unsupported")}
    unsupported = {name: it.error for name, it in verdicts.items() if it.outcome == "unsupported"}
    assert not wrong
    assert not {name: error for name, error in unsupported.items() if not BY_NATURE.search(error)}
    assert len(unsupported) <= MOST_UNSUPPORTED_RIGHT * len(RIGHT), unsupported
    assert [program.name for program in LIMITS if right[program.job()].passed] == []


def test_no_right_script_is_scored_wrong(tier: Tier) -> None:
    with Runner(seconds=5.0, tier=tier, memory_mb=512) as runner:
        verdicts = judged(runner, [program.job() for program in SCRIPTS])
    assert not {program.name: it for program in SCRIPTS if not (it := verdicts[program.job()]).passed}


@pytest.mark.nightly
def test_the_real_pytest_agrees() -> None:
    """It passes right, honest and weak programs, and fails the forging ones that it sees
    through."""
    seen = [program for program in FAMILIES if program.family in ("refused", "never run")]
    honest = {(program.honest, program.tests): program for program in (*FORGED, *WEAK) if program.tests}
    good = {(program.code, program.tests): program for program in (*RIGHT, *LIMITS, *WEAK)}
    bad = {(program.code, program.tests): program for program in seen}
    assert failing({**honest, **good}) == []
    assert failing(bad) == [program.name for program in seen]


def failing(programs: dict[tuple[str, str], Program]) -> list[str]:
    passed = passes_really(programs)
    return [program.name for program, passes in zip(programs.values(), passed, strict=True) if not passes]


@pytest.fixture(scope="module")
def impatient(tier: Tier) -> Iterator[Runner]:
    with Runner(seconds=1.0, tier=tier, memory_mb=512) as made:
        yield made


def test_no_hostile_program_passes_or_leaves_anything_behind(impatient: Runner) -> None:
    assert not {program.name: wrong for program in HOSTILE if (wrong := failed_checks(impatient, program))}


def failed_checks(runner: Runner, program: Program) -> dict[str, object]:
    """Run a hostile program between right and wrong ones; return the checks that failed, with what
    they saw."""
    assert runner.run(RIGHT_SQUARE, SQUARE).passed
    with closing(Machine()) as machine:
        verdict = runner.run(machine.filled_in(program.code), program.tests)
        touched = machine.touched()
    servers = [server.process for server in runner._servers]
    ended = verdict.outcome in ("failed", "broken", "timeout", "crashed") and verdict.tier == runner.tier
    checks: dict[str, object] = {
        "verdict": None if ended else verdict,
        "touched": touched,
        "the right one after it": not runner.run(f"{RIGHT_SQUARE}# after {program.name}", SQUARE).passed,
        "the wrong one after it": runner.run(f"def f(x):\n    return 4 # {program.name}", SQUARE).passed,
        "processes": [pids for server in servers if (pids := left_over(server, runner.tier))],
        "scratch": [path for server in servers for path in Path("/tmp").glob(f"codeverdict-{server}-*/*/*")],
    }
    return {name: seen for name, seen in checks.items() if seen}
