"""Entropy, KL and perplexity as summed token by token, and what counts as a collapse."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from text2grad.errors import UserError
from text2grad.eval.drift import drift
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad.policy.tiny import TinyShape, make_tiny_model
from tiny_runs import TEXTS, tiny_model

PROMPTS = [[5, 9, 20], [7], [30, 31, 32, 33, 34, 35]]
ANSWERS = [[40, 41], [42, 43, 44, 45, 46], [47]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def loaded(folder: Path, scale: float = 1.0) -> Policy:
    policy = load_policy(PolicySettings(model=str(folder)))
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.mul_(scale)
    return policy


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_drift_is_the_sum_over_tokens(folder: Path, batch_size: int, temperature: float) -> None:
    policy, reference = loaded(folder, 5.0), loaded(folder, 2.0)
    entropy = kl = logp = 0.0
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids = torch.tensor([prompt + answer])
        with torch.no_grad():
            ours, theirs = (each.model(input_ids=ids).logits[0].double() for each in (policy, reference))
        for t in range(len(prompt), len(prompt) + len(answer)):
            p, q = ((each[t - 1] / temperature).softmax(-1) for each in (ours, theirs))
            entropy -= float((p * p.log()).sum())
            kl += float((p * (p / q).log()).sum())
            logp += float(theirs[t - 1].log_softmax(-1)[ids[0, t]])
    found = drift(policy, reference, PROMPTS, ANSWERS, temperature, batch_size)
    assert kl > 0.01
    assert found == {
        "entropy": pytest.approx(entropy / 8, rel=1e-4),
        "kl": pytest.approx(kl / 8, rel=1e-3),
        "reference_perplexity": pytest.approx(math.exp(-logp / 8), rel=1e-4),
    }


def test_a_reference_with_other_tokens_is_refused(folder: Path, tmp_path: Path) -> None:
    shape = TinyShape(hidden=32, layers=2, heads=2, feed_forward=48)
    make_tiny_model(tmp_path, TEXTS, 290, 128, shape, seed=3)
    with pytest.raises(UserError, match="another vocabulary"):
        drift(loaded(folder), loaded(tmp_path), PROMPTS, ANSWERS, 1.0, 8)
