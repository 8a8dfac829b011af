"""Hostile programs, in both tiers: none passes, none leaves anything behind, the next one is judged as ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import HOSTILE, TESTS, Hostile, Machine, left_over

from codeverdict import Runner, Tier

RIGHT = "def f(x):\n    return x * x\n"


@pytest.fixture(scope="module")
def runner(tier: Tier) -> Iterator[Runner]:
    with Runner(seconds=2.0, tier=tier, memory_mb=512) as made:
        yield made


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def left_in_scratch(runner: Runner) -> list[Path]:
    """What lies in the folders of the jobs of the runner's servers; one that no job touched stays for the next."""
    servers = [server.process for server in runner._servers]
    return [path for pid in servers for path in Path("/tmp").glob(f"codeverdict-{pid}-*/*/*")]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_a_hostile_program(runner: Runner, machine: Machine, hostile: Hostile) -> None:
    assert runner.run(RIGHT, TESTS).passed
    verdict = runner.run(machine.filled_in(hostile.code), hostile.tests)
    assert not verdict.passed, verdict
    assert verdict.outcome in ("failed", "broken", "timeout", "crashed"), verdict
    assert verdict.tier == runner.tier
    assert machine.touched() == []
    assert runner.run(f"{RIGHT}# after {hostile.name}", TESTS).passed
    assert runner.run(f"def f(x):\n    return 4 # {hostile.name}", TESTS).outcome == "failed"
    left = [left_over(server.process, runner.tier) for server in runner._servers]
    assert not any(left), left
    assert left_in_scratch(runner) == []


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 20 + 15 + 25
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE)
