"""What the experiments say in numbers, from curves that are given."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from text2grad.config import Config, find_config, laid_over, load_config
from text2grad.data.marks import corrections
from text2grad.feedback import Critique, Failure, Feedback, Message, Source, Span
from text2grad.jsonl import read_jsonl, write_jsonl
from text2grad.stages.intake import run_import
from text2grad.stages.reward_model.data import reward_data
from text2grad.tasks.base import TaskSettings, feedback_split, load_task
from text2grad_lab.compare import plan_of
from text2grad_lab.compare.methods import methods_of
from text2grad_lab.compare.seeds import Seed
from text2grad_lab.experiments import (
    annotation,
    credit_signs,
    own_data,
    parts,
    pretrained,
    questions,
    sample_efficiency,
    text_task,
)
from text2grad_lab.experiments.common import methods, tastes
from text2grad_lab.experiments.common.figure import Strip, tokens_svg
from text2grad_lab.experiments.common.recipe import recipe_of, refuse_other_recipe
from text2grad_lab.paper import dense_cost

FIELDS = "text2grad_lab.tasks.fields:FIELDS"


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
    names = [methods.method_of(arm, tmp_path, partial(sample_efficiency.preset, chosen)) for arm in chosen.arms]
    compared = methods_of(names, config)
    assert list(compared) == ["scalar", "scalar-kl_0.05"]
    own = laid_over(config, compared["scalar-kl_0.05"].recipe)
    assert (own.credit.scheme, own.ppo.gamma, own.ppo.kl_coefficient, own.ppo.steps) == ("last_token", 1.0, 0.05, 7)
    assert laid_over(config, "scalar").ppo.kl_coefficient == 0.2


def test_the_text_task_lays_parts_over_its_own_scalar_method(tmp_path: Path) -> None:
    config = text_task.preset(tmp_path, {"ppo.lr": 3e-4})
    path = text_task.method_of("scalar_ppo+group", config)
    own = laid_over(config, methods_of([path], config)["scalar_ppo-group"].recipe)
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
        refuse_other_recipe(of("--sft.epochs=9"))
    refuse_other_recipe(of())


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> argparse.Namespace:
    """The options of questions.py."""
    monkeypatch.setattr(sys, "argv", ["questions.py", "--out", str(folder), *words])
    return questions.options()


def test_questions_share_what_they_have_in_common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = questions.asked_of(asked(tmp_path, monkeypatch, "--kinds", "keys", "--shares", ".05", ".2"))
    methods = questions.methods_asked(every)
    assert methods["preset"][:4] == list(questions.BASELINES) and len(methods["preset"]) == 10
    assert {"text2grad+keys_5", "text2grad+keys_20"} < set(methods["preset"])
    assert methods["reward_model"] == ["sft", "text2grad", "dense", "text2grad+foreign"]
    assert methods["spans_alone"] == methods["small_teacher"] == ["sft", "text2grad"]
    assert "transfer" not in questions.asked_of(asked(tmp_path, monkeypatch, "--task", "demo"))


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_a_question_takes_every_method_and_says_who_the_critic_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    chosen = asked(tmp_path, monkeypatch, "--model", model, "--set", "ppo.steps=3")
    critics: dict[str, dict[str, str]] = {}
    for name, arms in questions.methods_asked(questions.asked_of(chosen)).items():
        config, names = questions.names_of(chosen, name, arms)
        works = methods_of(names, config)
        assert len(works) == len(arms) and config.ppo.steps == 3 and config.policy.model == model
        laid = {arm: laid_over(config, work.recipe) if work.recipe else config for arm, work in works.items()}
        critics[name] = {arm: each.critic.kind for arm, each in laid.items()}
        if name == "reward_model":
            folder = laid["text2grad-foreign"].critic.reward_model.folder
            assert folder == questions.foreign(chosen).folder / "reward_model" / "policy"
            assert str(folder).startswith(str(tmp_path / "reports" / "seed-0"))
    common = "text2grad_lab.experiments.common"
    assert critics["preset"]["text2grad-keys_20"] == f"{common}.noisy_critic:keys_20_of_fields"
    assert critics["preset"]["grpo-polite"] == f"{common}.noisy_critic:polite_of_fields"
    assert critics["preset"]["grpo"] == critics["preset"]["text2grad-linear_decay"] == FIELDS
    assert critics["taste"]["text2grad-warm"] == f"{common}.tastes:Warm"
    assert critics["taste"]["scalar"] == f"{common}.tastes:Every"
    teacher = questions.preset(chosen, "small_teacher")
    assert (teacher.annotate.prompts, teacher.annotate.critic, teacher.critic.kind) == (
        50,
        FIELDS,
        "reward_model",
    )
    first, alone = (questions.preset(chosen, name).reward_model for name in ("critique_first", "spans_alone"))
    assert (first.kind, first.critique, alone.critique) == ("generative", True, False)
    assert first == alone.model_copy(update={"critique": True})


def test_the_answers_to_questions_are_rows_of_one_table(tmp_path: Path) -> None:
    row = {"greedy": 0.5, "sampled": 0.4, "best": 0.45, "difference": None, "difference_interval": None}
    row |= {"seeds": [0.3, 0.5], "spread": 0.2}
    noisy = row | {"difference": -0.1, "difference_interval": [-0.2, 0.0], "altered": 0.05, "rollouts": None}
    found = {"preset": {"rows": {"text2grad": row, "a": noisy}, "models": {}, "collapsed": ["preset a 1"]}}
    models = {"reward_model": {"poor_f1": 0.7}}
    found["reward_model"] = {"rows": {"text2grad": row}, "models": models, "collapsed": []}
    asked = {"noise": {"preset": ("text2grad", "a")}, "teacher": {"reward_model": ("text2grad",)}}
    figures = questions.figures_of(asked, found)
    assert figures["questions"]["noise"]["preset"]["a"] == noisy and figures["collapsed"] == ["preset a 1"]
    assert figures["reward_models"] == models
    assert questions.table(figures["questions"]).splitlines()[4:6] == [
        "| preset | text2grad | 0.400 | 0.300, 0.500 | 0.500 | 0.450 | – |  |",
        "| preset | a | 0.400 | 0.300, 0.500 | 0.500 | 0.450 | -0.100 (-0.200 to +0.000) | altered 0.05 |",
    ]
    noise = [{"noise_spans": 10, "noise_altered": 3}, {"noise_spans": 10, "noise_altered": 1}, {}]
    steps = [{"step": number, **each} for number, each in enumerate(noise)]
    metrics = tmp_path / "ppo" / "text2grad-flip_20" / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("".join(f"{json.dumps(step)}\n" for step in steps), encoding="utf-8")
    seed = Seed(load_config(find_config("demo")), 0, tmp_path, {})
    assert questions.altered([seed], "text2grad+flip_20") == {"altered": 0.2}
    assert questions.altered([seed], "text2grad") == {}


@pytest.mark.nightly
def test_a_question_is_answered_and_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "ppo.steps=1 ppo.rollouts=8 task.limit=32"
    small += " sft.epochs=1 evaluate.limit=4 evaluate.samples=1 evaluate.validation=2 generation.max_new_tokens=8"
    monkeypatch.setattr(questions, "QUESTIONS", {"taste": {"taste": questions.LEARNS}})
    words = f"--questions taste --model tiny --seeds 1 --workers 2 --set {small}"
    asked(tmp_path, monkeypatch, *words.split())
    questions.main()
    first = capsys.readouterr()
    row = json.loads(first.out)["questions"]["taste"]["taste"]["text2grad"]
    assert set(row) > {"brief", "warm", "sure", "about", "sampled"} and "seed-0: text2grad" in first.err
    assert row["sampled"] == pytest.approx((row["brief"] + row["warm"] + row["sure"]) / 3, abs=1e-3)
    assert "| taste | text2grad |" in (tmp_path / "compare.md").read_text("utf-8")
    questions.main()
    again = capsys.readouterr()
    assert again.out == first.out and "seed-0: " not in again.err


def test_the_rollouts_to_the_end_of_scalar_ppo_are_those_of_all_seeds() -> None:
    scalar = [curve(0.3, 0.5), curve(0.5, 0.6)]
    assert questions.rollouts([0.2, 0.4], [curve(0.6, 0.8), curve(0.5, 0.7)], scalar) == 112.5
    assert questions.rollouts([0.2, 0.4], scalar, scalar) == 200.0
    assert questions.rollouts([0.2, 0.4], [curve(0.6), curve(0.5)], scalar) is None


def test_critics_of_taste_mark_what_they_like_and_dislike() -> None:
    reply = "Thanks for asking! The logo is on the shelf. I think it might rain. I am busy."
    example = tastes.Replies(TaskSettings(name="tastes:Replies")).examples("heldout")[0]
    said = {name: critic().one(reply) for name, critic in {**tastes.TASTES, "every": tastes.Every}.items()}
    marks = {name: [(span.text, span.label) for span in each.spans] for name, each in said.items()}
    assert marks["brief"] == [("I think it might rain.", -1), ("I am busy.", -1)]
    assert marks["warm"] == [("Thanks", 1), ("busy", -1)]
    assert marks["sure"] == [("I think", -1), ("might", -1)]
    assert marks["every"] == marks["brief"] + marks["warm"] + marks["sure"]
    assert [each.score for each in said.values()] == [0.0, 0.0, -1.0, pytest.approx(-1 / 3)]
    scores = tastes.Replies(TaskSettings(name="tastes:Replies")).scores(example, reply)
    assert scores == {"taste": pytest.approx(1 / 3), "brief": 0.5, "warm": 0.5, "sure": 0.0, "about": 0.0}
    assert tastes.Every().one(" ").score == -1.0


def test_what_is_asked_about_is_held_out() -> None:
    task = tastes.Replies(TaskSettings(name="text2grad_lab.experiments.common.tastes:Replies", limit=60))
    things = {split: {each.meta["thing"] for each in task.examples(split)} for split in ("sft", "train", "heldout")}
    assert not things["heldout"] & (things["sft"] | things["train"]) and len(task.examples("sft")) == 60
    assert task.examples("train") == tastes.Replies(TaskSettings(name="tastes:Replies")).examples("train")


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


def measured(arm: str, seed: int, greedy: float, arc: float | None = None) -> dict[str, Any]:
    row = {"arm": arm, "seed": seed, "greedy": greedy, "figures": {"greedy_rouge_l": greedy}}
    return row if arc is None else row | {"arc_score": arc}


def test_pretrained_says_what_fell_and_what_was_forgotten() -> None:
    rows = [
        measured("sft", 0, 0.4, 0.30), measured("text2grad", 0, 0.45, 0.29), measured("grpo", 0, 0.30, 0.1),
        measured("sft", 1, 0.4, 0.30), measured("text2grad", 1, 0.43, 0.32),
    ]  # fmt: skip
    assert list(pretrained.fallen("docstrings", rows)) == ["docstrings grpo 0: greedy_rouge_l fell by 10.0 points"]
    assert pretrained.forgotten(rows) == 1.0  # the worst run of text2grad alone
    found = pretrained.table(rows)
    assert found["text2grad"]["greedy"] == {"mean": 0.44, "seeds": [0.45, 0.43]}
    assert found["grpo"]["greedy"]["seeds"] == [0.3] and "best_temperature" not in found["sft"]


def test_pretrained_lays_a_method_over_the_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--set", "ppo.steps=3", "--lrs", "1e-4", "--arms", "base", "scalar+group_of_8"]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", *words])
    chosen = pretrained.options()
    (tmp_path / "docstrings").mkdir()
    config = pretrained.preset(chosen, "docstrings")
    path = methods.method_of(chosen.arms[1], config.run.folder, partial(pretrained.preset, chosen, "docstrings"))
    scalar = laid_over(config, methods_of([path], config)["scalar-group_of_8"].recipe)
    assert (scalar.critic.kind, scalar.credit.scheme) == ("reference", "last_token")
    assert (scalar.ppo.samples_per_prompt, scalar.ppo.lr, scalar.ppo.steps) == (8, 1e-4, 3)
    assert scalar.evaluate.temperatures == (0.3, 0.6, 1.0)
    chosen.reward_model = True
    assert pretrained.preset(chosen, "code").critic.kind == "reward_model"


def test_pretrained_measures_on_other_tasks_what_was_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--arc", "0", "--mbpp", "150", "--set", "ppo.steps=3"]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", *words])
    chosen, arms = pretrained.options(), ["base", "sft", "text2grad+shared"]
    works = pretrained.elsewhere(chosen, pretrained.preset(chosen, "code"), "code", 0, arms).works
    assert list(works) == ["mbpp sft", "mbpp text2grad-shared"]
    assert {"--task", "text2grad_lab.benchmarks.programs:MBPP", "--evaluate.limit=150"} < set(
        works["mbpp sft"].words
    )
    assert not pretrained.elsewhere(chosen, pretrained.preset(chosen, "docstrings"), "docstrings", 0, arms).works
    rows = [measured("sft", seed, 0.4) | {"mbpp": greedy} for seed, greedy in ((0, 0.25), (1, 0.5))]
    assert pretrained.table(rows)["sft"]["mbpp"] == {"mean": 0.375, "seeds": [0.25, 0.5]}
    place = tmp_path / "text2grad_lab.benchmarks.programs_MBPP-mbpp" / "sft.json"
    place.parent.mkdir()
    place.write_text('{"greedy_pass": 0.25}', encoding="utf-8")
    assert pretrained.figures_on(tmp_path, "*MBPP", "sft") == {"greedy_pass": 0.25}


def record(number: int, response: str, *quotes: str, family: str = "list") -> Feedback:
    """An annotated answer; its quotes are poor."""
    places = [(response.index(quote), quote) for quote in quotes]
    spans = tuple(Span(start=at, end=at + len(quote), label=-1, text=quote) for at, quote in places)
    prompt = (Message(role="user", content=f"problem {number}"),)
    meta = {"combination": f"{family}/a/b/c"}
    said = f"about {number}"
    return Feedback(
        id=f"p{number}", prompt=prompt, response=response, critique=said, spans=spans, score=-1.0,
        source=Source(kind="program"), meta=meta,
    )  # fmt: skip


def test_noise_is_in_the_spans_and_leaves_the_words(tmp_path: Path) -> None:
    records = [record(n, "x = a + b", "a + b") for n in range(200)]
    flipped = annotation.records_of("flip_20", records, seed=0)
    assert 0.1 < annotation.altered_share(records, flipped) < 0.3
    assert {span.label for each in flipped for span in each.spans} == {1, -1}
    assert [each.critique for each in flipped] == [each.critique for each in records]
    moved = annotation.records_of("displace_20", records, seed=0)
    write_jsonl(tmp_path / "moved.jsonl", moved)
    assert list(read_jsonl(tmp_path / "moved.jsonl", Feedback)) == moved  # every span still quotes its response
    assert {span.text for each in moved for span in each.spans} != {"a + b"}
    assert annotation.records_of("clean", records, seed=0) == records


def test_an_irrelevant_critique_is_of_another_problem_and_keeps_the_quotes_that_are_here_too(
    tmp_path: Path,
) -> None:
    records = [record(n, f"y = {n} + 1; z", f"{n} + 1", "z") for n in range(40)]
    changed = annotation.records_of("irrelevant_20", records, seed=0)
    hit = [(old, new) for old, new in zip(records, changed, strict=True) if old != new]
    assert len(hit) == 8 and annotation.altered_share(records, changed) == 0.2
    for old, new in hit:
        assert new.critique != old.critique and (new.id, new.response) == (old.id, old.response)
        assert "z" in [span.text for span in new.spans]
        assert all(new.response[span.start : span.end] == span.text for span in new.spans)
    assert annotation.records_of("irrelevant_20", records, seed=1) != changed
    source = tmp_path / "feedback.jsonl"
    write_jsonl(source, records)
    annotation.change(str(source), "irrelevant_20", str(tmp_path / "noisy.jsonl"), seed=0)
    assert list(read_jsonl(tmp_path / "noisy.jsonl", Feedback)) == changed


@pytest.mark.parametrize("arm", ["without_list", "flip", "flip_x", "shuffle_10"])
def test_only_noise_can_be_put_into_the_records_of_any_run(arm: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"no noise '{arm}'"):
        annotation.change(str(tmp_path / "feedback.jsonl"), arm, str(tmp_path / "noisy.jsonl"), seed=0)
    with pytest.raises(SystemExit, match="No such file"):
        annotation.change(str(tmp_path / "none.jsonl"), "flip_10", str(tmp_path / "noisy.jsonl"), seed=0)


def test_a_family_that_is_left_out_is_in_no_training_record() -> None:
    records = [record(n, "a", family=family) for n, family in enumerate(("list", "text", "list", "loop"))]
    left = annotation.records_of("without_list", records, seed=0)
    assert [annotation.family_of(each) for each in left] == ["text", "loop"]
    assert annotation.altered_share(records, left) == 0.5


def test_a_smaller_teacher_knows_less_and_says_less(tmp_path: Path) -> None:
    words = ["--task.limit=64", "--sandbox.workers=1", f"--run.folder={tmp_path}"]
    config = load_config(find_config("demo"), words)
    example = load_task(config.task).examples(feedback_split(config.task))[0]
    wrong = example.reference.replace("return", "return not")
    records = [
        Feedback(id=example.id, prompt=example.prompt, response=each, source=Source(kind="program"), critique="?")
        for each in (example.reference, wrong, "def f(xs):\n    return 0\n")
    ]
    for teacher, blamed, lucky in (("tests", wrong.strip(), -1.0), ("one_test", "not len(set(zs))", 1.0)):
        right, poor, empty_alone = annotation.taught_by(annotation.TEACHERS[teacher], config, records)
        assert (right.score, poor.score, empty_alone.score) == (1.0, -1.0, lucky)
        assert poor.response == wrong and [span.text for span in poor.spans if span.label < 0] == [blamed]
    assert annotation.with_first_test(example).meta["tests"].count("def test") == 1
    assert example.meta["tests"].count("def test") == 8
    same = [each.model_copy(update={"source": Source(kind="llm")}) for each in records]
    assert annotation.altered_share(records, same) == 0
    assert annotation.altered_share(records, [same[0], same[0], same[2]]) == 0.3333


def test_annotation_means_over_seeds_and_keeps_the_measures_apart() -> None:
    common = {"arm": "clean", "recipe": "r", "cpu_seconds": 1.0}
    rows = [{"what": "reward_model", "seed": seed, "poor_f1": f1, **common} for seed, f1 in ((0, 0.8), (1, 0.6))]
    found = annotation.summary([*rows, {"what": "policy", "seed": 0, "greedy": 0.5, **common}])
    assert found["reward_model"]["clean"] == {"poor_f1": {"seeds": [0.8, 0.6], "mean": 0.7}}
    assert found["policy"]["clean"] == {"greedy": {"seeds": [0.5], "mean": 0.5}}


@pytest.mark.nightly
def test_annotation_trains_on_changed_records_and_measures_on_unchanged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "task.limit=64 sft.epochs=1"
    small += " annotate.prompts=16 annotate.samples_per_prompt=1 evaluate.limit=4 reward_model.training.epochs=1"
    small += " reward_model.generation.max_new_tokens=24 generation.max_new_tokens=24"
    words = f"--seeds 3 --kinds irrelevant --shares .5 --families --policies --out {tmp_path} --set {small}"
    others = {"annotator_again", "teacher_tests", "teacher_one_test"}
    monkeypatch.setattr(sys, "argv", ["annotation.py", *words.split()])
    annotation.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found["reward_model"]) == {"clean", "again", "irrelevant_50", "spans_alone"} | others
    assert not found["policy"]
    assert found["reward_model"]["irrelevant_50"]["altered"]["seeds"] == [0.5]
    clean, *changed = (
        [(tmp_path / f"seed-3-{arm}" / name).read_bytes() for name in ("feedback.jsonl", "feedback_heldout.jsonl")]
        for arm in ("clean", "irrelevant_50", "annotator_again", "teacher_tests")
    )
    assert all(clean[0] != arm[0] and clean[1] == arm[1] for arm in changed)
    rows = (tmp_path / "results.jsonl").read_bytes()
    annotation.main()
    assert (tmp_path / "results.jsonl").read_bytes() == rows  # nothing is run again


def test_the_cost_of_a_label_for_every_word() -> None:
    """Counted in what stands between white space; a failed record is left out."""
    span = Span(start=0, end=2, label=-1, text="It", reason="who?")
    prompt, source = (Message(role="user", content="Why?"),), Source(kind="llm")
    judged = Feedback(
        id="1", prompt=prompt, response="It is so.", critique="Too short.", spans=(span,), source=source
    )
    failed = Feedback(id="2", prompt=prompt, response="x", error=Failure(kind="refused", message=""), source=source)
    figures = dense_cost.costs([judged, failed], "qa_plain", lambda text: [(0, 0) for _ in text.split()])
    answers = [figures[name] for name in ("records", "span_answer", "span_map", "dense_answer")]
    assert answers == [1, len(Z.split()), len(Z_MAP.split()), len(DENSE.split())]
    assert figures["answer_ratio"] == answers[3] / answers[1] and figures["map_ratio"] == answers[3] / answers[2]
    whole = figures["dense_prompt"] + figures["dense_answer"]
    assert figures["ratio"] == whole / (figures["span_prompt"] + figures["span_answer"])
    assert 100 < figures["dense_prompt"] < figures["span_prompt"]


Z = '{"critique": "Too short.", "good_spans": [], "poor_spans": [{"quote": "It", "reason": "who?"}]}'
Z_MAP = '{"critique": "", "good_spans": [], "poor_spans": ["It"]}'
DENSE = '{"words": [["It", -1], ["is", 0], ["so.", 0]]}'


# Feedback of one's own

ASKED = 'Mail from Ann: "When is the audit due?"\nYour notes: The audit is due on Friday.\nWrite the reply.'


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("The audit is due on Friday.", 1.0),
        ("Dear Ann,\n\nIt is due on Friday.\n\nBest regards, Tom", 1.0),
        ("Probably on Friday.", 1 / 3),
        ("It is due on Friday. Let me know how else I may be of service.", 1 / 3),
        ("It is due on Friday. I think it is due on Friday.", -1 / 3),
        (
            "It is due on Friday. We are always happy to help. Have a very nice day. I shall write again.",
            -1.0,
        ),
        ("on Friday " * 21, 1 / 3),
        ("It is due on Monday.", -1.0),
        ("due audit is on The.", -1.0),
        ("", -1.0),
    ],
)
def test_the_judge_of_replies_wants_what_was_asked_and_nothing_else(reply: str, score: float) -> None:
    assert own_data.judged(ASKED, reply) == pytest.approx(score)


@pytest.mark.parametrize("seed", range(3))
def test_the_judge_agrees_with_remarks_whose_phrases_it_does_not_know(seed: int) -> None:
    rows = list(own_data.mails(seed))
    assert len({row["prompt"] for row in rows}) == own_data.RECORDS + own_data.HELDOUT
    for row in rows:
        assert own_data.judged(row["prompt"], row["response"]) == pytest.approx(row["score"], abs=0.01)
        assert all(quote in row["response"] for quote in (row["good"], *row["poor"].splitlines()))
        assert row["prompt"].count(row["fact"]) == 1
    assert {row["score"] for row in rows} == {1.0, 0.33, -0.33, -1.0}


@pytest.mark.parametrize("start", ["sent", "corrected"])
def test_the_files_are_read_as_those_of_a_person(tmp_path: Path, start: str) -> None:
    own_data.write_files(tmp_path, 0, start)
    words = [
        "--task.data",
        str(tmp_path / "questions.jsonl"),
        "--task.heldout_data",
        str(tmp_path / "heldout.jsonl"),
    ]
    config = load_config(find_config("own"), ["--run.folder", str(tmp_path / "run"), *words])
    found = run_import(config, tmp_path / "remarks.csv", "auto", None)
    assert found.added == 60 and not found.losses and not found.ignored
    task = load_task(config.task)
    assert (len(task.examples("train")), len(task.examples("heldout"))) == (48, 12)
    train, heldout = reward_data(config)
    assert (len(train), len(heldout)) == (48, 12)
    right = {own_data.judged(each.prompt[-1].content, each.reference) for each in task.examples("heldout")}
    assert (right == {1.0}) == (start == "corrected"), "SFT imitates what was sent, or what should have been"
    assert len(corrections(heldout)) == (12 if start == "corrected" else 0)


@pytest.mark.parametrize(
    ("gate", "settings"),
    [
        ({"fit": True, "spans_alone": {"fit": True}}, []),
        ({"fit": False, "spans_alone": {"fit": True}}, ["--credit.outcome_weight", "0"]),
        ({"fit": False, "spans_alone": {"fit": False}}, []),
        ({"fit": False, "spans_alone": None}, []),
    ],
)
def test_a_walk_does_what_the_gate_says(tmp_path: Path, gate: dict[str, Any], settings: list[str]) -> None:
    (tmp_path / "mine" / "reward_model").mkdir(parents=True)
    (tmp_path / "mine" / "reward_model" / "gate.json").write_text(json.dumps(gate))
    assert own_data.as_the_gate_says(tmp_path) == settings


def test_a_walk_goes_on_and_refuses_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def once(command: list[str], log: Path, folder: Path) -> tuple[int, float]:
        ran.append(command[3:])
        log.write_text("one\nerror: it broke\n", "utf-8")
        return int("break" in command), 12.4

    monkeypatch.setattr(own_data, "run_command", once)
    for _ in range(2):
        walk = own_data.Walk(tmp_path)
        walk.run("sft", "--run.seed", "0")
        assert walk.took[0]["peak_mb"] == 12
    assert ran == [["sft", "--run.seed", "0"]]
    with pytest.raises(SystemExit, match="take another --out"):
        own_data.Walk(tmp_path).run("sft", "--run.seed", "1")
    with pytest.raises(SystemExit, match="break: error: it broke"):
        walk.run("break")
    assert not (tmp_path / "done" / "1_break.json").exists()
    refused = walk.run("break", may_fail=True)
    assert (refused["code"], refused["last"]) == (1, "error: it broke")
    assert own_data.in_log(walk, 1, "broke") == "error: it broke" and own_data.in_log(walk, 1, "x") is None


def test_an_unknown_setting_of_an_experiment_is_one_line(tmp_path: Path) -> None:
    words = ["--tasks", "code", "--set", "task.dta=x", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "text2grad_lab.experiments.pretrained", *words], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: unknown setting 'task.dta' (did you mean 'task.data'?)"]


def test_what_counts_as_a_collapse() -> None:
    before = {"greedy_pass": 0.5, "sampled_entropy": 2.0, "sampled_repetition": 0.1}
    assert pretrained.collapsed(before, before, "greedy_pass") == []
    assert pretrained.collapsed(before, {**before, "greedy_pass": 0.46}, "greedy_pass") == []
    assert pretrained.collapsed(before, {**before, "greedy_pass": 0.44}, "greedy_pass") == [
        "greedy_pass fell by 6.0 points"
    ]
    after = {**before, "sampled_entropy": 0.19, "sampled_repetition": 0.31, "sampled_reference_perplexity": 9.0}
    found = pretrained.collapsed(before, after, "greedy_pass")
    assert found == ["sampled_entropy 2 -> 0.19", "sampled_repetition 0.1 -> 0.31"]
    worse = pretrained.collapsed({**before, "sampled_reference_perplexity": 2.0}, after, "greedy_pass")
    assert worse[2:] == ["sampled_reference_perplexity 2 -> 9"]


def test_the_comparison_on_parts_is_gathered_from_its_pieces(tmp_path: Path) -> None:
    row = {"metric": 0.5, "greedy": {"metric": 0.6}}
    apart = {"difference": -0.12344, "difference_interval": [-0.2, -0.04444]}
    assert parts.row_of({**row, **apart}, 0.55) == {
        **{"greedy": 0.6, "sampled": 0.5, "best": 0.55},
        **{"difference": -0.1234, "difference_interval": [-0.2, -0.0444]},
    }
    assert parts.row_of(row, 0.55)["difference_interval"] is None
    unmeasured = {"poor_f1": None, "good_f1": None, "verdict_r": None, "verdict_order": None}
    seeds = [{**unmeasured, "poor_f1": f1, "verdict_r": r} for f1, r in ((0.5, 0.4), (0.7, None))]
    measured = parts.reward_model_of(seeds)
    assert measured == {**unmeasured, "poor_f1": 0.6, "verdict_r": 0.4}
    assert parts.reward_model_of([unmeasured]) == unmeasured
    piece = {"methods": {"sft": {"greedy": 0.1}}, "collapsed": ["reports reward_model dpo 1"], **measured}
    (tmp_path / "reports-reward_model").mkdir()
    (tmp_path / "reports-reward_model" / "piece.json").write_text(json.dumps(piece), encoding="utf-8")
    found = parts.figures(tmp_path)
    assert found["tasks"]["extraction"] == {"program": {}, "reward_model": {}, "poor_f1": None, "verdict_r": None}
    assert found["tasks"]["reports"] == {"program": {}, "reward_model": piece["methods"], **measured}
    assert found["collapsed"] == piece["collapsed"]
    assert list(found) == ["tasks", "mbpp", "collapsed"]


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
@pytest.mark.parametrize("task", ["extraction", "reports"])
def test_the_comparison_on_parts_takes_every_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, model: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--out", str(tmp_path), "--model", model, "--set", "ppo.steps=3"])
    chosen = parts.options()
    kinds = {"extraction": FIELDS, "reports": "text2grad_lab.tasks.facts:FACTS"}
    for critic, kind in {"program": kinds[task], "reward_model": "reward_model"}.items():
        config = parts.preset(chosen, task, critic)
        names = [
            methods.method_of(arm, config.run.folder, partial(parts.preset, chosen, task, critic))
            for arm in chosen.methods
        ]
        assert len(methods_of(names, config)) == len(parts.ARMS)
        assert plan_of(config, names, parts.Extent.of(0, 1, 3), 1)["rollouts"] > 0  # every method has a rate to try
        assert (config.critic.kind, config.annotate.critic, config.ppo.steps) == (kind, kinds[task], 3)
        assert (config.policy.model, config.policy.lora is None) == (model, model == "tiny")
