"""What a step takes, by phase and beside scalar PPO."""

from __future__ import annotations

from typing import Any

import pytest

from text2grad.report.times import HEAD, seconds_a_step, time_rows


def steps(*seconds: float, count: int = 2) -> list[dict[str, Any]]:
    names = ("seconds_generate", "seconds_critique", "seconds_score", "seconds_update")
    rows = [dict(zip(names, seconds, strict=True)) for _ in range(count)]
    return [{**row, "seconds_heldout": 99.0} for row in rows]


def test_seconds_are_means_over_steps_and_compared_with_scalar_ppo() -> None:
    own = [*steps(1, 2, 3, 4), *steps(3, 2, 3, 4)]
    found = seconds_a_step({"text2grad": own, "scalar": steps(2, 0, 2, 4), "dpo": [{"loss": 1.0}], "x": []})
    assert found["text2grad"] == pytest.approx(
        {"generate": 2, "critique": 2, "score": 3, "update": 4, "whole": 11, "times_scalar": 11 / 8}
    )
    assert found["scalar"]["times_scalar"] == 1 and found.keys() == {"text2grad", "scalar"}
    rows = time_rows(found, {"scalar": "scalar PPO"})
    assert rows[0] == ["text2grad", "2.00", "2.00", "3.00", "4.00", "11.00", "1.38"]
    assert rows[1][0] == "scalar PPO" and all(len(row) == len(HEAD) for row in rows)


@pytest.mark.parametrize("name", ["scalar_ppo", "scalar_rm"])
def test_any_run_of_scalar_ppo_will_do(name: str) -> None:
    assert seconds_a_step({"mine": steps(1, 1, 1, 1), name: steps(1, 0, 1, 0)})["mine"]["times_scalar"] == 2


def test_without_scalar_ppo_there_is_no_ratio() -> None:
    found = seconds_a_step({"mine": steps(1, 1, 1, 1)})
    assert "times_scalar" not in found["mine"] and time_rows(found, {})[0][-1] == "–"
    assert "times_scalar" not in seconds_a_step({"mine": steps(1, 1, 1, 1), "scalar": steps(0, 0, 0, 0)})["mine"]
