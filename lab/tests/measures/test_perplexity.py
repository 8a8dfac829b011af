"""Perplexity under a model, against separate passes over each text."""

from __future__ import annotations

import math

import pytest
import torch

from published import published
from text2grad.errors import UserError
from text2grad.feedback import Example, Message
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import PolicySettings
from text2grad_lab.measures.perplexity import perplexity, perplexity_of
from tiny_runs import tiny_model

TEXTS = ["a short poem about rain", "", "ok", "keep it", " x"]
EXAMPLES = [
    Example(id=str(n), prompt=(Message(role="user", content=f"Say {'it ' * n}"),)) for n in range(len(TEXTS))
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return load_policy(PolicySettings(model=str(tiny_model(tmp_path_factory.mktemp("model")))))


def slow(policy: Policy) -> float:
    total, count = 0.0, 0
    for example, text in zip(EXAMPLES, TEXTS, strict=True):
        prompt = encode_prompt(policy.tokenizer, example.prompt)
        ids = encode_target(policy.tokenizer, text)[: -len(encode_target(policy.tokenizer, ""))]
        assert policy.tokenizer.decode(ids) == text
        with torch.no_grad():
            logp = policy.model(input_ids=torch.tensor([prompt + ids])).logits[0].double().log_softmax(-1)
        total -= sum(float(logp[len(prompt) + t - 1, token]) for t, token in enumerate(ids))
        count += len(ids)
    return math.exp(total / count)


@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_all_tokens_have_equal_weight(policy: Policy, batch_size: int) -> None:
    assert perplexity(policy, EXAMPLES, TEXTS, batch_size) == pytest.approx(slow(policy), rel=1e-5)


def test_empty_texts_have_no_perplexity_and_long_ones_are_refused(policy: Policy) -> None:
    assert perplexity(policy, EXAMPLES[:2], ["", ""], 2) is None
    with pytest.raises(UserError, match="too long: '0'"):
        perplexity(policy, EXAMPLES[:1], ["rain " * 200], 1)


def test_word_perplexities_of_lighteval() -> None:
    """Lighteval counts the words of the query; its other cases contain no log-probabilities."""
    for case in published("lighteval_metric_cases", "word_perplexity.json")["test_cases"]:
        logp = sum(sum(response["logprobs"]) for response in case["model_responses"])
        words = sum(len(doc["query"].split()) for doc in case["docs"])
        assert perplexity_of(logp, words) == pytest.approx(case["expected_output"], abs=case["tolerance"])
