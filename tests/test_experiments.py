"""What the experiments say in numbers, from curves that are given."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from places import ROOT

sys.path.insert(0, str(ROOT / "experiments"))

import credit_signs
import noise
import pretrained
import sample_efficiency
import text_task
from figure import Strip, tokens_svg
from recipe import recipe_of, refuse_other_recipe
from text2grad.compare.methods import methods_of
from text2grad.config import Config, find_config, laid_over, load_config
from text2grad.feedback import Critique, Span


def curve(*rates: float) -> list[dict[str, float]]:
    return [{"rollouts": 100.0 * n, "sampled": rate} for n, rate in enumerate(rates, start=1)]


def found(ours: list[Any], scalar: list[Any]) -> dict[str, Any]:
    """The figures of a comparison on two seeds, SFT at .2 and .4."""
    ends = {"text2grad": ours, "scalar": scalar}
    rows = {name: {"metric": sum(each[-1]["sampled"] for each in seeds) / 2} for name, seeds in ends.items()}
    return {"methods": {"sft": {"seeds": [0.2, 0.4]}, **rows}, "curves": ends, "collapsed": []}


def test_sample_efficiency_compares_curves_on_each_seed() -> None:
    comparison = found([curve(0.6, 0.8), curve(0.5, 0.7)], [curve(0.3, 0.5), curve(0.5, 0.6)])
    figures = sample_efficiency.figures(comparison, ["text2grad", "scalar"], [0, 1])
    assert figures["text2grad_final"] == 0.75 and figures["scalar_final"] == 0.55
    assert figures["collapsed"] == []
    ratios = [figures["seeds"][seed]["rollout_ratio"] for seed in (0, 1)]
    assert ratios == [pytest.approx(75 / 200), pytest.approx(150 / 200)]  # between two measurements, by a line
    assert figures["rollout_ratio"] == pytest.approx(sum(ratios) / 2)
    lines = list(sample_efficiency.lines(comparison, ["text2grad", "scalar"]))
    assert [line.thin for line in lines] == [True, True, False] * 2
    assert lines[2].points == (
        (0.0, pytest.approx(0.3)),
        (100.0, pytest.approx(0.55)),
        (200.0, pytest.approx(0.75)),
    )


def test_sample_efficiency_says_what_never_arrives() -> None:
    comparison = found([curve(0.5, 0.3), curve(0.9)], [curve(0.5, 0.6), curve(0.5, 0.4)])
    figures = sample_efficiency.figures(comparison, ["text2grad", "scalar"], [0, 1])
    assert figures["rollout_ratio"] is None and figures["seeds"][0]["rollout_ratio"] is None
    assert figures["seeds"][1]["rollout_ratio"] == 0.0


def test_a_method_of_parts_is_one_recipe_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["", "--out", str(tmp_path), "--arms", "scalar", "scalar+kl_0.05", "--steps", "7"]
    )
    chosen = sample_efficiency.options()
    config = sample_efficiency.preset(chosen)
    names = [sample_efficiency.method_of(arm, chosen) for arm in chosen.arms]
    methods = methods_of(names, config)
    assert list(methods) == ["scalar", "scalar+kl_0.05"]
    own = laid_over(config, methods["scalar+kl_0.05"].recipe)
    assert (own.credit.scheme, own.ppo.gamma, own.ppo.kl_coefficient, own.ppo.steps) == ("last_token", 1.0, 0.05, 7)
    assert laid_over(config, "scalar").ppo.kl_coefficient == 0.2


def test_the_text_task_lays_parts_over_its_own_scalar_method(tmp_path: Path) -> None:
    config = text_task.preset(tmp_path, {"ppo.lr": 3e-4})
    path = text_task.written("scalar_ppo+group", config)
    own = laid_over(config, methods_of([path], config)["scalar_ppo+group"].recipe)
    assert (own.credit.scheme, own.ppo.advantage, own.ppo.lr) == ("last_token", "group", 3e-4)
    assert own.ppo.kl_coefficient == config.ppo.kl_coefficient
    rows = {"text2grad": {"seeds": [0.5, 0.25], "greedy": {"seeds": [0.5, 0.5]}}}
    rows["scalar_ppo+group"] = {"seeds": [0.25, 0.5], "greedy": {"seeds": [0.5, 0.25]}}
    assert text_task.ahead(rows, list(rows)) == {
        "ahead": {"greedy_rouge_l": [0.0, 0.25], "sampled_rouge_l": [0.25, -0.25]}
    }
    assert text_task.of_seeds([{"a": 1.0}, {"a": 2.0}]) == {"a": {"mean": 1.5, "spread": 1.0}}


def test_models_of_other_settings_are_not_taken_over(tmp_path: Path) -> None:
    def of(*words: str) -> Config:
        return load_config(find_config("demo"), [f"--run.folder={tmp_path}", *words])

    assert recipe_of(of()) == recipe_of(of("--run.threads=7")) != recipe_of(of("--ppo.lr=1e-3"))
    refuse_other_recipe(of())
    refuse_other_recipe(of("--ppo.lr=1e-3", "--credit.outcome_weight=0"))
    with pytest.raises(SystemExit, match="made with other settings: take another --out"):
        refuse_other_recipe(of("--tiny.hidden=320"))
    refuse_other_recipe(of())


def test_the_noise_study_says_where_the_gain_ends() -> None:
    rates = {"sft": 0.3, "scalar_ppo": 0.6, "text2grad": 0.8, "flip_20": 0.7, "flip_40": 0.55, "drop_40": 0.75}
    rows = [{"arm": arm, "seed": seed, "greedy": r, "sampled": r} for arm, r in rates.items() for seed in (0, 1)]
    found = noise.summary(rows, ("flip", "drop"), (0.0, 0.2, 0.4))
    assert found["gain_ends"] == {"flip": 0.4, "drop": None}
    assert found["text2grad"]["flip"]["0.2"]["sampled"] == 0.7
    ElementTree.fromstring(noise.figure(found))


def test_a_sign_is_wrong_where_a_right_token_is_pushed_down() -> None:
    strip = {"response": "good bad", "starts": [0, 4], "ends": [4, 8], "advantage": [-2.0, -1.0], "failure": None}
    spans = (Span(start=0, end=4, label=1, text="good"), Span(start=5, end=8, label=-1, text="bad"))
    found = dict(credit_signs.tokens_of(strip, Critique(text="", spans=spans, score=-1.0)))
    assert found["right"].tolist() == [-2.0] and found["wrong"].tolist() == [1.0]
    assert credit_signs.summary([found["right"], np.array([3.0])]) == {"tokens": 2, "wrong_sign": 0.5, "push": 0.5}
    passing = dict(credit_signs.tokens_of(strip, Critique(text="", spans=spans[:1], score=1.0)))
    assert passing["passing"].tolist() == [-2.0]
    assert not list(credit_signs.tokens_of(strip | {"failure": {"kind": "invalid"}}, Critique(text="")))


def test_the_picture_of_an_answer_has_a_ground_for_every_token() -> None:
    drawn = tokens_svg([Strip("a <b>", ["def ", "f", ":\n  ", "x<1", ""], [1.0, -0.5, 0.0, -1.0, 2.0])])
    tree = ElementTree.fromstring(drawn)
    texts = ["".join(each.itertext()) for each in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a <b>", "def ", "f", ":", "x<1"]
    fills = [each.get("fill") for each in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert (
        len(fills) == 1 + 5 and str(fills[1]).startswith("rgba(11,110,79") and str(fills[2]).startswith("rgba(190")
    )


def measured(arm: str, seed: int, greedy: float, arc: float | None = None, **more: Any) -> dict[str, Any]:
    figures = {"greedy_rouge_l": greedy}
    row = {"arm": arm, "seed": seed, "lr": 0.0, "greedy": greedy, "figures": figures, **more}
    return row if arc is None else row | {"arc_score": arc}


def test_pretrained_says_what_fell_and_what_was_forgotten() -> None:
    rows = [
        measured("sft", 0, 0.4, 0.30), measured("text2grad", 0, 0.45, 0.29), measured("grpo", 0, 0.30, 0.1),
        measured("sft", 1, 0.4, 0.30), measured("text2grad", 1, 0.43, 0.32),
        {"arm": "grpo", "seed": 1, "lr": 0.0, "stopped": "diverged"},
    ]  # fmt: skip
    assert list(pretrained.fallen("docstrings", rows)) == [
        "docstrings grpo 0: greedy_rouge_l fell by 10.0 points",
        "docstrings grpo 1: diverged",
    ]
    assert pretrained.forgotten(rows) == 1.0  # the worst run of text2grad alone
    found = pretrained.table(rows, by_rate=False)
    assert found["text2grad"]["greedy"] == {"mean": 0.44, "seeds": [0.45, 0.43]}
    assert found["grpo"]["greedy"]["seeds"] == [0.3] and "best_temperature" not in found["sft"]


def test_pretrained_lays_a_method_over_the_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrained.py", "--out", str(tmp_path), "--set", "ppo.steps=3"])
    chosen = pretrained.options()
    scalar = pretrained.config_of(pretrained.words_of(chosen, "docstrings", 1, "scalar+group_of_8", 1e-4))
    assert (scalar.critic.kind, scalar.credit.scheme, scalar.task.seed) == ("reference", "last_token", 1)
    assert (scalar.ppo.samples_per_prompt, scalar.ppo.lr, scalar.ppo.steps) == (8, 1e-4, 3)
    assert scalar.evaluate.temperatures == (0.3, 0.6, 1.0)
    chosen.reward_model = True
    assert pretrained.config_of(pretrained.words_of(chosen, "code", 0)).critic.kind == "reward_model"
    human = pretrained.config_of(pretrained.words_of(chosen, "human_qa", 0))
    assert (human.policy.model, human.task.name) == ("smollm2", "qa")
