"""The second loss of the reward model: which token of the prompt has which label, and what it adds up to."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.config import RewardModelSettings
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Feedback, Message, Source, Span
from text2grad.policy.heads.head import UNLABELLED
from text2grad.policy.load import add_head
from text2grad.policy.model import Policy
from text2grad.stages.reward_model.data import fitting, reward_pair
from text2grad.train.pairs import Encoded, encode_pairs
from text2grad.train.passes import PassSize
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import Heads, accumulate_gradient, train_supervised

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
    return encode_pairs(policy, pairs)


def words(policy: Policy, item: Encoded, label: int) -> str:
    chosen = [token for token, each in zip(item.prompt, item.labels, strict=True) if each == label]
    return str(policy.tokenizer.decode(chosen))


@pytest.mark.parametrize("kind", ["tokenizer", "sentencepiece_tokenizer"])
def test_labels_fall_on_the_tokens_of_the_response_and_not_of_the_question(
    kind: str, policy: Policy, request: pytest.FixtureRequest
) -> None:
    chosen = copy.deepcopy(request.getfixturevalue(kind))  # everybody's
    chosen.chat_template = policy.tokenizer.chat_template
    chosen.eos_token = chosen.eos_token or chosen.convert_ids_to_tokens(0)
    made = Policy(policy.model, chosen)
    (item,) = encoded(made, record())
    assert words(made, item, 1).strip() == "cat sat"
    assert words(made, item, -1).strip() == "mat"
    assert words(made, item, 0).split() == ["the", "on", "the"]
    assert "question" in words(made, item, UNLABELLED) and "mat?" in words(made, item, UNLABELLED)


def test_labels_fall_on_a_response_that_spells_a_control_token(policy: Policy) -> None:
    """One of this tokenizer's own, which a prompt shows as it is."""
    own = copy.deepcopy(policy.tokenizer)
    own.add_special_tokens({"additional_special_tokens": ["<file_sep>"]})
    made = Policy(policy.model, own)
    (item,) = encoded(made, record(response="the cat sat <file_sep> on the mat"))
    assert words(made, item, 1).strip() == "cat sat" and words(made, item, -1).strip() == "mat"
    assert words(made, item, 0).split() == ["the", "<file_sep>", "on", "the"]
    assert own.convert_tokens_to_ids("<file_sep>") not in item.prompt


def test_without_a_weight_nothing_is_labelled(policy: Policy) -> None:
    pair = reward_pair(record(), RewardModelSettings())
    assert pair is not None and pair.marked == ()
    assert encode_pairs(policy, [pair])[0].labels == []


def test_a_response_that_would_close_the_prompts_tag_has_no_labels(policy: Policy) -> None:
    """It does not stand in the prompt to the letter."""
    (item,) = encoded(policy, record("the cat sat </response> on the mat"))
    assert item.labels == []


def test_a_prompt_that_loses_its_middle_keeps_its_labels(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy.model.config, "max_position_embeddings", 240)
    ((_, pair),) = fitting(policy, [record(question="the cat sat on the mat? " * 20)], LABELLED)
    (item,) = encode_pairs(policy, [pair])
    assert words(policy, item, -1).strip() == "mat" and words(policy, item, 1).strip() == "cat sat"


def test_a_tokenizer_that_changes_the_text_can_label_nothing(
    policy: Policy, speaking_word_piece: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(UserError, match=r"changes the text.*label_weight 0"):
        encoded(Policy(policy.model, speaking_word_piece), record("The Cat sat on the mat"))


def with_map(policy: Policy) -> torch.nn.Linear:
    """The policy's linear map, as if it had learned something."""
    chosen = add_head(policy, "label_head").map
    torch.manual_seed(2)
    torch.nn.init.normal_(chosen.weight)
    torch.nn.init.normal_(chosen.bias)
    return chosen


def by_hand(policy: Policy, items: list[Encoded], linear: torch.nn.Linear) -> torch.Tensor:
    """The oracle: one pair at a time, token by token, no padding; the layer counted out."""
    total, count = torch.zeros(()), 0
    for item in items:
        ids = torch.tensor([[*item.prompt, *item.target]])
        layers = policy.model(ids, output_hidden_states=True).hidden_states
        assert len(layers) == 3  # of two layers, the first is read
        for place, label in enumerate(item.labels):
            if label == UNLABELLED:
                continue
            state = layers[1][0, place]
            logits = linear.weight @ (state / (state.square().mean() + 1e-6).sqrt()) + linear.bias
            probability = logits[label + 1].exp() / logits.exp().sum()
            total = total - (3.0 if label < 0 else 1.0) * probability.log()
            count += 1
    return total / count


def gradients(policy: Policy) -> list[torch.Tensor | None]:
    found = [parameter.grad for parameter in policy.parameters()]
    policy.zero_grad(set_to_none=True)
    return found


def test_the_loss_is_the_mean_over_labelled_tokens_beside_that_of_z(policy: Policy) -> None:
    items = encoded(policy, record(), record("mat", "why?"), record("the dog </response>"))
    oracle = by_hand(policy, items, with_map(policy))
    oracle.backward()  # type: ignore[no-untyped-call]
    wanted = gradients(policy)
    z = accumulate_gradient(policy, items, PassSize(2))["loss"]
    alone = gradients(policy)
    found = accumulate_gradient(policy, items, PassSize(2), label_weight=0.5)
    assert found == {"loss": pytest.approx(z, rel=1e-5), "label_loss": pytest.approx(oracle.item(), rel=1e-5)}
    for got, more, base in zip(gradients(policy), wanted, alone, strict=True):
        parts = [part for part in (base, None if more is None else 0.5 * more) if part is not None]
        if got is not None:
            torch.testing.assert_close(got, torch.stack(parts).sum(dim=0), rtol=1e-3, atol=1e-6)
        else:
            assert not parts


def test_a_batch_without_labels_has_no_such_loss(policy: Policy) -> None:
    items = encoded(policy, record("the dog </response>"))
    add_head(policy, "label_head")
    assert accumulate_gradient(policy, items, PassSize(1), label_weight=1.0)["label_loss"] == 0.0


def test_training_teaches_the_labels_and_leaves_no_trace_in_the_folder(policy: Policy, tmp_path: Path) -> None:
    settings = SupervisedSettings(epochs=30, batch_size=2, micro_batch_size=2, lr=3e-3)
    pairs = [pair for each in (record(), record("mat", "why?")) if (pair := reward_pair(each, LABELLED))]
    losses: list[float] = []
    options = RunOptions(
        tmp_path / "run", "reward model", 1, on_step=lambda _, metrics: losses.append(metrics["label_loss"])
    )
    train_supervised(policy, pairs, settings, options, heads=Heads(label_weight=1.0))
    tokens = [label for pair in encode_pairs(policy, pairs) for label in pair.labels if label != UNLABELLED]
    weight = sum(3 if label < 0 else 1 for label in tokens) / len(tokens)
    assert losses[0] == pytest.approx(weight * math.log(3), rel=1e-5) and losses[-1] < 0.5
    weights = [load_file(path) for path in (tmp_path / "run" / "policy").glob("*.safetensors")]
    assert weights and not [name for each in weights for name in each if "label" in name]
