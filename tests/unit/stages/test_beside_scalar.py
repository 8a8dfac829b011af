"""A run on token rewards that is below scalar PPO is named, beyond chance and for runs of PPO
alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from text2grad.config import Config, dump_config, find_config, load_config
from text2grad.page.signs import describe_comparison
from text2grad.stages.evaluate.policy import compare_with_start, warn_below_scalar
from text2grad.stages.run_folder import RunFolder

PPO = '{"step": 0, "critic_failed": 0.0}\n'


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config([find_config("demo")], ["--run.folder", str(tmp_path)])


def trained(config: Config, name: str, recipe: str = "", metrics: str = PPO, settings: str = "") -> None:
    place = config.run.folder / "ppo" / name
    place.mkdir(parents=True)
    files = [find_config("demo"), *([find_config(recipe)] if recipe else [])]
    (place / "config.yaml").write_text(settings or dump_config(load_config(files)), encoding="utf-8")
    (place / "metrics.jsonl").write_text(metrics, encoding="utf-8")


def measured(config: Config, name: str, passed: Mapping[str, float], measure: str = "pass") -> None:
    place = config.run.folder / "evaluation" / "demo" / f"{name}.scores.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    scores = {way: {id: {measure: value} for id, value in passed.items()} for way in ("greedy", "sampled")}
    place.write_text(json.dumps(scores), encoding="utf-8")


def signs(config: Config, name: str) -> list[str]:
    return list(warn_below_scalar(RunFolder.of(config), name))


LOW, HIGH = {str(n): 0.2 for n in range(20)}, {str(n): 0.7 for n in range(20)}


def beside(config: Config, ours: Mapping[str, float], scalars: Mapping[str, float], measure: str = "pass") -> None:
    """A run on token rewards and scalar PPO, both measured."""
    for name, recipe, passed in (("mine", "", ours), ("scalar", "scalar", scalars)):
        trained(config, name, recipe)
        measured(config, name, passed, measure)


@pytest.mark.parametrize("target", ["text2grad", "scalar_ppo"])
def test_a_run_below_scalar_ppo_is_named_whichever_is_measured_last(config: Config, target: str) -> None:
    trained(config, "text2grad")
    trained(config, "scalar_ppo", "scalar")
    measured(config, "text2grad", LOW)
    assert signs(config, target) == []
    measured(config, "scalar_ppo", HIGH)
    (line,) = signs(config, target)
    assert "text2grad is below scalar_ppo by 0.500" in line
    assert signs(config, "sft") == []


@pytest.mark.parametrize("measure", ["rouge_l", "named"])
def test_it_goes_by_the_main_measure_of_the_task(config: Config, measure: str) -> None:
    beside(config, LOW, HIGH, measure)
    assert len(signs(config, "mine")) == 1


@pytest.mark.parametrize(
    ("ours", "scalars"),
    [(HIGH, LOW), (LOW, LOW), (LOW, {**LOW, "0": 0.9}), (LOW, {str(n): 0.7 for n in range(50, 60)})],
)
def test_what_is_better_or_within_chance_or_on_other_problems_is_no_sign(
    config: Config, ours: dict[str, float], scalars: dict[str, float]
) -> None:
    beside(config, ours, scalars)
    assert signs(config, "mine") == []


@pytest.mark.parametrize(
    ("recipe", "metrics", "settings"),
    [
        ("", '{"step": 0, "loss": 1.0}\n', ""),
        ("", "", ""),
        ("", PPO, "of_another_version: {}\n"),
        ("grpo", PPO, ""),
    ],
)
def test_runs_of_another_kind_are_not_compared(config: Config, recipe: str, metrics: str, settings: str) -> None:
    beside(config, LOW, HIGH)
    trained(config, "other", recipe, metrics, settings)
    measured(config, "other", LOW)
    assert signs(config, "other") == []


@pytest.mark.parametrize(("advantage", "named"), [("returns", 1), ("group", 0)])
def test_a_verdict_that_is_compared_with_others_is_not_scalar_ppo(
    config: Config, advantage: str, named: int
) -> None:
    words = ["--ppo.advantage", advantage, "--ppo.samples_per_prompt", "4"]
    other = dump_config(load_config([find_config("demo"), find_config("scalar")], words))
    trained(config, "mine")
    trained(config, "verdicts", settings=other)
    measured(config, "mine", LOW)
    measured(config, "verdicts", HIGH)
    assert len(signs(config, "mine")) == named


def made(config: Config, *places: str) -> RunFolder:
    """A run with policies in these places."""
    for place in places:
        (config.run.folder / place / "policy").mkdir(parents=True)
    return RunFolder.of(config)


def test_a_policy_is_compared_with_the_one_it_started_from(config: Config) -> None:
    run = made(config, "sft", "ppo/mine")
    measured(config, "base", LOW)
    measured(config, "mine", HIGH)
    against_base = compare_with_start(run, "mine")
    assert against_base and against_base["against"] == "base", "the only one that is measured"
    measured(config, "sft", {**LOW, "0": 0.9})
    found = compare_with_start(run, "mine")
    assert found and (found["against"], found["measure"], found["prompts"]) == ("sft", "sampled pass", 20)
    assert (round(found["value"], 3), round(found["other"], 3)) == (0.7, 0.235)
    low, high = found["interval"]
    assert 0 < low < 0.465 < high
    words = describe_comparison("mine", found)
    assert "better than sft by sampled pass on 20 held-out prompts" in words
    back = compare_with_start(run, "sft")
    assert back and back["against"] == "base" and "not significantly different" in describe_comparison("sft", back)
    measured(config, "mine", {id: 0.0 for id in LOW})
    worse = compare_with_start(run, "mine")
    assert worse and "worse than sft" in describe_comparison("mine", worse)


def test_what_started_nowhere_or_beside_nothing_is_compared_with_nothing(config: Config) -> None:
    run = made(config, "sft", "ppo/mine")
    measured(config, "mine", HIGH)
    assert compare_with_start(run, "mine") is None
    measured(config, "sft", {"another": 0.5})
    assert compare_with_start(run, "mine") is None, "no prompt that both answered"
    measured(config, "base", LOW)
    measured(config, "elsewhere", LOW)
    assert compare_with_start(run, "base") is None and compare_with_start(run, "elsewhere") is None
