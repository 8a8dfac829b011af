"""Programs that forge a verdict, in both tiers: none passes, none escapes a verdict where an honest one has one."""

from __future__ import annotations

import dataclasses
import json

import pytest
from forging import FAMILIES, FORGING, WEAK, check_really, judged, passes_really, secrets_found

from codeverdict import NO_VERDICT, Job, Runner, Tier, Verdict, stub_gate

Verdicts = dict[Job, Verdict]
ALL = (*FORGING, *FAMILIES)
MOST_UNSUPPORTED = 0.08
"""Tasks of these programs that cannot be judged, by the nature of their tests."""


@pytest.fixture(scope="module")
def honest(tier: Tier) -> Verdicts:
    with Runner(seconds=5.0, workers=2, tier=tier, memory_mb=512) as runner:
        return judged(runner, [each.honest_job() for each in ALL])


@pytest.fixture(scope="module")
def verdicts(tier: Tier) -> Verdicts:
    """The verdict on each forging program, beside the honest one as its reference."""
    tested = [each for each in ALL if each.task.tests]
    with Runner(seconds=2.0, workers=2, tier=tier, memory_mb=512) as runner:
        found = judged(runner, [each.job() for each in ALL if not each.task.tests])
        pairs = [(each.code, each.task.tests) for each in tested]
        beside = runner.run_all(pairs, references=[each.task.honest for each in tested])
        return found | {each.job(): verdict for each, verdict in zip(tested, beside, strict=True)}


def test_every_forging_program_fails_and_the_honest_one_passes(honest: Verdicts, verdicts: Verdicts) -> None:
    wrong = {}
    for forging in ALL:
        beside, verdict = honest[forging.honest_job()], verdicts[forging.job()]
        json.dumps(dataclasses.asdict(verdict), ensure_ascii=False).encode()
        honest_is_right = beside.outcome in ("passed", "unsupported")
        judged_alike = verdict.outcome not in NO_VERDICT or not beside.passed
        if not honest_is_right or verdict.passed or not judged_alike:
            wrong[forging.name] = (beside, verdict)
    assert not wrong


def test_next_to_no_honest_program_is_unsupported(honest: Verdicts) -> None:
    unsupported = [each.name for each in ALL if not honest[each.honest_job()].passed]
    assert len(unsupported) <= MOST_UNSUPPORTED * len(ALL), unsupported


def test_nothing_secret_is_in_the_memory_of_a_program(tier: Tier) -> None:
    with Runner(seconds=30.0, tier=tier) as runner:
        assert secrets_found(runner) == 0


def test_forged_lines_name_no_line(tier: Tier) -> None:
    """Lines of a program that did not run, or are none, are not in its verdict."""
    forged = [each for each in FORGING if each.family == "coverage"]
    assert forged
    with Runner(seconds=5.0, tier=tier, coverage=True) as runner:
        for each in forged:
            verdict = runner.run(each.code, each.task.tests)
            assert not verdict.passed and verdict.outcome not in NO_VERDICT, verdict
            there = range(1, each.code.count("\n") + 1)
            lines = [line for result in verdict.results for line in result.lines]
            assert all(type(line) is int and line in there for line in lines), lines


def test_no_task_with_weak_tests_is_admitted() -> None:
    wrong = {}
    with Runner(seconds=5.0, workers=2, memory_mb=512) as runner:
        for weak in WEAK:
            beside = runner.run(weak.task.honest, weak.task.tests)
            if beside.outcome not in ("passed", "unsupported") or stub_gate(runner, weak.task.tests).accepted:
                wrong[weak.name] = beside
    assert not wrong


@pytest.mark.nightly
def test_the_real_pytest_passes_the_honest_ones_and_what_is_weak() -> None:
    assert check_really("--honest") == ""
    assert passes_really([(each.code, each.task.tests) for each in WEAK]) == [True] * len(WEAK)


@pytest.mark.nightly
def test_the_real_pytest_fails_what_must_fail() -> None:
    """Of the families that the real pytest sees through; the others pass there, and not here."""
    seen = [each for each in FAMILIES if each.family in ("refused", "never run")]
    assert passes_really([(each.code, each.task.tests) for each in seen]) == [False] * len(seen)


def test_there_are_enough_of_them() -> None:
    for programs, families in ((FORGING, 10), (FAMILIES, 6), (WEAK, 6)):
        assert len({(each.code, each.task.tests) for each in programs}) == len(programs)
        assert len({each.family for each in programs}) >= families
    assert len(FORGING) >= 80 and len(FAMILIES) >= 80 and len(WEAK) >= 40
