"""Learning from pairs: what a batch's gradient is, read one answer at a time, and a scalar model on disk."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from text2grad.durable.run import RunOptions
from text2grad.durable.state import seed_everything
from text2grad.errors import UserError
from text2grad.feedback import Message, Preference
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.heads.model import ScalarModel
from text2grad.policy.load import load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.train.objectives.head_model import scored, train_scalar_model
from text2grad.train.objectives.preference import (
    accumulate_gradient,
    encode_preferences,
    implied_rewards,
    read_preferences,
    train_dpo,
)
from text2grad.train.passes import PassSize
from text2grad.train.settings import DPOSettings, DPOTrainingSettings, SupervisedSettings
from tiny_runs import TEXTS, tiny_model

BETA = 0.3
TRAINING = SupervisedSettings(epochs=12, batch_size=2, micro_batch_size=2, lr=5e-3)


def pair(number: int, chosen: str, rejected: str) -> Preference:
    prompt = (Message(role="user", content=TEXTS[number]),)
    return Preference(id=str(number), prompt=prompt, chosen=chosen, rejected=rejected)


PAIRS = [pair(0, "even", "write a poem"), pair(1, "rain, rain", "x"), pair(3, "ok", "def f(x): return")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def moved(model: Path, lora: bool = False) -> Policy:
    """A policy beside its reference."""
    seed_everything(1)
    policy = load_policy(PolicySettings(model=str(model), lora=LoraSettings(r=2) if lora else None))
    policy.freeze_reference()
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return policy.eval()


def log_ratio(policy: Policy, start: Any, item: Preference, text: str) -> Tensor:
    """The oracle: one answer, token by token, no padding."""
    prompt, answer = encode_prompt(policy.tokenizer, item.prompt), encode_target(policy.tokenizer, text)
    ids = torch.tensor([[*prompt, *answer]])
    total = torch.zeros(())
    for place, token in enumerate(answer, start=len(prompt)):
        now, then = (each(ids).logits[0, place - 1].log_softmax(dim=-1)[token] for each in (policy.model, start))
        total = total + now - then.detach()
    return total


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_gradient_of_dpo(model: Path, size: int) -> None:
    policy = moved(model)
    start = load_policy(PolicySettings(model=str(model))).model
    margins = [
        BETA * (log_ratio(policy, start, each, each.chosen) - log_ratio(policy, start, each, each.rejected))
        for each in PAIRS
    ]
    known = [float(margin.detach()) for margin in margins]
    loss = torch.stack([torch.log1p(torch.exp(-margin)) for margin in margins]).mean()
    wanted = torch.autograd.grad(loss, policy.policy_parameters())
    rewards = partial(implied_rewards, policy, beta=BETA)
    metrics = accumulate_gradient(policy, rewards, encode_preferences(policy, PAIRS), PassSize(size))
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    assert metrics["margin"] == pytest.approx(sum(known) / 3, abs=1e-6)
    assert metrics["accuracy"] == pytest.approx(sum(margin > 0 for margin in known) / 3)
    for parameter, gradient in zip(policy.policy_parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-6)


def test_what_is_read_of_held_out_pairs(model: Path) -> None:
    policy = moved(model)
    start = load_policy(PolicySettings(model=str(model))).model
    reading = read_preferences(policy, encode_preferences(policy, PAIRS), BETA, 2)
    with torch.no_grad():
        wanted = [BETA * float(log_ratio(policy, start, each, each.chosen)) for each in PAIRS]
    assert reading.chosen == pytest.approx(wanted, abs=1e-6)
    assert reading.kl > 0


def test_the_score_is_a_linear_map_of_the_last_token(model: Path) -> None:
    policy = load_policy(PolicySettings(model=str(model)))
    head = policy.add_head("score_head")
    with torch.no_grad():
        head.map.weight.copy_(torch.randn(1, 32))
        chosen, rejected = scored(policy, encode_preferences(policy, PAIRS))
        for each, *found in zip(PAIRS, chosen, rejected, strict=True):
            for text, score in zip((each.chosen, each.rejected), found, strict=True):
                ids = [*encode_prompt(policy.tokenizer, each.prompt), *encode_target(policy.tokenizer, text)]
                last = policy.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]
                assert float(score) == pytest.approx(float(head.map.weight[0] @ last), abs=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_a_scalar_model_learns_the_pairs_and_is_the_same_on_disk(model: Path, tmp_path: Path, lora: bool) -> None:
    policy = load_policy(PolicySettings(model=str(model), lora=LoraSettings(r=2) if lora else None))
    metrics = train_scalar_model(policy, PAIRS, TRAINING, RunOptions(tmp_path, "scalar"))
    assert metrics["loss"] < 0.5
    loaded = load_frozen(PolicySettings(model=str(tmp_path / "policy")))
    prompts, answers = [each.prompt for each in PAIRS], [each.chosen for each in PAIRS]
    found = ScalarModel(loaded, 2).scores(prompts, answers)
    assert found == pytest.approx(ScalarModel(policy, 3).scores(prompts, answers), abs=1e-6)
    assert ScalarModel(loaded, 2).scores(prompts[:1], ["rain " * 200]) == [None]


@pytest.mark.parametrize("lora", [False, True])
def test_dpo_moves_away_from_a_reference_that_stays(model: Path, tmp_path: Path, lora: bool) -> None:
    policy = load_policy(PolicySettings(model=str(model), lora=LoraSettings(r=2, dropout=0.5) if lora else None))
    seen: list[dict[str, float]] = []
    options = RunOptions(tmp_path, "dpo", on_step=lambda step, metrics: seen.append(dict(metrics)))
    train_dpo(policy, PAIRS, DPOSettings(beta=BETA, training=DPOTrainingSettings(**TRAINING.model_dump())), options)
    assert seen[0]["margin"] == 0 and seen[0]["loss"] == pytest.approx(0.693147, abs=1e-6)
    assert seen[-1]["loss"] < 0.6
    assert (tmp_path / "policy" / ("adapter_model.safetensors" if lora else "model.safetensors")).is_file()
    assert policy.continued


@pytest.mark.parametrize(
    ("pairs", "context", "said"),
    [
        ([], 512, "nothing to train on"),
        (PAIRS, 8, "prompts are too long"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    model: Path, tmp_path: Path, pairs: list[Preference], context: int, said: str
) -> None:
    policy = load_policy(PolicySettings(model=str(model)))
    policy.model.config.max_position_embeddings = context
    with pytest.raises(UserError, match=said):
        train_scalar_model(policy, pairs, TRAINING, RunOptions(tmp_path / "run", "scalar"))
    assert not (tmp_path / "run").exists()
