"""Sentences about a run that has ended, read off what it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from text2grad.report.verdict import reward_model_verdict, training_verdict


def written(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    lines = "".join(json.dumps({"step": n, **row}) + "\n" for n, row in enumerate(rows))
    (folder / "metrics.jsonl").write_text(lines)
    return training_verdict(folder)


def scores(values: list[float], kl: float = 0.01) -> list[dict[str, float]]:
    return [{"score": value, "kl_token": kl} for value in values]


def test_a_score_that_rises_beyond_its_noise(tmp_path: Path) -> None:
    rising = [-0.5 + 0.05 * n + (0.02 if n % 2 else -0.02) for n in range(20)]
    assert written(tmp_path, scores(rising)) == [
        "The critic's score went from -0.47 to +0.43: better.",
        "It is 0.010 nats a token from where it started.",
    ]
    falling = written(tmp_path, scores(rising[::-1]))[0]
    assert falling.endswith("from +0.43 to -0.47: worse.")


def test_a_score_that_only_wavers_is_called_no_progress(tmp_path: Path) -> None:
    wavering = [0.3 if n % 2 else -0.3 for n in range(20)]
    wavering[-1] = 0.5
    assert "within its noise" in written(tmp_path, scores(wavering))[0]
    assert "within its noise" in written(tmp_path, scores([0.25]))[0]


def test_a_policy_that_is_far_away_is_warned_of(tmp_path: Path) -> None:
    assert written(tmp_path, scores([0.1, 0.2], kl=1.5))[1].endswith("read its answers.")


def test_a_critic_without_scores_is_told_by_its_rewards(tmp_path: Path) -> None:
    assert written(tmp_path, [{"kl_token": 0.01}] * 2) == ["It is 0.010 nats a token from where it started."]
    with_a_gap = [{"score": 0.25, "kl_token": 0.01}, {"kl_token": 0.01}, {"score": 0.5, "kl_token": 0.01}]
    assert "from +0.25 to +0.50" in written(tmp_path, with_a_gap)[0]
    rising = [{"delta_sum": 0.1 * n} for n in range(20)]
    assert written(tmp_path, rising)[0] == "The reward of an answer went from +0.05 to +1.85: better."
    verdicts = [{**row, "score": 0.0} for row in rising]
    assert written(tmp_path, verdicts)[0].startswith("The reward of an answer (all scores are equal)")


@pytest.mark.parametrize("rows", [[{"score": 0.0}], [{"delta_sum": -1.0}], [{"score": 0.5, "delta_sum": 1.5}]])
def test_rewards_that_are_all_equal_are_no_case_for_more_steps(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    [said] = written(tmp_path, rows * 20)
    assert said.startswith("Every answer earned the same") and "ppo.lr" not in said


def test_more_steps_are_not_advised_where_the_score_fell(tmp_path: Path) -> None:
    wavering = [0.3 if n % 2 else -0.3 for n in range(20)]
    assert ": try more steps, or a higher ppo.lr." in written(tmp_path, scores([*wavering, -0.2, 0.5]))[0]
    down = written(tmp_path, scores([-0.22, -0.9, -0.1, -0.86]))[0]
    assert down == "The critic's score went from -0.22 to -0.86, within its noise."


@pytest.mark.parametrize("kl", [-0.004, -1e-9, 0.0, 0.0009])
def test_a_distance_is_never_below_zero(tmp_path: Path, kl: float) -> None:
    said = written(tmp_path, [{"kl_token": kl}] * 3)
    assert said == ["It has hardly moved: less than 0.001 nats a token from where it started."]


def test_what_rounding_leaves_of_zero_is_zero(tmp_path: Path) -> None:
    assert "went from +0.00 to +0.20" in written(tmp_path, scores([-1.39e-17, 0.2]))[0]


def test_supervised_runs_and_pairs(tmp_path: Path) -> None:
    assert written(tmp_path, [{"loss": 2.0}, {"loss": 1.0}]) == ["The loss went from 2 to 1."]
    assert written(tmp_path, [{"loss": 1.0}, {"loss": 1.0}]) == ["The loss went from 1 to 1: nothing was learned."]
    both = written(tmp_path, [{"loss": 0.7, "accuracy": 0.5}, {"loss": 0.6, "accuracy": 0.75}])
    assert both[0] == "Training pairs ranked correctly: 75%, at first 50%."


def test_a_run_without_metrics_says_nothing(tmp_path: Path) -> None:
    assert training_verdict(tmp_path) == []


RATES = {"good_recall": 0.8, "good_precision": 0.7, "poor_recall": 0.4, "poor_precision": 0.5, "poor_f1": 0.44}


@pytest.mark.parametrize(("wrong", "says"), [(0.05, "few enough"), (0.3, "too many")])
def test_a_reward_model(wrong: float, says: str) -> None:
    found, sign = reward_model_verdict({**RATES, "wrong_sign_rate": wrong})
    assert "80% of the good tokens (precision 70%), 40% of the poor tokens (precision 50%)" in found
    assert says in sign
    assert reward_model_verdict({"records": 3}) == []
