"""verl's own trainer under our recipe, on a CPU: what it learns and hands over, and that its steps
are ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import verl_equality
import verl_recipe
from torch.nn.utils.rnn import pad_sequence
from verl_equality import kept

from text2grad.errors import UserError
from text2grad.feedback import Message
from text2grad.policy.load import is_adapter, load_frozen
from text2grad.policy.settings import PolicySettings
from text2grad.rl.advantage import gae, normalise
from text2grad.stages.evaluate.policy import run_evaluate
from text2grad.train.ppo_settings import PPOSettings


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, float]]]:
    """The folder of a run, and the metrics of its steps."""
    folder = tmp_path_factory.mktemp("one_rank")
    return folder, verl_recipe.train(folder)


def test_the_reward_rises(learned: tuple[Path, list[dict[str, float]]]) -> None:
    rows = learned[1]
    assert [row["step"] for row in rows] == [*range(len(rows))]
    assert rows[0]["delta_sum"] < -4 and rows[-1]["delta_sum"] > 2, [row["delta_sum"] for row in rows]
    assert {"score", "kl", "policy_loss", "grad_norm", "clip_fraction", "seconds_generate"} <= rows[0].keys()


def test_the_folder_is_like_any_other(learned: tuple[Path, list[dict[str, float]]]) -> None:
    config = verl_recipe.recipe(learned[0])
    place = config.run.folder / "ppo" / "mine"
    assert (place / "policy" / "manifest.json").is_file() and not (place / "verl" / "checkpoints").exists()
    strips = [json.loads(line) for line in (place / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {"response", "spans", "tokens", "advantage", "delta", "logp_change"} <= strips[0].keys()
    run_evaluate(config, "mine")
    (file,) = (config.run.folder / "evaluation").rglob("mine.json")
    assert json.loads(file.read_text(encoding="utf-8"))["greedy_vowels"] > 0.5


@pytest.mark.parametrize("settings", [{}, {"ppo.advantage": "group", "ppo.samples_per_prompt": 2}])
def test_steps_are_those_of_the_local_loop(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Advantages of the trainer's own batch, and weights after two steps of SGD."""
    advantages, weights = verl_equality.differences(tmp_path, **settings)
    assert advantages < 1e-5 and weights < 1e-5, (advantages, weights)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two_ranks")
    verl_recipe.train(folder, "--ppo.steps", "4", ranks=2)
    return folder


def test_two_ranks_take_the_same_steps(learned: tuple[Path, list[dict[str, float]]], two_ranks: Path) -> None:
    same(kept(learned[0], 2)[0], kept(two_ranks, 2)[0], 1e-4)


def same(one: list[dict[str, Any]], two: list[dict[str, Any]], most: float) -> None:
    for left, right in zip(one, two, strict=True):
        assert [left[name] for name in ("key", "responses", "response_mask")] == [
            right[name] for name in ("key", "responses", "response_mask")
        ]
        assert torch.allclose(
            torch.tensor(left["advantages"]), torch.tensor(right["advantages"]), atol=most, rtol=0
        )


def test_a_run_that_stopped_is_resumed(two_ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--ppo.steps", "4")
    monkeypatch.setenv("STOPS_AFTER", str(2 * 32 + 8))
    with pytest.raises(UserError) as stopped:
        verl_recipe.train(tmp_path, *words, ranks=2)
    assert "out of ink" in str(stopped.value), "the critic's own line"
    monkeypatch.delenv("STOPS_AFTER")
    with pytest.raises(UserError) as changed:
        verl_recipe.train(tmp_path, *words, "--ppo.gamma", "0.1", ranks=2)
    assert "gamma" in str(changed.value)
    rows = verl_recipe.train(tmp_path, *words, ranks=2)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert (tmp_path / "run" / "ppo" / "mine" / "policy").is_dir()
    same(kept(two_ranks, 4)[0], kept(tmp_path, 4)[0], 1e-4)


def test_episodes_of_several_turns(tmp_path: Path) -> None:
    rows = verl_recipe.train(tmp_path, "--ppo.steps", "2", "--task.name", "verl_recipe:Talkers")
    assert rows[1]["turns"] > 1.0
    (step,) = kept(tmp_path, 2)
    played = [row for row in step if 0 in row["response_mask"]]
    assert played, "a turn that is cut ends its episode, and a random policy ends few by itself"
    for row in played:
        pairs = zip(row["advantages"], row["response_mask"], strict=True)
        assert not any(advantage for advantage, own in pairs if not own)
        assert row["judged"]["between"][1] == [Message(role="user", content="aeiou" * 3).model_dump()]


def test_a_value_function_of_verls(tmp_path: Path) -> None:
    words = ("--ppo.advantage", "gae", "--ppo.value_warmup", "1", "--ppo.steps", "2")
    rows = verl_recipe.train(tmp_path, *words)
    assert "policy_loss" not in rows[0] and {"policy_loss", "value_loss"} <= rows[1].keys()
    (step,) = kept(tmp_path, 2)
    columns = ("advantages", "token_level_rewards", "values", "last_value", "response_mask")
    theirs, rewards, values, last, mask = (
        pad_sequence([torch.tensor(row[name]) for row in step], batch_first=True) for name in columns
    )
    cut = torch.tensor([row["judged"]["truncated"] for row in step])
    own, settings = mask.bool(), PPOSettings()
    after = torch.where(cut, last.squeeze(1), 0.0)  # the value after the last token stands for the rest
    assert float(after[cut].abs().min()) > 0
    mine, _ = gae(rewards, values, own, settings.gamma, settings.lam, after)
    assert torch.allclose(normalise(mine, own, settings.normalisation), theirs, atol=1e-5, rtol=0)


def test_an_adapter_is_handed_over(tmp_path: Path) -> None:
    merged = {"actor_rollout_ref.model.lora.merge": True}  # what the stand-in for a server is sent
    verl_recipe.train(tmp_path, "--ppo.steps", "2", "--policy.lora", "{r: 4, targets: [q_proj]}", more=merged)
    folder = tmp_path / "run" / "ppo" / "mine" / "policy"
    assert is_adapter(str(folder))
    policy = load_frozen(PolicySettings(model=str(folder)))
    changed = [weight for name, weight in policy.model.named_parameters() if "lora_B" in name]
    assert changed and all(float(weight.abs().max()) > 0 for weight in changed)
