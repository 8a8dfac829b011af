"""Early stopping: when it measures, what it keeps, and that training does not notice."""

from __future__ import annotations

import json
import weakref
from pathlib import Path

import pytest
import torch

from human_data import corrected_file, small_config
from span_cases import TEXT, critique, word_span, words_aligned
from text2grad.config import load_config
from text2grad.errors import UserError
from text2grad.eval.critics.spans import SpanCase
from text2grad.feedback import Critique, Example, Feedback, Message, Source
from text2grad.policy import load
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.stages.judge.intake import run_import
from text2grad.stages.learn import reward_model, supervised
from text2grad.stages.learn.ppo import run_train
from text2grad.stages.learn.reward_model import run_train_reward
from text2grad.stages.learn.supervised import run_sft
from text2grad.tasks.base import question_of
from text2grad.train.stopping import EarlyStopping, LossFloor, validation_split
from tiny_runs import tiny_model


@pytest.fixture
def policy(model_folder: Path) -> Policy:
    return load_policy(PolicySettings(model=str(model_folder)))


def moved(policy: Policy, by: float) -> None:
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(by)


def snapshot(policy: Policy) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.policy_parameters()]


def test_it_measures_now_and_then_and_keeps_the_best_weights(policy: Policy) -> None:
    values = iter([0.2, 0.6, 0.6, 0.5])
    stopping = EarlyStopping(policy, 2, lambda: next(values), patience=2)
    kept: dict[int, list[torch.Tensor]] = {}
    looked = {}
    for done in range(1, 20):
        moved(policy, 0.01)
        kept[done] = snapshot(policy)
        looked[done] = stopping.look(done, 20)
        if stopping.over:
            break
    measured = {2: f1(0.2), 4: f1(0.6), 6: f1(0.6), 8: f1(0.5)}
    assert looked == {n: measured.get(n, {}) for n in range(1, 9)}
    assert stopping.restore_best() == {"best_span_f1": 0.6, "best_step": 4}
    assert all(torch.equal(a, b) for a, b in zip(snapshot(policy), kept[4], strict=True))


def f1(value: float) -> dict[str, float]:
    return {"span_f1": value}


def test_the_last_step_is_measured_in_any_case(policy: Policy) -> None:
    stopping = EarlyStopping(policy, 50, lambda: 0.0)
    assert stopping.look(7, 7) == {"span_f1": 0.0}
    assert stopping.restore_best()["best_step"] == 7, "nothing is better than nothing"


def test_training_does_not_notice_what_is_drawn_while_measuring(policy: Policy) -> None:
    drawn: list[float] = []

    def measure() -> float:
        drawn.append(float(torch.rand(())))
        return drawn[-1]

    torch.manual_seed(3)
    expected = [torch.rand(2), torch.rand(2)]
    torch.manual_seed(3)
    stopping = EarlyStopping(policy, 1, measure)
    for done, wanted in enumerate(expected, start=1):
        stopping.look(done, 9)
        assert torch.equal(torch.rand(2), wanted)
    assert drawn[0] == drawn[1], "the same draws for every measurement"


# In the stage


def record(question: str, number: int) -> Feedback:
    prompt = (Message(role="user", content=question),)
    return Feedback(id=f"{question}-{number}", prompt=prompt, response="x", source=Source(kind="program"))


def test_validation_prompts_are_training_prompts_set_apart() -> None:
    records = [record(f"Q{n}", each) for n in range(20) for each in range(3)]
    train, validation = validation_split(records, 0, share=0.25, most=9)
    assert len(validation) == 9 and len(train) == 45
    assert not {question_of(each) for each in train} & {question_of(each) for each in validation}
    assert validation_split(records, 0, share=0.25, most=9) == (train, validation)
    assert validation_split(records, 1, share=0.25, most=9) != (train, validation)
    train, validation = validation_split(records[:6], 0, share=0.9)
    assert (len(train), len(validation)) == (3, 3)
    with pytest.raises(UserError, match=r"early_stopping null"):
        validation_split(records[:3], 0, share=0.9)


def test_the_metric_is_the_mean_of_both_f1(tmp_path: Path) -> None:
    gold = critique(word_span(1, 0, 0), word_span(-1, 4, 4))
    half = Critique(text="", spans=gold.spans[:1])
    case = SpanCase(gold, half, words_aligned(TEXT))
    assert reward_model.span_f1([case], small_config(tmp_path)) == 0.5
    assert reward_model.span_f1([case._replace(predicted=gold)], small_config(tmp_path)) == 1.0


