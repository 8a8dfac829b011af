"""Settings that nobody set, in a run: told, kept, found again; nothing for a tiny model or a run begun without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from text2grad.config import Config, load_config
from text2grad.config.derive import GB, DataFacts, Facts, MachineFacts, ModelFacts
from text2grad.durable.processes import ALONE
from text2grad.durable.run import CHECKPOINTS
from text2grad.errors import UserError
from text2grad.feedback import Message
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.stages import settle
from text2grad.stages.settle import DERIVED_FILE, cost_line, facts_of_pairs, model_facts, settled
from text2grad.stages.supervised import run_sft
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
    return settled(config, "sft", config.run.folder / "sft", policy, data, resume, ALONE)


def test_what_is_derived_is_told_kept_and_found_again(
    tmp_path: Path,
    folder: Path,
    policy: Policy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = settle_sft(config(tmp_path, folder), policy)
    assert (first.sft.lr, first.sft.batch_size, first.sft.epochs) == (1e-3, 4, 10.0)
    said = capsys.readouterr().err
    assert "sft.lr 0.001 (adapters on 0M parameters)" in said and "sft.epochs 10 (100 updates)" in said
    assert said.count("\n") == 2 and str(tmp_path / "sft" / DERIVED_FILE) in said

    def cramped(policy: Policy) -> MachineFacts:
        return MachineFacts("cpu", 1, 0, 1e9)

    monkeypatch.setattr(settle, "machine_facts", cramped)
    assert settle_sft(config(tmp_path, folder), policy) == first
    assert settle_sft(config(tmp_path, folder), policy, resume="restart") == first
    other = settle_sft(config(tmp_path, folder), policy, replace(DATA, examples=400))
    assert (other.sft.batch_size, other.sft.micro_batch_size) == (8, 1), "other data: derived anew"


def test_a_setting_given_later_wins_over_what_was_kept(tmp_path: Path, folder: Path, policy: Policy) -> None:
    settle_sft(config(tmp_path, folder), policy)
    mine = settle_sft(config(tmp_path, folder, "--sft.lr", "1e-5"), policy)
    assert (mine.sft.lr, mine.sft.epochs) == (1e-5, 10.0)


def test_the_run_says_what_its_earlier_stages_derived(tmp_path: Path, folder: Path, policy: Policy) -> None:
    sft = settle_sft(config(tmp_path, folder), policy).sft
    place = tmp_path / "ppo" / "text2grad"
    later = settled(config(tmp_path, folder), "ppo", place, policy, DataFacts(40, 20), "auto", ALONE)
    assert later.sft == sft and later.ppo.lr == 3e-4 and later.ppo.rollouts == 32
    assert not (tmp_path / "reward_model").exists()


def test_a_tiny_model_and_a_run_that_began_without_get_nothing(
    tmp_path: Path, folder: Path, policy: Policy
) -> None:
    tiny = config(tmp_path / "tiny", "tiny")
    assert settle_sft(tiny, policy) is tiny and not (tmp_path / "tiny").exists()
    begun = config(tmp_path / "begun", folder)
    (tmp_path / "begun" / "sft" / CHECKPOINTS).mkdir(parents=True)
    assert settle_sft(begun, policy).sft == begun.sft
    assert settle_sft(begun, policy, resume="restart").sft.lr == 1e-3


def test_a_kept_file_that_is_none_is_one_line(tmp_path: Path, folder: Path, policy: Policy) -> None:
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / DERIVED_FILE).write_text("[]")
    with pytest.raises(UserError, match=r"derived\.json is not a list of derived settings \(remove it"):
        settle_sft(config(tmp_path, folder), policy)


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


def test_a_slow_step_comes_with_a_cheaper_one() -> None:
    facts = Facts(
        ModelFacts(135_000_000, True, 30, 576),
        DataFacts(48, 400),
        MachineFacts("cpu", 2, 16 * GB, 140e9),
    )
    slow = load_config(None, ["--task.name", "qa", "--policy.model", "smollm2", "--ppo.rollouts", "64"])
    line = cost_line(slow, facts)
    assert line.startswith("about ") and " minutes a step, " in line and "; --ppo.rollouts 16: " in line
    quick = replace(facts, machine=replace(facts.machine, flops=1e14, free_bytes=10**12))
    assert cost_line(slow, quick).endswith(" GB") and "--ppo" not in cost_line(slow, quick)


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
