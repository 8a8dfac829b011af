"""Right programs with tests as people write them, in both tiers: none is scored wrong, and what is unsupported is
so by the nature of its tests."""

from __future__ import annotations

import re

import pytest
from forging import LIMITS, RIGHT, check_really, judged

from codeverdict import Job, Runner, Tier, Verdict

Verdicts = dict[Job, Verdict]
MOST_UNSUPPORTED = 0.15
BY_NATURE = re.compile(
    r"derived from one of the solution|tests that use |tests that replace |that the solution decorates|"
    r"cannot cross to the solution|and a plain value|driven from outside|a pickle of|asynchronous tests|"
    r"what an object and a plain value came to|of an object of the tests"
)
"""What docs/sandbox.md says is not judged."""


@pytest.fixture(scope="module")
def verdicts(tier: Tier) -> Verdicts:
    with Runner(seconds=5.0, workers=2, tier=tier, memory_mb=512) as runner:
        return judged(runner, [each.job() for each in (*RIGHT, *LIMITS)])


def test_no_right_program_is_scored_wrong(verdicts: Verdicts) -> None:
    wrong = {right.name: verdicts[right.job()] for right in RIGHT}
    assert not {name: each for name, each in wrong.items() if each.outcome not in ("passed", "unsupported")}


def test_what_is_unsupported_is_so_by_the_nature_of_its_tests(verdicts: Verdicts) -> None:
    unsupported = [right.name for right in RIGHT if verdicts[right.job()].outcome == "unsupported"]
    errors = [verdicts[right.job()].error for right in RIGHT if right.name in unsupported]
    assert [error for error in errors if not BY_NATURE.search(error)] == []
    assert len(unsupported) <= MOST_UNSUPPORTED * len(RIGHT), unsupported


@pytest.mark.nightly
def test_the_real_pytest_passes_them_all() -> None:
    assert check_really("--right") == ""
    assert check_really("--limits") == ""


def test_the_known_limits_are_limits_still(verdicts: Verdicts) -> None:
    """docs/sandbox.md says of these that they fail: one that passes belongs to the right programs."""
    assert [limit.name for limit in LIMITS if verdicts[limit.job()].passed] == []


def test_there_are_enough_of_them() -> None:
    assert len({each.name for each in RIGHT}) == len(RIGHT) >= 220
    assert len({each.code + each.tests for each in RIGHT}) == len(RIGHT)
