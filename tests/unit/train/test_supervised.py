"""Supervised training: whose tokens count, and how much."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad import wire
from text2grad.feedback import Critique, Message, Span
from text2grad.policy.model import Policy
from text2grad.train.pairs import Pair, encode_pairs
from text2grad.train.passes import PassSize
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import accumulate_gradient

SETTINGS = SupervisedSettings(micro_batch_size=2)
ASK = (Message(role="user", content="Judge it."),)
RESPONSE = 'He said: "poor_spans": [] is 5 > 3, the cat sat.'


def span(text: str, label: int) -> Span:
    start = RESPONSE.index(text)
    return Span(start=start, end=start + len(text), label=label, text=text)


CRITIQUE = Critique(
    text='It says "poor_spans": ["x"], which is odd.', spans=(span("the", -1), span("cat sat", 1)), score=-1.0
)
Z = wire.render(CRITIQUE, RESPONSE)


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    return Policy(copy.deepcopy(tiny_llama), tokenizer)


def test_every_token_of_the_answer_counts_once(policy: Policy) -> None:
    item = encode_pairs(policy, [Pair("1", ASK, Z)])[0]
    assert item.weights == [1.0] * len(item.target)


def by_hand(policy: Policy, items: list[Any]) -> torch.Tensor:
    """The oracle: one pair at a time, token by token, no padding."""
    total, weights = torch.zeros(()), 0.0
    for item in items:
        logits = policy.model(torch.tensor([[*item.prompt, *item.target]])).logits[0]
        for place, (token, weight) in enumerate(zip(item.target, item.weights, strict=True)):
            total = total - weight * logits[len(item.prompt) + place - 1].log_softmax(dim=-1)[token]
            weights += weight
    return total / weights


def test_the_loss_is_the_mean_over_tokens(policy: Policy) -> None:
    other = wire.render(Critique(text="A much shorter one.", score=1.0), RESPONSE)
    items = encode_pairs(policy, [Pair("1", ASK, each) for each in (Z, other, Z)])
    oracle = by_hand(policy, items)
    oracle.backward()  # type: ignore[no-untyped-call]
    expected = oracle.item()
    wanted = [parameter.grad for parameter in policy.policy_parameters()]
    policy.zero_grad(set_to_none=True)
    assert accumulate_gradient(policy, items, PassSize(2)) == {"loss": pytest.approx(expected, rel=1e-5)}
    for parameter, gradient in zip(policy.policy_parameters(), wanted, strict=True):
        assert parameter.grad is not None and gradient is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)
