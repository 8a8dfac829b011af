"""The second loss of the reward model: which token of the prompt has which label, and what it adds up to."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.config import RewardModelSettings
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.policy.model import Policy
from text2grad.stages.reward_data import fitting, reward_pair
from text2grad.train.labels import UNLABELLED, LabelLoss, directions
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import Encoded, accumulate_gradient, encode_pairs, measure_loss

SETTINGS = SupervisedSettings(micro_batch_size=2)
LABELLED = RewardModelSettings(label_weight=1.0)


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    return Policy(copy.deepcopy(tiny_llama), tokenizer)


def record(response: str = "the cat sat on the mat", question: str = "the cat sat on the mat?") -> Feedback:
    quotes = [(word, label) for word, label in (("cat sat", 1), ("mat", -1)) if word in response]
    spans = [
        Span(start=response.index(word), end=response.index(word) + len(word), label=label, text=word)  # type: ignore[arg-type]
        for word, label in quotes
    ]
    return Feedback(
        id="1",
        prompt=(Message(role="user", content=question),),
        response=response,
        critique="Fine but for the mat.",
        spans=tuple(spans),
        score=-1.0,
        source=Source(kind="human"),
    )


def encoded(policy: Policy, *records: Feedback) -> list[Encoded]:
    pairs = [pair for each in records if (pair := reward_pair(each, LABELLED))]
    return encode_pairs(policy, pairs, SETTINGS)


def words(policy: Policy, item: Encoded, label: int) -> str:
    chosen = [token for token, each in zip(item.prompt, item.labels, strict=True) if each == label]
    return str(policy.tokenizer.decode(chosen))


@pytest.mark.parametrize("kind", ["tokenizer", "sentencepiece_tokenizer"])
def test_labels_fall_on_the_tokens_of_the_response_and_not_of_the_question(
    kind: str, policy: Policy, request: pytest.FixtureRequest
) -> None:
    chosen = request.getfixturevalue(kind)
    chosen.chat_template = policy.tokenizer.chat_template
    chosen.eos_token = chosen.eos_token or chosen.convert_ids_to_tokens(0)
    made = Policy(policy.model, chosen)
    (item,) = encoded(made, record())
    assert words(made, item, 1).strip() == "cat sat"
    assert words(made, item, -1).strip() == "mat"
    assert words(made, item, 0).split() == ["the", "on", "the"]
    assert "question" in words(made, item, UNLABELLED) and "mat?" in words(made, item, UNLABELLED)


def test_without_a_weight_nothing_is_labelled(policy: Policy) -> None:
    pair = reward_pair(record(), RewardModelSettings())
    assert pair is not None and pair.marked is None
    assert encode_pairs(policy, [pair], SETTINGS)[0].labels == []


def test_a_response_that_would_close_the_prompts_tag_has_no_labels(policy: Policy) -> None:
    """It does not stand in the prompt to the letter."""
    (item,) = encoded(policy, record("the cat sat </response> on the mat"))
    assert item.labels == []


def test_a_prompt_that_loses_its_middle_keeps_its_labels(policy: Policy) -> None:
    settings = LABELLED.model_copy(update={"training": SupervisedSettings(max_length=240)})
    ((_, pair),) = fitting(policy, [record(question="the cat sat on the mat? " * 20)], settings)
    (item,) = encode_pairs(policy, [pair], SETTINGS)
    assert words(policy, item, -1).strip() == "mat" and words(policy, item, 1).strip() == "cat sat"


def test_a_tokenizer_that_changes_the_text_can_label_nothing(
    policy: Policy, word_piece: PreTrainedTokenizerFast
) -> None:
    word_piece.chat_template = policy.tokenizer.chat_template
    word_piece.eos_token = "[SEP]"
    with pytest.raises(UserError, match=r"changes the text.*label_weight 0"):
        encoded(Policy(policy.model, word_piece), record("The Cat sat on the mat"))


def by_hand(policy: Policy, items: list[Encoded], poor_weight: float) -> torch.Tensor:
    """The oracle: one pair at a time, token by token, no padding; the layer counted out."""
    total, count, basis = torch.zeros(()), 0, directions(policy.model.config.hidden_size)
    for item in items:
        ids = torch.tensor([[*item.prompt, *item.target]])
        layers = policy.model(ids, output_hidden_states=True).hidden_states
        assert len(layers) == 3  # of two layers, the first is read
        for place, label in enumerate(item.labels):
            if label == UNLABELLED:
                continue
            state = layers[1][0, place]
            logits = basis @ (state / (state.square().mean() + 1e-6).sqrt())
            probability = logits[label + 1].exp() / logits.exp().sum()
            total = total - (poor_weight if label < 0 else 1.0) * probability.log()
            count += 1
    return total / count


def test_the_loss_is_the_mean_over_labelled_tokens_beside_that_of_z(policy: Policy) -> None:
    items = encoded(policy, record(), record("mat", "why?"), record("the dog </response>"))
    oracle = by_hand(policy, items, 3.0)
    z = measure_loss(policy, items, SETTINGS)
    oracle.backward()  # type: ignore[no-untyped-call]
    wanted = [None if p.grad is None else 0.5 * p.grad for p in policy.policy_parameters()]
    policy.zero_grad(set_to_none=True)
    accumulate_gradient(policy, items, 2)
    alone = [parameter.grad for parameter in policy.policy_parameters()]
    policy.zero_grad(set_to_none=True)
    found = accumulate_gradient(policy, items, 2, marking=LabelLoss(0.5, 3.0))
    assert found == {"loss": pytest.approx(z, rel=1e-5), "label_loss": pytest.approx(oracle.item(), rel=1e-5)}
    for parameter, more, base in zip(policy.policy_parameters(), wanted, alone, strict=True):
        assert parameter.grad is not None and base is not None
        expected = base if more is None else base + more
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-6)


def test_a_batch_without_labels_has_no_such_loss(policy: Policy) -> None:
    items = encoded(policy, record("the dog </response>"))
    assert accumulate_gradient(policy, items, 1, marking=LabelLoss(1.0))["label_loss"] == 0.0


def test_the_directions_are_orthonormal_and_always_the_same() -> None:
    torch.testing.assert_close(directions(64) @ directions(64).T, torch.eye(3))
    before: Any = directions(64).clone()
    directions.cache_clear()
    torch.manual_seed(7)
    assert torch.equal(directions(64), before)
