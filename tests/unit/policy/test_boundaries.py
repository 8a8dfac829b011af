"""Boundaries in the middle of a pass."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.signals import StopRequest
from tiny_runs import tiny_model


@pytest.fixture(scope="module", params=["whole", "adapter"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    lora = LoraSettings(r=2) if request.param == "adapter" else None
    settings = PolicySettings(model=str(tiny_model(tmp_path_factory.mktemp("model"))), lora=lora)
    policy = load_policy(settings)
    policy.freeze_reference()
    return policy


def boundaries(policy: Policy, monkeypatch: pytest.MonkeyPatch, stop_at: int = 0) -> list[str]:
    """What was done at each boundary of a pass there and back, which is stopped at one of them."""
    seen, doing, obeyed = [], "forward", StopRequest.obeyed.fget  # type: ignore[attr-defined]

    def counted(request: StopRequest) -> bool:
        seen.append(doing)
        if len(seen) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return bool(obeyed(request))

    batch = policy.pack([[5, 6, 7]], [[8, 9]])
    with monkeypatch.context() as patch, StopRequest():
        patch.setattr(StopRequest, "obeyed", property(counted))
        loss = policy(batch, valued=False).logp.sum()
        doing = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
    return seen


def test_every_layer_is_a_boundary_there_and_back(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = boundaries(policy, monkeypatch)
    layers = policy.model.config.num_hidden_layers
    assert seen.count("forward") >= layers + 1  # and the head
    assert seen.count("backward") >= layers
    assert len(seen) == len(boundaries(Policy(policy.model, policy.tokenizer), monkeypatch))  # no second time


def test_a_pass_ends_at_the_boundary_and_leaves_no_weight_changed(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    for boundary in range(1, len(boundaries(policy, monkeypatch)) + 1):
        with pytest.raises(KeyboardInterrupt):
            boundaries(policy, monkeypatch, boundary)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_boundaries_change_no_gradient(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = policy.pack([[5, 6, 7]], [[8, 9]])
    found = []
    for hooked in (True, False):
        for module in policy.modules():
            if not hooked:
                module._forward_pre_hooks.clear()
        policy.zero_grad(set_to_none=True)
        policy(batch, valued=False).logp.sum().backward()  # type: ignore[no-untyped-call]
        found.append([parameter.grad for parameter in policy.policy_parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True) if a is not None and b is not None)
