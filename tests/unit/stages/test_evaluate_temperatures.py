"""Evaluating beyond greedy and sampled: the best temperature, variety, and questions with
choices."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from places import CONFIGS
from text2grad.config import Config, load_config
from text2grad.errors import UserError
from text2grad.eval import measures
from text2grad.eval.measures import TaskMeasure
from text2grad.feedback import Example
from text2grad.policy.settings import GenerationSettings
from text2grad.stages.evaluate import policy as stage
from text2grad.stages.evaluate.policy import Exam, evaluate_policy, validation_prompts


def prompt(name: str, words: str = "") -> Example:
    return Example.model_validate({"id": name, "prompt": [{"role": "user", "content": words or name}]})


class Prompts:
    """Ten training prompts; one of them is worded like a held-out one."""

    name, critic_prompt = "prompts", "qa"

    def examples(self, split: str) -> list[Example]:
        if split == "train":
            return [prompt(f"t{n}") for n in range(9)] + [prompt("t9", " HELD  out")]
        return [prompt("h0", "held out"), prompt("h1")] if split == "heldout" else []

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"rouge_l": float(response)}


def config_with(*words: str) -> Config:
    return load_config(CONFIGS / "demo.yaml", ["--evaluate.samples", "2", "--run.threads", "1", *words])


TEMPERATURES = ["--evaluate.temperatures", "[0.3, 0.7, 1.0]", "--evaluate.validation", "4"]


class Sampler:
    """Scores 0.9 at 0.7 on training prompts and at 1 on held-out ones; notes what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[float, list[str]]] = []
        monkeypatch.setattr(stage, "sample", self)

    def __call__(
        self, policy: Any, examples: Sequence[Example], generation: GenerationSettings, *_: Any
    ) -> list[tuple[list[int], str]]:
        self.asked.append((generation.temperature, [each.id for each in examples]))
        good = {"t": 0.7, "h": 1.0}
        return [([7] * 8, "0.9" if good[e.id[0]] == generation.temperature else "0.5") for e in examples]


def test_the_temperature_is_chosen_on_training_prompts_and_measured_on_held_out_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampler, config, task = Sampler(monkeypatch), config_with(*TEMPERATURES), Prompts()
    validation = validation_prompts(task, 4)  # type: ignore[arg-type]
    assert [each.id for each in validation] == ["t5", "t6", "t7", "t8"], "the last, without one that is held out"
    measure = TaskMeasure(task, None)  # type: ignore[arg-type]
    policy: Any = SimpleNamespace(tokenizer=None)
    monkeypatch.setattr(measures, "run_attempts", lambda *_: [])
    temperatures = config.evaluate.temperatures
    exam = Exam(task.examples("heldout"), measure, config.generation, 2, 0, temperatures, validation)
    figures = evaluate_policy(policy, exam).summary.figures
    asked, twice = ["h0", "h0", "h1", "h1"], [name for n in range(5, 9) for name in [f"t{n}"] * 2]
    assert sampler.asked == [
        (0.0, ["h0", "h1"]),
        (1.0, asked),
        (0.3, twice),
        (0.7, twice),
        (1.0, twice),
        (0.7, asked),
    ]
    assert figures["best_temperature"] == 0.7
    assert {key: value for key, value in figures.items() if "rouge" in key or "validation" in key} == {
        "greedy_rouge_l": 0.5,
        "sampled_rouge_l": 0.9,
        "best_temperature_rouge_l": 0.5,
        "validation_at_0.3": 0.5,
        "validation_at_0.7": pytest.approx(0.9),
        "validation_at_1": 0.5,
    }
    assert (figures["greedy_length"], figures["greedy_repetition"], figures["greedy_distinct_1"]) == (
        8,
        0.8,
        1 / 16,
    )


def test_a_task_without_training_prompts_names_the_cure() -> None:
    task: Any = SimpleNamespace(name="held", examples=lambda split: [prompt("h")] if split == "heldout" else [])
    with pytest.raises(UserError, match="no training prompts to choose a temperature on") as caught:
        validation_prompts(task, 4)
    assert "remove evaluate.temperatures" in str(caught.value)
