"""The method on one page is the method: its first step is that of `train_ppo`, and it learns."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from places import ROOT
from text2grad.align import CreditSettings
from text2grad.durable.run import RunOptions
from text2grad.train.ppo import train_ppo
from text2grad.train.ppo_settings import PPOSettings

EXAMPLE = ROOT / "examples" / "minimal_loop.py"
ROWS = 8


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal_loop", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_first_step_is_that_of_train_ppo(
    page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, where both add up the rows in one order: `train_ppo` shuffles them for its
    mini-batches."""
    monkeypatch.setattr(torch, "randperm", torch.arange)
    settings = PPOSettings(
        steps=1, rollouts=ROWS, epochs=page.EPOCHS, lr=page.LEARNING_RATE, advantage="returns", gamma=page.GAMMA,
        lam=page.LAM, kl="k1", kl_coefficient=page.BETA, normalisation="scale",
    )  # fmt: skip
    ours, theirs = page.make_policy(tmp_path / "a"), page.make_policy(tmp_path / "b")
    began = [parameter.clone() for parameter in theirs.policy_parameters()]
    asked = [page.PROMPT] * ROWS
    torch.manual_seed(0)
    train_ppo(
        ours, asked, page.Letters(), settings, CreditSettings(), page.SAMPLING, RunOptions(tmp_path / "run", "x")
    )
    lines = (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    lengths = {len(json.loads(line)["tokens"]) for line in lines}
    assert lengths == {page.SAMPLING.max_new_tokens}, "rows of other lengths would be sorted by them"
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(theirs.policy_parameters(), lr=page.LEARNING_RATE, weight_decay=0.0, fused=True)
    score = page.step(theirs, optimizer, asked, page.Letters())
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text("utf-8"))
    assert score == metrics["score"]
    for start, one, other in zip(began, ours.policy_parameters(), theirs.policy_parameters(), strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(start, other)


def test_its_score_rises(page: ModuleType, tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = page.make_policy(tmp_path)
    optimizer = torch.optim.AdamW(policy.policy_parameters(), lr=page.LEARNING_RATE, fused=True)
    scores = [page.step(policy, optimizer, [page.PROMPT] * 16, page.Letters()) for _ in range(12)]
    assert scores[-1] > scores[0] + 0.3
