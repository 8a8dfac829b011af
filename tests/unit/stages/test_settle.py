"""Settings that nobody set, in a run: told, kept, found again; nothing for a tiny model or a run
begun without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from text2grad.config import Config, load_config
from text2grad.config.derive import (
    RULES,
    DataFacts,
    DerivedValue,
    Facts,
    MachineFacts,
    Stage,
    section_of,
)
from text2grad.durable.run import CHECKPOINTS
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.jsonl import write_jsonl
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.settings import value_at
from text2grad.stages import training
from text2grad.stages.sft import run_sft
from text2grad.stages.train import run_train_offline
from text2grad.stages.training import DERIVED_FILE, DIGEST, TrainingStage, facts_of_pairs, model_facts
from text2grad.train.pairs import Pair
from tiny_runs import tiny_model

DATA = DataFacts(examples=40, prompt_tokens=20, target_tokens=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return load_policy(PolicySettings(model=str(folder), lora=LoraSettings(r=2)))


def config(run: Path, model: Path | str, *settings: str) -> Config:
    return load_config(
        None, ["--task.name", "qa", "--run.folder", str(run), "--policy.model", str(model), *settings]
    )


def settle_sft(config: Config, policy: Policy, data: DataFacts = DATA, resume: Any = "auto") -> Config:
    return settled(config, "sft", config.run.folder / "sft", policy, data, resume)


def settled(
    config: Config, stage: Any, place: Path, policy: Policy, data: DataFacts = DATA, resume: Any = "auto"
) -> Config:
    return TrainingStage(config, stage, place, "", resume).finalise(policy, data).config


@pytest.mark.parametrize("stage", RULES)
def test_what_is_derived_is_told_kept_and_found_again(
    stage: Stage,
    tmp_path: Path,
    folder: Path,
    policy: Policy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settle(examples: int = 40, resume: str = "auto") -> Config:
        data = replace(DATA, examples=examples)
        return settled(config(tmp_path, folder), stage, tmp_path / stage, policy, data, resume)

    first, section = settle(), section_of(stage)
    told, kept = capsys.readouterr().err, tmp_path / stage / DERIVED_FILE
    assert value_at(first, f"{section}.lr") == RULES[stage].lr
    assert f"{section}.lr {RULES[stage].lr:g} (adapters on 0M parameters), {section}.batch_size 4 (40" in told
    assert told.count("\n") == 2 and str(kept) in told
    monkeypatch.setattr(training, "machine_facts", lambda policy: MachineFacts("cpu", 0))  # a smaller machine
    assert settle() == settle(resume="restart") == first
    content = json.loads(kept.read_text())
    content["settings"][f"{section}.lr"][0] = 0.125
    kept.write_text(sealed(content))
    assert value_at(settle(), f"{section}.lr") == 0.125, "what was kept is what is taken"
    other = settle(examples=400)
    sizes = [value_at(other, f"{section}.{name}") for name in ("batch_size", "micro_batch_size")]
    assert sizes == [8, 1], "other data: derived anew"


def test_a_setting_given_later_wins_over_what_was_kept(tmp_path: Path, folder: Path, policy: Policy) -> None:
    settle_sft(config(tmp_path, folder), policy)
    mine = settle_sft(config(tmp_path, folder, "--sft.lr", "1e-5"), policy)
    assert (mine.sft.lr, mine.sft.epochs) == (1e-5, 10.0)


def test_two_stages_in_one_folder_do_not_take_each_others_settings(
    tmp_path: Path, folder: Path, policy: Policy
) -> None:
    place = tmp_path / "ppo" / "mine"
    for stage in ("sft", "offline", "sft"):
        found = settled(config(tmp_path, folder), stage, place, policy)
        assert value_at(found, f"{section_of(stage)}.lr") == RULES[stage].lr  # type: ignore[arg-type, index]


def test_the_run_says_what_its_earlier_stages_derived(tmp_path: Path, folder: Path, policy: Policy) -> None:
    sft = settle_sft(config(tmp_path, folder), policy).sft
    place = tmp_path / "ppo" / "text2grad"
    later = settled(config(tmp_path, folder), "ppo", place, policy, DataFacts(40, 20))
    assert later.sft == sft and later.ppo.lr == 3e-4 and later.ppo.rollouts == 32
    assert not (tmp_path / "reward_model").exists()


def test_a_tiny_model_and_a_run_that_began_without_get_nothing(
    tmp_path: Path, folder: Path, policy: Policy
) -> None:
    tiny = config(tmp_path / "tiny", "tiny")
    assert settle_sft(tiny, policy) is tiny and not (tmp_path / "tiny").exists()
    bare = config(tmp_path, folder)
    settled(bare, "offline", tmp_path / "ppo" / "sibling", policy)
    for stage, place in (("sft", tmp_path / "sft"), ("offline", tmp_path / "ppo" / "begun")):
        (place / CHECKPOINTS).mkdir(parents=True)
        same = settled(bare, stage, place, policy)
        assert (same.sft, same.offline) == (bare.sft, bare.offline)
    assert settle_sft(bare, policy, resume="restart").sft.lr == 1e-3


def sealed(content: dict[str, Any]) -> str:
    content.pop(DIGEST, None)
    return json.dumps({**content, DIGEST: training._digest(content)})


def test_a_file_that_was_changed_is_one_line_for_every_stage(tmp_path: Path, folder: Path, policy: Policy) -> None:
    settle_sft(config(tmp_path, folder), policy)
    file = tmp_path / "sft" / DERIVED_FILE
    text = file.read_text()
    unfit = {"from": {}, "settings": {"sft.epochs": [-1.0, ""]}}
    for damaged in ("[]", text[:-9], text.replace("0.001", "0.003"), json.dumps(unfit), sealed(unfit)):
        file.write_text(damaged)
        for stage, place in (("sft", "sft"), ("offline", "ppo/offline")):
            with pytest.raises(UserError) as caught:
                settled(config(tmp_path, folder), stage, tmp_path / place, policy)
            assert str(file) in caught.value.problem and "\n" not in str(caught.value), damaged
            assert damaged != sealed(unfit) or "sft.epochs" in caught.value.problem
    file.unlink()
    assert settle_sft(config(tmp_path, folder), policy).sft.lr == 0.001


def test_the_facts_of_a_policy_and_of_pairs(folder: Path, policy: Policy) -> None:
    found = model_facts(policy)
    assert (found.adapters, found.layers, found.width, found.weight_bytes) == (True, 2, 32, 4)
    whole = load_policy(PolicySettings(model=str(folder)))
    every = model_facts(whole)
    assert not every.adapters
    assert every.parameters == found.parameters == sum(each.numel() for each in whole.model.parameters())
    asked = (Message(role="user", content="say ok"),)
    pairs = [Pair("a", asked, "ok"), Pair("b", asked, "ok ok ok ok ok ok ok ok")]
    assert facts_of_pairs(policy, pairs[:0]) == DataFacts(0, 0, 0)
    one, both = (facts_of_pairs(policy, some) for some in (pairs[:1], pairs))
    assert one.examples == 1 and both.examples == 2 and both.target_tokens > one.target_tokens > 0
    assert one.prompt_tokens == both.prompt_tokens > 0


def test_sft_of_a_model_trains_at_what_was_derived(tmp_path: Path, folder: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    rows = [{"prompt": f"say {n}", "response": f"it is {n}"} for n in range(6)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--task.data", str(questions), "--policy.lora.r", "2", "--run.threads", "1", "--sft.epochs", "2")
    run_sft(config(tmp_path / "run", folder, *options))
    kept = load_config(tmp_path / "run" / "config.yaml")
    assert (kept.sft.lr, kept.sft.batch_size, kept.sft.epochs) == (1e-3, 4, 2.0)
    steps = (tmp_path / "run" / "sft" / "metrics.jsonl").read_text().splitlines()
    assert max(json.loads(line)["lr"] for line in steps) == pytest.approx(1e-3)


def test_a_stage_trains_at_what_was_derived_for_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that nothing else has is planted: a stage that did not ask, or too late, would not
    train at it."""

    def planted(asked: Stage, config: Config, facts: Facts) -> dict[str, DerivedValue]:
        assert (asked, facts.model.adapters, facts.data.target_tokens > 0) == ("offline", True, True)
        values = {"lr": 0.03125, "batch_size": 2, "epochs": 2.0, "micro_batch_size": 1}
        return {f"offline.{name}": DerivedValue(value, "planted") for name, value in values.items()}

    monkeypatch.setattr(training, "derive", planted)
    questions, feedback = tmp_path / "questions.jsonl", tmp_path / "feedback.jsonl"
    questions.write_text("".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(6)))
    spans = (Span(start=0, end=2, label=1, text="it"), Span(start=6, end=7, label=-1, text="7"))
    judged = {"response": "it is 7", "spans": spans, "score": 0.5, "source": Source(kind="human")}
    prompts = [(Message(role="user", content=f"say {n}"),) for n in range(6)]
    write_jsonl(feedback, [Feedback(id=str(n), prompt=prompt, **judged) for n, prompt in enumerate(prompts)])
    words = ("--task.data", str(questions), "--task.heldout_share", "0", "--policy.lora.r", "2")
    trained = config(tmp_path / "run", folder, *words, "--run.threads", "1")
    place = Path(run_train_offline(trained, feedback, "offline")["out"]).parent
    rows = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    assert max(row["lr"] for row in rows) == pytest.approx(0.03125) and len(rows) == 6
    assert load_config(place / "config.yaml").offline.lr == 0.03125
    assert (place / DERIVED_FILE).is_file()