def test_training_with_it_measures_critiques_and_says_where_it_stopped(tmp_path: Path) -> None:
    stop = ("--reward_model.early_stopping", "1")
    config = small_config(tmp_path / "run", *stop, "--reward_model.training.epochs", "3")
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    found = run_train_reward(config).metrics
    assert 0 <= found["best_span_f1"] <= 1
    assert found["steps"] == found["best_step"] + 3 == 4, "8 tokens are no critique: no other is better"
    rows = (config.run.folder / "reward_model" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 4 and all('"span_f1"' in row for row in rows)


def test_a_shared_reward_model_is_written_as_an_adapter_and_used_as_one(tmp_path: Path) -> None:
    options = ("--policy.lora.r", "2", "--reward_model.shared", "true", "--ppo.value_warmup", "0")
    config = small_config(tmp_path / "run", *options)
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    run_train_reward(config)
    folder = config.run.folder / "reward_model" / "policy"
    assert (folder / "adapter_model.safetensors").is_file() and not (folder / "model.safetensors").exists()
    run_train(config, "text2grad")
    assert (config.run.folder / "ppo" / "text2grad" / "policy").is_dir()
    run_sft(config, "restart")
    run_train_reward(config, "restart")
    (folder / "base.sha256").write_text("0\n")
    with pytest.raises(UserError, match=r"trained on another base model .*/base\)"):
        run_train(config, "again")


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


def test_a_reward_model_beside_a_policy_may_have_an_adapter_of_its_own(tmp_path: Path) -> None:
    """It starts from the plain base then, and the policy from the adapter of its fine-tuning."""
    options = ["--policy.lora.r", "2", "--reward_model.shared", "true", "--ppo.value_warmup", "0"]
    config = small_config(tmp_path / "run", *options)
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    run_sft(config)
    base = str(config.run.folder / "base")
    own = ("--reward_model.policy.model", base, "--reward_model.policy.lora.r", "4")
    config = small_config(tmp_path / "run", *options, *own)
    run_train_reward(config)
    adapter = config.run.folder / "reward_model" / "policy" / "adapter_config.json"
    assert json.loads(adapter.read_text())["r"] == 4
    run_train(config, "text2grad")
    trained = config.run.folder / "ppo" / "text2grad" / "policy" / "adapter_config.json"
    found = json.loads(trained.read_text())
    assert (found["r"], found["base_model_name_or_path"]) == (2, str(Path(base).resolve()))


def test_what_cannot_share_weights_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path, "--reward_model.shared", "true", "--policy.model", "some/model")
    with pytest.raises(UserError, match=r"only adapters can share.*policy\.lora"):
        reward_model.learner_settings(config)
    other = ("--reward_model.policy.model", "another/model", "--policy.lora.r", "4")
    with pytest.raises(UserError, match="from another/model, the policy from some/model"):
        config = small_config(tmp_path, "--reward_model.shared", "true", "--policy.model", "some/model", *other)
        reward_model.learner_settings(config)


def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    assert load_config(None, ["--task.name", "demo", "--policy.model", "m"]).reward_model.early_stopping is None


def test_a_floor_ends_training_once_a_window_of_losses_is_below_it() -> None:
    """By hand: means of two are .3, .125, .1, .075; the fourth is the first below .1."""
    floor, over = LossFloor(0.1, window=2), []
    for done, loss in enumerate([0.35, 0.25, 0.0, 0.2, -0.05], start=1):
        assert floor.look(done, 9, loss) == {} and not floor.due(done, 9)
        over.append(floor.over)
    assert over == [False, False, False, False, True]
    again = LossFloor(0.1, window=2)
    again.restore({}, json.loads(json.dumps(floor.numbers())))
    assert again.over and again.restore_best() == {} and again.tensors() == {}
    assert not LossFloor(0.1, window=1).over, "nothing was seen yet"


def test_sft_ends_before_its_policy_has_one_answer_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path / "run", "--sft.least_loss", "100", "--sft.epochs", "6")
    run_import(config, corrected_file(tmp_path / "dev_feedback.jsonl"), "auto", None)
    summary = run_sft(config)
    said = capsys.readouterr().err
    assert summary.metrics["steps"] == 1 and "sft: ended after 1 of 10 updates, with a loss below 100" in said
    assert (tmp_path / "run" / "sft" / "policy").is_dir()
    assert summary.heldout and summary.word_for_word == 0
    assert f"it writes 0 of {summary.heldout} held-out corrections word for word" in said
    assert "can hardly gain" not in said


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
    monkeypatch.setattr(supervised, "sample", lambda _, each, __: [([], f" {one.reference}\n") for one in each])
    assert supervised.word_for_word(policy, config, [*others, *asked]) == [True] * supervised.ASKED
    assert capsys.readouterr().err == (
        "sft: it writes 32 of 32 held-out reference answers word for word; train can hardly gain\n"
    )
    assert supervised.word_for_word(policy, config, others) == []
