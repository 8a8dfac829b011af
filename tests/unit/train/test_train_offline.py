"""Learning from logged answers: whose tokens count, with which sign, and what the policy is kept
close to."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from text2grad.align import CreditSettings, TokenTable, credit
from text2grad.durable.run import RunOptions
from text2grad.durable.state import seed_everything
from text2grad.errors import Diverged, UserError
from text2grad.feedback import Critique, Message, Span
from text2grad.policy.files.save import write_policy
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import LoraSettings, PolicySettings
from text2grad.train import offline
from text2grad.train.offline import (
    KL_COEFFICIENT,
    POOR_LIMIT,
    LoggedAnswer,
    accumulate_gradient,
    add_start_logps,
    encode_logged,
    token_weights,
    train_offline,
)
from text2grad.train.passes import PassSize
from text2grad.train.settings import OfflineSettings
from tiny_runs import tiny_model

SPANS = CreditSettings(poor_weight=2.0)
ASK = (Message(role="user", content="Write it."),)
RIGHT = "def f(x):\n    return x + 1\n"


def span(response: str, text: str, label: int) -> Span:
    start = response.index(text)
    return Span(start=start, end=start + len(text), label=label, text=text)


def logged(response: str = RIGHT, score: float | None = -1.0, poor: str = "+ 1", **more: Any) -> LoggedAnswer:
    spans = (span(response, "return x", 1), span(response, poor, -1))
    return LoggedAnswer("1", ASK, response, Critique(text="", spans=spans, score=score), **more)


@pytest.fixture
def policy(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Policy:
    return Policy(copy.deepcopy(tiny_llama), tokenizer)


def weighed(policy: Policy, *answers: LoggedAnswer) -> list[Any]:
    encoded = encode_logged(policy, answers, SPANS)
    policy.freeze_reference()
    return add_start_logps(policy.eval(), encoded, 2)


def test_the_weights_are_the_credit_of_ppo_without_the_verdict_at_the_end(policy: Policy) -> None:
    (item,) = encode_logged(policy, [logged()], SPANS)
    table = TokenTable(policy.tokenizer)
    paid = credit(logged().critique, table.align(item.target), SPANS).delta
    assert item.weights[:-1] == paid[:-1].tolist() and paid[-1] == -1.0 and item.weights[-1] == 0.0
    assert set(item.weights) == {0.0, 1.0, -2.0}


def test_a_good_verdict_weighs_every_token_and_a_poor_one_none(policy: Policy) -> None:
    aligned = TokenTable(policy.tokenizer).align_text(RIGHT)

    def weights(score: float | None, **changes: Any) -> list[float]:
        said = Critique(text="", spans=logged().critique.spans, score=score)
        return token_weights(said, aligned, SPANS.model_copy(update=changes))

    assert weights(-1.0) == weights(None)
    assert [good - poor for good, poor in zip(weights(1.0), weights(-1.0), strict=True)] == [1.0] * len(aligned)
    assert weights(1.0, scheme="last_token") == [1.0] * len(aligned)
    assert not any(weights(-1.0, scheme="last_token"))


def test_sampled_ids_are_kept_and_those_of_another_tokenizer_are_not(policy: Policy) -> None:
    letters = tuple(policy.tokenizer.convert_tokens_to_ids(list(RIGHT.replace(" ", "Ġ").replace("\n", "Ċ"))))
    kept, other, text = encode_logged(policy, [logged(ids=letters), logged(ids=(5, 6, 7)), logged()], SPANS)
    assert tuple(kept.target) == letters and other == text
    assert len(text.target) < len(letters) and text.target[-1] == policy.tokenizer.eos_token_id
    assert sum(weight < 0 for weight in kept.weights) == 3  # "+", "1" and the blank between them


def by_hand(policy: Policy, start: Any, items: Sequence[Any]) -> torch.Tensor:
    """The oracle: one answer at a time, token by token, no padding, and the KL written out."""
    total, count = torch.zeros(()), 0
    for item in items:
        ids = torch.tensor([[*item.prompt, *item.target]])
        now, before = (model(ids).logits[0].log_softmax(-1) for model in (policy.model, start))
        for place, (token, weight) in enumerate(zip(item.target, item.weights, strict=True)):
            log_p, log_q = now[len(item.prompt) + place - 1], before[len(item.prompt) + place - 1].detach()
            factor = min(POOR_LIMIT, 1 / math.exp(log_q[token].item()) - 1)
            term = -weight * log_p[token] if weight > 0 else weight * factor * (1 - log_p[token].exp()).log()
            total = total + term + KL_COEFFICIENT * (log_p.exp() * (log_p - log_q)).sum()
            count += 1
    return total / count


def test_the_loss_is_the_mean_over_tokens_however_the_batch_is_cut(policy: Policy) -> None:
    short = "x = 1\nreturn x + 1\n"
    items = weighed(policy, logged(score=1.0), logged(short), logged(RIGHT * 2))
    start = copy.deepcopy(policy.model)
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.mul_(1.05)
    oracle = by_hand(policy, start, items)
    oracle.backward()  # type: ignore[no-untyped-call]
    wanted = [parameter.grad for parameter in policy.policy_parameters()]
    for rows in (1, 2, 3):
        policy.zero_grad(set_to_none=True)
        found = accumulate_gradient(policy, items, PassSize(rows))
        assert found["loss"] == pytest.approx(oracle.item(), rel=1e-4) and found["kl"] > 0
        for parameter, gradient in zip(policy.policy_parameters(), wanted, strict=True):
            assert parameter.grad is not None and gradient is not None
            torch.testing.assert_close(parameter.grad, gradient, rtol=2e-3, atol=2e-6)


def chances(policy: Policy, item: Any) -> list[float]:
    batch = policy.pack([item.prompt], [item.target])
    with policy.evaluating():
        return [math.exp(each) for each in policy(batch, valued=False).logp[0].tolist()]


def trained(policy: Policy, folder: Path, answers: Sequence[LoggedAnswer], **changes: Any) -> dict[str, float]:
    settings = OfflineSettings(epochs=20, batch_size=2, lr=3e-3).model_copy(update=changes)
    return train_offline(policy, answers, settings, CreditSettings(), RunOptions(folder, "offline"))


def test_good_words_become_likelier_and_poor_ones_less_likely(policy: Policy, tmp_path: Path) -> None:
    answers = [logged(), logged(score=None)]
    (item,) = encode_logged(policy, answers[:1], CreditSettings())
    before = chances(policy, item)
    metrics = trained(policy, tmp_path / "run", answers)
    for was, now, weight in zip(before, chances(policy, item), item.weights, strict=True):
        assert (now > 5 * was) if weight > 0 else (now < was) if weight < 0 else True
    assert metrics["kl"] > 0 and (tmp_path / "run" / "policy" / "model.safetensors").is_file()


def test_the_kl_holds_it_back_and_too_far_is_diverged(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = copy.deepcopy(policy)
    loose = trained(free, tmp_path / "free", [logged()] * 2)["kl"]
    with monkeypatch.context() as patch:
        patch.setattr(offline, "KL_COEFFICIENT", 20.0)
        assert trained(copy.deepcopy(policy), tmp_path / "held", [logged()] * 2)["kl"] < loose / 2
    monkeypatch.setattr(offline, "MAX_KL", 0.01)
    with pytest.raises(Diverged, match=r"more than 0\.01.*offline\.lr"):
        trained(policy, tmp_path / "far", [logged()] * 2)


def test_with_an_adapter_the_reference_is_a_frozen_copy_of_it(tmp_path: Path) -> None:
    lora = LoraSettings(r=2, dropout=0.3)
    seed_everything(1)
    sft = load_policy(PolicySettings(model=str(tiny_model(tmp_path / "base")), lora=lora))
    with torch.no_grad():
        for parameter in sft.policy_parameters():
            parameter.add_(0.1)
    write_policy(sft, tmp_path / "sft")
    policy = load_policy(PolicySettings(model=str(tmp_path / "sft"), lora=lora))
    items = weighed(policy, logged())
    assert accumulate_gradient(policy, items, PassSize(1))["kl"] == pytest.approx(0.0, abs=1e-6)
    policy.zero_grad(set_to_none=True)
    metrics = trained(policy, tmp_path / "run", [logged()] * 2, lr=3e-2)
    assert metrics["kl"] > 0
    assert policy.reference is not None and policy.reference.adapter == "reference"
    with policy.reference.activate():
        assert chances_of(policy.reference.model, items[0]) == pytest.approx(items[0].start_logps, abs=1e-4)


def chances_of(model: Any, item: Any) -> list[float]:
    """Log-probabilities of an answer's tokens."""
    ids = torch.tensor([[*item.prompt, *item.target]])
    logp = model(ids).logits[0, len(item.prompt) - 1 : -1].log_softmax(-1)
    return [float(x) for x in logp.gather(1, torch.tensor(item.target)[:, None])[:, 0]]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (
            lambda: [LoggedAnswer("7", ASK, RIGHT, Critique(text="Fine.", score=-1.0))],
            "no token of 1 answers has a weight",
        ),
        (lambda: [logged(RIGHT * 200)], "prompts are too long: '1'"),
    ],
)
def test_what_cannot_be_learned_is_one_line(
    answers: Callable[[], list[LoggedAnswer]], words: str, policy: Policy, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        trained(policy, tmp_path / "run", answers())
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_changes_the_text_can_weigh_nothing(
    policy: Policy, speaking_word_piece: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(UserError, match=r"1: this tokenizer changes the text"):
        encode_logged(Policy(policy.model, speaking_word_piece), [logged()], SPANS)
