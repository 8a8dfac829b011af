"""A reward model with an adapter of its own, and SFT that ends while its samples still differ."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest

from human_data import corrected_file, small_config
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.policy import load
from text2grad.policy.load import load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages import sft
from text2grad.stages.intake import run_import
from text2grad.stages.merge import run_merge
from text2grad.stages.reward_model import train as reward_model
from text2grad.stages.reward_model.train import run_evaluate_reward_model, run_train_reward
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.sft import run_sft
from text2grad.stages.train import run_train
from text2grad.train.watch.steps import LossFloor
from tiny_runs import tiny_model


@pytest.mark.parametrize("from_base", [False, True])
def test_a_shared_reward_model_is_an_adapter_beside_that_of_the_policy(tmp_path: Path, from_base: bool) -> None:
    """It starts from the adapter of SFT or, where it names a model, from that; the policy always
    from SFT's."""
    options = ("--policy.lora.r", "2", "--reward_model.shared", "true", "--ppo.value_warmup", "0")
    options += ("--reward_model.keep_every", "1")
    config = small_config(tmp_path / "run", *options)
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    base = str(config.run.folder / "base")
    if from_base:
        config = small_config(tmp_path / "run", *options, "--reward_model.model", base)
    run_train_reward(config)
    run_train(config, "text2grad")
    for place in ("reward_model", "ppo/text2grad"):
        folder = config.run.folder / place / "policy"
        adapter = json.loads((folder / "adapter_config.json").read_text())
        assert (adapter["r"], adapter["base_model_name_or_path"]) == (2, str(Path(base).resolve()))
        assert not (folder / "model.safetensors").exists()
    final, first = (config.run.folder / "reward_model" / place for place in ("policy", "reward_model-step-1"))
    assert (first / "base.sha256").read_text() == (final / "base.sha256").read_text()
    (config.run.folder / "reward_model" / "policy" / "base.sha256").write_text("0\n")
    with pytest.raises(UserError, match=r"trained on another base model .*/base\)"):
        run_train(config, "again")


def test_reward_models_on_the_way_are_measured_and_merged(tmp_path: Path) -> None:
    config = small_config(tmp_path / "run", "--reward_model.keep_every", "1")
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    run_train_reward(config)
    first, *_ = sorted((config.run.folder / "reward_model").glob("reward_model-step-*"))
    early = small_config(tmp_path / "run", "--critic.reward_model.folder", str(first))
    assert "poor_f1" in run_evaluate_reward_model(early)
    run_merge(config, str(first), tmp_path / "merged", "other", None)
    assert (tmp_path / "merged" / "config.json").is_file()


def test_what_was_trained_is_gone_when_the_reward_model_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the size of 8B a second model does not fit, and there is no need of a third."""
    config = small_config(tmp_path / "run")
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    loaded: list[weakref.ref[object]] = []
    beside: list[int] = []
    read = load.load_model

    def noted(*words: object, **options: object) -> object:
        beside.append(sum(model() is not None for model in loaded))
        model = read(*words, **options)  # type: ignore[arg-type]
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(load, "load_model", noted)
    assert run_train_reward(config).rates
    assert beside == [0, 0, 0, 0], "one to train, one to measure, the policy's answers, their critiques: by turns"


def test_a_score_head_needs_a_score_to_learn(tmp_path: Path) -> None:
    options = ("--reward_model.score_head", "true", "--reward_model.damaged", "0")
    config = small_config(tmp_path / "run", *options)
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    records = config.run.folder / "feedback.jsonl"
    rows = [json.loads(line) | {"score": None, "meta": {}} for line in records.read_text("utf-8").splitlines()]
    records.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with pytest.raises(UserError, match=r"no critique has a score.*score_head false"):
        run_train_reward(config)


def test_what_cannot_share_weights_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path, "--reward_model.shared", "true", "--policy.model", "some/model")
    with pytest.raises(UserError, match=r"only adapters can share.*policy\.lora"):
        reward_model.starting_model(RunFolder.of(config), config.reward_model)
    other = ("--reward_model.model", "another/model", "--policy.lora.r", "4")
    with pytest.raises(UserError, match="from another/model, the policy from some/model"):
        config = small_config(tmp_path, "--reward_model.shared", "true", "--policy.model", "some/model", *other)
        reward_model.starting_model(RunFolder.of(config), config.reward_model)


def test_a_floor_ends_training_once_a_window_of_losses_is_below_it() -> None:
    """By hand: means of two are 0.3, 0.125, 0.1, 0.075; the fourth is the first below 0.1."""
    floor, over = LossFloor(0.1, window=2), []
    for loss in (0.35, 0.25, 0.0, 0.2, -0.05):
        floor.add(loss)
        over.append(floor.reached)
    assert over == [False, False, False, False, True]
    again = LossFloor(0.1, window=2)
    again.restore(json.loads(json.dumps(floor.numbers())))
    assert again.reached
    assert not LossFloor(0.1, window=1).reached, "nothing was seen yet"


def test_sft_ends_before_its_policy_has_one_answer_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path / "run", "--sft.least_loss", "100", "--sft.epochs", "6")
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    summary = run_sft(config)
    said = capsys.readouterr().err
    assert summary["steps"] == 1 and "sft: ended after 1 of 10 updates, when the loss" in said
    assert (tmp_path / "run" / "sft" / "policy").is_dir()
    assert summary["heldout"] and summary["word_for_word"] == 0
    assert f"the policy reproduces 0 of {summary['heldout']} held-out corrections word for word" in said
    assert "can gain little" not in said


def test_a_policy_that_writes_every_held_out_answer_has_little_to_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """White space apart; long references and prompts without one are not asked for."""
    config = small_config(tmp_path)
    policy = load_policy(PolicySettings(model=str(tiny_model(tmp_path / "model"))))
    asked = [
        Example(id=f"{n}", prompt=(Message(role="user", content=f"{n}?"),), reference=f"{n} .") for n in range(40)
    ]
    others = [
        asked[0].model_copy(update={"id": id, "reference": text}) for id, text in (("a", ""), ("b", "x y " * 200))
    ]
    capsys.readouterr()  # transformers' progress bars
    monkeypatch.setattr(sft, "sample", lambda _, each, *__: [([], f" {one.reference}\n") for one in each])
    assert sft.match_references(policy, config.generation, [*others, *asked]) == [True] * sft.MOST_PROMPTS
    assert capsys.readouterr().err == (
        "sft: the policy reproduces 32 of 32 held-out reference answers word for word; train can gain little\n"
    )
    assert sft.match_references(policy, config.generation, others) == []
