"""Weights in a half type learn as float32 weights do: their float32 masters are stepped, and they
follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from text2grad.durable.state import Training
from text2grad.errors import UserError
from text2grad.policy.files.save import write_policy
from text2grad.policy.load import choose_dtype, load_frozen, load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.train.optimizers import clip_gradient, make_optimizers
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.settings import NextTokenSettings, SupervisedSettings
from text2grad.train.supervised import make_optimizer
from tiny_runs import TEXTS, tiny_model

STEPS = 12
LR = 1e-6
LORA = LoraSettings(r=4, dropout=0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights bfloat16 holds exactly, so that both types start from the same."""
    folder = tiny_model(tmp_path_factory.mktemp("base") / "tiny")
    load_frozen(PolicySettings(model=str(folder), dtype="bfloat16")).model.save_pretrained(folder)
    return folder


def load(folder: Path, dtype: str = "bfloat16", **more: Any) -> Policy:
    return load_policy(PolicySettings.model_validate({"model": str(folder), "dtype": dtype, **more}))


@pytest.mark.parametrize(
    ("on_gpu", "native", "expected"),
    [
        (False, True, "bfloat16"),
        (False, False, "float32"),
        (True, True, "bfloat16"),
        (True, False, "float32"),
    ],
)
def test_auto_is_bfloat16_where_the_device_computes_in_it(
    on_gpu: bool, native: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: native and not on_gpu, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native and on_gpu)
    assert choose_dtype("auto", torch.device("cuda" if on_gpu else "cpu")) == expected


def test_auto_is_the_type_of_loaded_weights(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved weights are in bfloat16, which this device does not compute in."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False, raising=False)
    assert {weight.dtype for weight in load(base, "auto", device="cpu").parameters()} == {torch.float32}


def stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def learn(policy: Policy, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> list[Tensor]:
    """How far the weights that are stepped have moved, after some steps on one batch."""
    start = [weight.detach().float().clone() for weight in stepped(optimizer)]
    batch = policy.pack([policy.tokenizer.encode(text) for text in TEXTS], [[40, 41, 42, 43]] * len(TEXTS))
    for _ in range(steps):
        (-policy(batch, valued=False).logp.sum()).backward()
        clip_gradient(policy.policy_parameters())
        optimizer.step()
        policy.zero_grad(set_to_none=True)
    return [now.detach().float() - then for now, then in zip(stepped(optimizer), start, strict=True)]


def cosine(one: list[Tensor], other: list[Tensor]) -> float:
    flat = [torch.cat([each.flatten() for each in parts]).double() for parts in (one, other)]
    return float(torch.nn.functional.cosine_similarity(*flat, dim=0))


def ppo_optimizer(policy: Policy) -> torch.optim.Optimizer:
    return make_optimizers(policy, PPOSettings(lr=LR)).policy


def sft_optimizer(policy: Policy) -> torch.optim.Optimizer:
    return make_optimizer(policy, SupervisedSettings(lr=LR))


def muon(policy: Policy) -> torch.optim.Optimizer:
    return make_optimizer(policy, NextTokenSettings(lr=LR, optimizer="text2grad.demo_muon:muon"))


@pytest.mark.parametrize("make", [ppo_optimizer, sft_optimizer, muon])
def test_bfloat16_moves_as_float32_does(base: Path, make: Callable[[Policy], torch.optim.Optimizer]) -> None:
    whole, half = load(base, "float32"), load(base)
    optimizers = make(whole), make(half)
    assert {id(weight) for weight in stepped(optimizers[0])} == {id(p) for p in whole.policy_parameters()}
    expected, found = learn(whole, optimizers[0]), learn(half, optimizers[1])
    assert cosine(found, expected) > 0.98
    sizes = [float(torch.cat([each.flatten() for each in moved]).norm()) for moved in (found, expected)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
    by_name = {name: p.detach() for name, p in half.model.named_parameters()}
    assert {p.dtype for p in by_name.values()} == {torch.bfloat16}
    masters = {tuple(weight.shape): weight for weight in stepped(optimizers[1])}
    assert all(master.dtype == torch.float32 and master.grad is None for master in masters.values())
    halves = {p.data_ptr(): p for p in half.policy_parameters()}
    rounded = [weight.detach().bfloat16() for weight in stepped(optimizers[1])]
    for parameter in halves.values():
        assert any(parameter.shape == each.shape and torch.equal(parameter, each) for each in rounded)


def test_many_small_steps_reach_the_parameters(base: Path) -> None:
    """Each step is lost on nearly every bfloat16 weight; all of them together are not."""
    policy = load(base)
    optimizer = sft_optimizer(policy)
    start = torch.cat([p.detach().float().flatten() for p in policy.policy_parameters()])
    moved = cosine_to = 0.0
    for count in (1, 199):
        change = learn(policy, optimizer, count)
        now = torch.cat([p.detach().float().flatten() for p in policy.policy_parameters()])
        moved, cosine_to = (
            float((now != start).float().mean()),
            cosine([now - start], [torch.cat([each.flatten() for each in change])]),
        )
        if count == 1:
            assert moved < 0.1
    assert moved > 0.3 and cosine_to > 0.5


def test_adapters_and_float32_weights_are_stepped_themselves(base: Path) -> None:
    adapted = load(base, lora=LORA)
    optimizer = sft_optimizer(adapted)
    assert {id(weight) for weight in stepped(optimizer)} == {id(p) for p in adapted.policy_parameters()}
    valued = make_optimizers(load(base), PPOSettings()).value
    assert len(stepped(valued)) == 4


def test_the_trunk_of_a_value_function_has_masters_too(base: Path) -> None:
    policy = load(base, value_head="separate")
    value = make_optimizers(policy, PPOSettings()).value
    assert {weight.dtype for weight in stepped(value)} == {torch.float32}
    own = {id(p) for p in policy.parameters()}
    assert sum(id(weight) not in own for weight in stepped(value)) == len(list(policy.model.parameters()))


def test_masters_begin_at_what_was_merged(base: Path, tmp_path: Path) -> None:
    adapted = load(base, lora=LORA)
    with torch.no_grad():
        for parameter in adapted.policy_parameters():
            parameter.add_(1e-4)
    write_policy(adapted, tmp_path / "sft")
    policy = load(tmp_path / "sft")
    exact = dict(policy.exact)
    optimizer = sft_optimizer(policy)
    assert len(exact) == 14 and not policy.exact, "they are kept once"
    for weight in exact.values():
        assert any(weight.shape == each.shape and torch.equal(weight, each) for each in stepped(optimizer))


def test_a_checkpoint_holds_masters_and_one_without_is_refused(base: Path) -> None:
    def begun() -> Training:
        policy = load(base)
        optimizer = sft_optimizer(policy)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        return Training(policy, [optimizer], schedule)

    first, second = begun(), begun()
    learn(first.policy, first.optimizers[0])
    saved, numbers = first.tensors(), first.numbers()
    masters = {name for name in saved if name.startswith("master.0.")}
    assert len(masters) == len(first.policy.policy_parameters())
    second.restore(saved, numbers)
    for one, other in zip(*(stepped(each.optimizers[0]) for each in (first, second)), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(UserError, match="not those of this policy"):
        second.restore({name: tensor for name, tensor in saved.items() if name not in masters}, numbers)
