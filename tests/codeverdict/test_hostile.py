"""Hostile programs, in both tiers: none passes, none leaves anything behind, the next one is judged as ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hostile import HOSTILE, TESTS, Hostile, Machine, left_over

from codeverdict import Runner, Tier

RIGHT = "def f(x):\n    return x * x\n"


@pytest.fixture(scope="module")
def runner(tier: Tier) -> Iterator[Runner]:
    with Runner(seconds=2.0, tier=tier, memory_mb=512) as made:
        yield made


def left_in_scratch(runner: Runner) -> list[Path]:
    """What lies in the folders of the jobs of the runner's servers; one that no job touched stays for the next."""
    servers = [server.process for server in runner._servers]
    return [path for pid in servers for path in Path("/tmp").glob(f"codeverdict-{pid}-*/*/*")]


def test_no_hostile_program_passes_or_leaves_anything_behind(runner: Runner) -> None:
    assert not {hostile.name: wrong for hostile in HOSTILE if (wrong := what_went_wrong(runner, hostile))}


def what_went_wrong(runner: Runner, hostile: Hostile) -> dict[str, object]:
    """Run a hostile program between right and wrong ones; every check that failed, with what it saw."""
    assert runner.run(RIGHT, TESTS).passed
    with closing(Machine()) as machine:
        verdict = runner.run(machine.filled_in(hostile.code), hostile.tests)
        touched = machine.touched()
    left = [left_over(server.process, runner.tier) for server in runner._servers]
    ended = verdict.outcome in ("failed", "broken", "timeout", "crashed") and verdict.tier == runner.tier
    checks: dict[str, object] = {
        "verdict": None if ended and not verdict.passed else verdict,
        "touched": touched,
        "the right one after it": not runner.run(f"{RIGHT}# after {hostile.name}", TESTS).passed,
        "the wrong one after it": runner.run(f"def f(x):\n    return 4 # {hostile.name}", TESTS).passed,
        "processes": [each for each in left if each],
        "scratch": left_in_scratch(runner),
    }
    return {name: seen for name, seen in checks.items() if seen}


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 20 + 15 + 25
    assert len({hostile.name for hostile in HOSTILE}) == len(HOSTILE)
