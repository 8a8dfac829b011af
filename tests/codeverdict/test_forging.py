"""Programs that forge a verdict, in both tiers: none passes, none escapes a verdict; honest ones pass."""

from __future__ import annotations

import dataclasses
import json

import pytest
from forging import FORGING, Forging, check_really, judged, secrets_found

from codeverdict import NO_VERDICT, Job, Runner, Tier, Verdict

Verdicts = dict[Job, Verdict]


@pytest.fixture(scope="module")
def verdicts(tier: Tier) -> Verdicts:
    with Runner(seconds=2.0, workers=2, tier=tier, memory_mb=512) as runner:
        honest = judged(runner, [each.honest_job() for each in FORGING])
        return honest | judged(runner, [each.job() for each in FORGING])


@pytest.mark.parametrize("forging", FORGING, ids=lambda forging: forging.name)
def test_a_forging_program_fails_and_an_honest_one_passes(verdicts: Verdicts, forging: Forging) -> None:
    assert verdicts[forging.honest_job()].passed, verdicts[forging.honest_job()]
    verdict = verdicts[forging.job()]
    assert not verdict.passed, verdict
    assert verdict.outcome not in NO_VERDICT, verdict
    json.dumps(dataclasses.asdict(verdict), ensure_ascii=False).encode()


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


def test_the_real_pytest_passes_the_honest_ones() -> None:
    assert check_really("--honest") == ""


def test_there_are_enough_of_them() -> None:
    assert len({each.code for each in FORGING}) == len(FORGING) >= 80
    assert len({each.family for each in FORGING}) >= 10
