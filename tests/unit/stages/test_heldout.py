"""The policy that a run hands over is the best on its held-out curve, also where it was stopped on
the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from text2grad.config import PRESETS, Config, load_config
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.page.report import policy_rows
from text2grad.page.runs import read_run
from text2grad.page.signs import describe_choice
from text2grad.policy.load import load_frozen
from text2grad.policy.settings import PolicySettings
from text2grad.stages.critics import CriticFactory
from text2grad.stages.evaluate import heldout
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.train import run_train
from text2grad.tasks.base import Split
from text2grad.train import ppo
from tiny_runs import Halves, tiny_model


class Say:
    """Two prompts to train on and three held out; its measure is scripted."""

    name, critic_prompt = "say", "qa"

    def examples(self, split: Split) -> list[Example]:
        names = ("x", "y", "z") if split == "heldout" else ("a", "b")
        return [Example(id=n, prompt=(Message(role="user", content=f"Say {n}."),), reference="ok") for n in names]

    def scores(self, example: Example, response: str) -> dict[str, float]:
        return {"rouge_l": 0.0}


@dataclass
class Script:
    """The greedy measures of a run, in their order; an error in the place of one stops the run
    there."""

    values: Iterator[float | type[BaseException]] = field(default_factory=lambda: iter(()))
    measures: bool = True

    def __call__(self, *_: Any) -> Any:
        value = next(self.values)
        if not isinstance(value, float):
            raise value
        figures = {"greedy_rouge_l": value, "sampled_rouge_l": 0.0, "greedy_length": -value}
        rows = [{"scores": {"rouge_l": value} if self.measures else {}}]
        return SimpleNamespace(summary=SimpleNamespace(figures=figures), answers=rows)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    monkeypatch.setattr(RunFolder, "task", lambda run: Say())
    monkeypatch.setattr(CriticFactory, "open", lambda *words: nullcontext(Halves()))
    monkeypatch.setattr(heldout, "evaluate_policy", script)
    monkeypatch.setattr(ppo, "CHECKPOINT_EVERY", 2)
    return script


def config_in(folder: Path, *words: str) -> Config:
    model = str(tiny_model(folder / "model"))
    (folder / "run").mkdir(parents=True)
    common = ["--run.folder", str(folder / "run"), "--policy.model", model, "--generation.max_new_tokens", "5"]
    small = ["--ppo.rollouts", "4", "--run.threads", "1", "--ppo.lr", "1e-3", "--ppo.heldout_every", "1"]
    return load_config(PRESETS / "demo.yaml", [*common, *small, *words])


def weights(policy: Path) -> dict[str, Tensor]:
    return load_file(policy / "model.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize(
    ("values", "best"),
    [((0.1, 0.3, 0.5, 0.4), 2), ((0.1, 0.2, 0.2, 0.2), 1), ((0.1, 0.0, 0.2, 0.3), 3), ((0.4, 0.3, 0.4, 0.1), 0)],
)
def test_the_first_of_the_best_steps_is_handed_over(
    values: tuple[float, ...], best: int, script: Script, tmp_path: Path
) -> None:
    config = config_in(tmp_path, "--ppo.steps", "3", "--ppo.keep_every", "1")
    script.values = iter(values)
    summary = run_train(config, "mine")
    place = tmp_path / "run" / "ppo" / "mine"
    kept = place / f"mine-step-{best}" if best else tmp_path / "model"
    assert same(weights(place / "policy"), weights(kept))
    others = [weights(place / f"mine-step-{step}") for step in (1, 2, 3) if step != best]
    assert not any(same(weights(place / "policy"), other) for other in others)
    chosen = {"step": best, "steps": 3, "measure": "greedy rouge_l", "prompts": 3}
    chosen |= {"value": values[best], "start": values[0], "last": values[-1]}
    assert summary["chosen"] == chosen
    assert not (place / "best").exists() and not (place / "checkpoints").exists()
    load_frozen(PolicySettings(model=str(place / "policy")))  # its manifest fits
    sentence = describe_choice(chosen)
    [effect] = [row.effect for row in policy_rows(read_run(tmp_path / "run")) if row.name == "mine"]
    assert effect.endswith(sentence)
    assert all(word in sentence for word in ("3 held-out prompts", "greedy rouge l"))


def test_a_run_that_was_stopped_hands_over_the_same(script: Script, tmp_path: Path) -> None:
    """Stopped after a better step than the checkpoint knows, and resumed before that step."""
    curve = (0.1, 0.3, 0.2, 0.5, 0.4)
    place = tmp_path / "one" / "run" / "ppo" / "mine"
    script.values = iter(curve)
    whole = run_train(config_in(tmp_path / "one", "--ppo.steps", "4"), "mine")
    config = config_in(tmp_path / "two", "--ppo.steps", "4")
    script.values = iter((*curve[:4], ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        run_train(config, "mine")
    script.values = iter(curve[3:])
    assert run_train(config, "mine")["chosen"] == whole["chosen"]
    assert same(weights(place / "policy"), weights(tmp_path / "two" / "run" / "ppo" / "mine" / "policy"))


def test_what_came_after_the_checkpoint_counts_only_once_it_came_again(script: Script, tmp_path: Path) -> None:
    config = config_in(tmp_path, "--ppo.steps", "4", "--ppo.keep_every", "1")
    place = tmp_path / "run" / "ppo" / "mine"
    script.values = iter((0.1, 0.3, 0.2, 0.5, ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        run_train(config, "mine")
    script.values = iter((0.2, 0.1))  # as on another machine
    chosen = run_train(config, "mine")["chosen"]
    assert chosen and (chosen["step"], chosen["value"]) == (1, 0.3)
    assert same(weights(place / "policy"), weights(place / "mine-step-1"))


def test_steps_that_are_taken_again_in_another_way_are_chosen_anew(script: Script, tmp_path: Path) -> None:
    config = config_in(tmp_path, "--ppo.steps", "4", "--ppo.keep_every", "1")
    place = tmp_path / "run" / "ppo" / "mine"
    script.values = iter((0.1, 0.3, 0.2, 0.5, ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        run_train(config, "mine")
    script.values = iter((0.4, 0.1))
    changed = config.model_copy(update={"ppo": config.ppo.model_copy(update={"lr": 1e-2})})
    chosen = run_train(changed, "mine", "force")["chosen"]
    assert chosen and (chosen["step"], chosen["value"]) == (3, 0.4)
    assert same(weights(place / "policy"), weights(place / "mine-step-3"))


def test_a_run_that_starts_over_forgets_the_earlier_one(script: Script, tmp_path: Path) -> None:
    config = config_in(tmp_path, "--ppo.steps", "3")
    script.values = iter((0.1, 0.9, 0.2, ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        run_train(config, "mine")
    script.values = iter((0.1, 0.2, 0.3, 0.2))
    chosen = run_train(config, "mine", "restart")["chosen"]
    assert chosen and chosen["step"] == 2


def test_a_task_without_a_measure_chooses_nothing(script: Script, tmp_path: Path) -> None:
    script.values, script.measures = iter((0.1, 0.2)), False
    with pytest.raises(UserError, match=r"'say' has no measure"):
        run_train(config_in(tmp_path, "--ppo.steps", "1"), "mine")


def test_without_a_curve_it_is_the_last_and_nothing_is_said(script: Script, tmp_path: Path) -> None:
    config = config_in(tmp_path, "--ppo.steps", "2", "--ppo.keep_every", "2")
    script.values = iter((0.9, 0.1, 0.1))
    run_train(config, "mine")
    unwatched = config.model_copy(update={"ppo": config.ppo.model_copy(update={"heldout_every": None})})
    assert run_train(unwatched, "mine").get("chosen") is None
    place = tmp_path / "run" / "ppo" / "mine"
    assert same(weights(place / "policy"), weights(place / "mine-step-2"))
    assert not json.loads((place / "policy" / "manifest.json").read_text())["files"].get("choice.json")
