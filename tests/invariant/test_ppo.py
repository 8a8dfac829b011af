"""What must hold whatever the settings: accumulation, padding, the first ratio, the limits of the
method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from text2grad.align import Aligned, Credit, CreditSettings, TokenTable, credit
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Message, QuoteCounts
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import encode_prompt
from text2grad.policy.generate import Sample, generate
from text2grad.policy.load import load_policy
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings, LoraSettings, PolicySettings
from text2grad.train.optimizers import make_optimizers
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.report import compute_metrics, token_strips
from text2grad.train.rollout import Responses, Rollout, build_rollout, judge, measure_policy, take_rows
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import make_optimizer
from text2grad.train.update import accumulate_gradient, loss_terms, update
from tiny_runs import TEXTS, Halves, tiny_model

RAGGED = (12, 3, 7, 2, 10, 4, 5, 12)
GENERATION = GenerationSettings(max_new_tokens=12, temperature=0.7, batch_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def policy(folder: Path) -> Policy:
    torch.manual_seed(0)
    made = load_policy(PolicySettings(model=str(folder)))
    torch.nn.init.normal_(made.value_head.outer.weight, std=0.3)
    made.freeze_reference()
    return made


def examples() -> list[Example]:
    return [Example(id=str(n), prompt=(Message(role="user", content=text),)) for n, text in enumerate(TEXTS * 2)]


def collect(policy: Policy, settings: PPOSettings, scheme: CreditSettings) -> tuple[Responses, Rollout]:
    torch.manual_seed(1)
    asked = examples()
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in asked]
    samples = generate(policy, prompts, GENERATION)
    answered = judge(asked, samples, TokenTable(policy.tokenizer), Halves(), scheme)
    batch = policy.pack(prompts, [sample.ids for sample in samples])
    return answered, scored(policy, batch, answered, settings)


def scored(
    policy: Policy, batch: TokenBatch, answered: Responses, settings: PPOSettings, beta: float = 0.1
) -> Rollout:
    measured = measure_policy(policy, batch, settings, GENERATION.temperature)
    return build_rollout(batch, answered, measured, settings, beta)


def gradients(policy: Policy) -> Tensor:
    found = [p.grad.flatten() for p in policy.policy_parameters() if p.grad is not None]
    policy.zero_grad(set_to_none=True)
    return torch.cat(found)


def collect_ragged(policy: Policy, settings: PPOSettings) -> Rollout:
    """Responses of 2 to 12 tokens after prompts of several lengths, the long not together."""
    torch.manual_seed(1)
    asked = examples()
    prompts = [encode_prompt(policy.tokenizer, example.prompt) for example in asked]
    full = generate(policy, prompts, GENERATION)
    samples = [Sample(each.ids[:length], truncated=True) for each, length in zip(full, RAGGED, strict=True)]
    answered = judge(asked, samples, TokenTable(policy.tokenizer), Halves(), CreditSettings())
    batch = policy.pack(prompts, [sample.ids for sample in samples])
    return scored(policy, batch, answered, settings)


@pytest.mark.parametrize("ragged", [False, True])
def test_accumulation_does_not_change_the_gradient(policy: Policy, ragged: bool) -> None:
    """Nor does it matter which rows of similar length share a pass."""
    found = []
    for size in (8, 3, 1):
        settings = PPOSettings(advantage="gae", rollouts=8, micro_batch_size=size)
        rollout = collect_ragged(policy, settings) if ragged else collect(policy, settings, CreditSettings())[1]
        accumulate_gradient(policy, rollout, torch.arange(8), settings, GENERATION.temperature, warming=False)
        found.append(gradients(policy))
    assert found[0].abs().max() > 1e-4
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-6)


def test_the_size_of_a_scoring_pass_changes_nothing(policy: Policy) -> None:
    """Rows come back in their own order, whatever order and width they were read in."""
    found = [
        collect_ragged(policy, PPOSettings(advantage="gae", rollouts=8, micro_batch_size=size))
        for size in (8, 3, 1)
    ]
    for other in found[1:]:
        for name in ("old_logp", "kl", "entropy", "values", "advantages", "returns"):
            torch.testing.assert_close(getattr(other, name), getattr(found[0], name), rtol=1e-4, atol=1e-5)


def test_the_first_ratio_is_one(policy: Policy) -> None:
    settings = PPOSettings(advantage="gae", rollouts=8, micro_batch_size=3)
    _, rollout = collect(policy, settings, CreditSettings())
    for rows in (torch.tensor([0, 5]), torch.arange(8)):
        part = take_rows(rollout, rows)
        terms = loss_terms(policy, part, settings, GENERATION.temperature)
        assert float(terms["ratio_change"][part.loss_mask].abs().max()) < 1e-5


def test_the_first_ratio_is_one_with_adapters_and_dropout(folder: Path) -> None:
    lora = LoraSettings(r=4, dropout=0.5)
    policy = load_policy(PolicySettings(model=str(folder), lora=lora))
    policy.freeze_reference()
    settings = PPOSettings(advantage="gae", rollouts=8)
    _, rollout = collect(policy, settings, CreditSettings())
    terms = loss_terms(policy, rollout, settings, GENERATION.temperature)
    assert float(terms["ratio_change"][rollout.loss_mask].abs().max()) < 1e-5
    assert float(rollout.kl.abs().max()) < 1e-5  # fresh adapters change nothing yet


def test_padding_changes_nothing(policy: Policy) -> None:
    asked = [encode_prompt(policy.tokenizer, example.prompt) for example in examples()]
    replies = [[5, 9, 17], [40, 41], [7], [80, 81, 82, 83, 84], [6, 6], [9], [10, 11], [12]]
    together = policy.pack(asked, replies)
    with policy.evaluating():
        output = policy(together)
        for row, (prompt, reply) in enumerate(zip(asked, replies, strict=True)):
            alone = policy.pack([prompt], [reply])
            single = policy(alone)
            torch.testing.assert_close(output.logp[row, : len(reply)], single.logp[0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(output.values[row, : len(reply)], single.values[0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(output.last_value[row], single.last_value[0], rtol=1e-5, atol=1e-5)


def test_one_epoch_without_values_is_definition_1(folder: Path) -> None:
    """Paper, Definition 1: sum_t delta_t grad log pi(y_t | x, y_<t); gamma = lambda = 0, V = 0, no
    KL."""
    torch.manual_seed(0)
    policy = load_policy(PolicySettings(model=str(folder)))  # its value head starts at zero: V = 0
    policy.freeze_reference()
    settings = PPOSettings(
        rollouts=8, epochs=1, gamma=0, lam=0, kl_coefficient=0,
        normalisation="none", micro_batch_size=3,
    )  # fmt: skip
    scheme = CreditSettings(weighting="token", outcome_weight=0.5)
    answered, rollout = collect(policy, settings, scheme)
    rollout = scored(policy, rollout.batch, answered, settings, 0.0)
    accumulate_gradient(policy, rollout, torch.arange(8), settings, GENERATION.temperature, warming=False)
    ours = gradients(policy)
    tokens = sum(len(sample.ids) for sample in answered.samples)
    for row, sample in enumerate(answered.samples):  # token by token, unpadded: the slow obvious version
        prompt = encode_prompt(policy.tokenizer, answered.examples[row].prompt)
        for t, token in enumerate(sample.ids):
            ids = torch.tensor([[*prompt, *sample.ids[:t]]])
            logits = policy.model(input_ids=ids).logits[0, -1] / GENERATION.temperature
            logp = logits.log_softmax(-1)[token]
            (-float(answered.credits[row].delta[t]) / tokens * logp).backward()  # type: ignore[no-untyped-call]
    expected = gradients(policy)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


def test_last_token_is_scalar_ppo(policy: Policy) -> None:
    """The score of the whole response at its last token, per-token KL before it, GAE by its
    definition."""
    settings = PPOSettings(advantage="gae", rollouts=8, gamma=0.98, lam=0.9, normalisation="none")
    answered, rollout = collect(policy, settings, CreditSettings(scheme="last_token"))
    for row, (sample, judgement) in enumerate(zip(answered.samples, answered.judgements, strict=True)):
        length = len(sample.ids)
        assert isinstance(judgement, Critique) and judgement.score is not None
        rewards = -0.1 * rollout.kl[row, :length].double().numpy()
        rewards[-1] += judgement.score
        values = rollout.values[row, :length].double().numpy()
        after = 0.0 if not sample.truncated else last_value(policy, answered, row)
        following = np.append(values[1:], after)
        td_errors = rewards + 0.98 * following - values
        expected = [sum((0.98 * 0.9) ** k * td_errors[t + k] for k in range(length - t)) for t in range(length)]
        np.testing.assert_allclose(rollout.advantages[row, :length], expected, rtol=1e-4, atol=1e-5)


def last_value(policy: Policy, answered: Responses, row: int) -> float:
    prompt = encode_prompt(policy.tokenizer, answered.examples[row].prompt)
    with policy.evaluating():
        return float(policy(policy.pack([prompt], [answered.samples[row].ids])).last_value)


def test_a_strip_names_the_quotes_that_were_lost(policy: Policy) -> None:
    answered, rollout = collect(policy, PPOSettings(rollouts=8), CreditSettings())
    first = answered.judgements[0]
    assert isinstance(first, Critique)
    lost = first.model_copy(update={"lost": ("not there",), "quotes": QuoteCounts(unmatched=1, ambiguous=2)})
    answered.judgements[0] = lost
    (strip,) = token_strips(0, answered, rollout, 1)
    assert (strip["lost"], strip["unmatched"], strip["ambiguous"]) == (["not there"], 1, 2)


def test_a_strip_has_the_ids_that_were_sampled_and_the_entropy_at_each(policy: Policy) -> None:
    answered, rollout = collect(policy, PPOSettings(rollouts=8), CreditSettings())
    (strip,) = token_strips(0, answered, rollout, 1)
    assert strip["ids"] == answered.samples[0].ids
    np.testing.assert_allclose(strip["entropy"], rollout.entropy[0, : len(strip["ids"])], atol=1e-5)


def test_a_strip_has_the_ratio_of_the_last_epoch_and_what_was_learned(policy: Policy) -> None:
    settings = PPOSettings(rollouts=8, lr=1e-2, epochs=1, mini_batches=1, micro_batch_size=3)
    answered, rollout = collect(policy, settings, CreditSettings())
    rollout.loss_mask[1] = False
    assert "ratio" not in next(token_strips(0, answered, rollout, 1)), "no update yet"
    asked = make_optimizers(policy, settings), settings, GENERATION.temperature, False
    update(policy, rollout, *asked)
    np.testing.assert_allclose(
        [x for each in token_strips(0, answered, rollout, 8) for x in each["ratio"]], 1, atol=1e-4
    )
    with policy.evaluating():
        moved = policy(rollout.batch, GENERATION.temperature).logp
    update(policy, rollout, *asked)  # the one epoch of this update begins where the other has ended
    expected = (moved - rollout.old_logp).exp()
    for row, each in enumerate(token_strips(0, answered, rollout, 8)):
        np.testing.assert_allclose(each["ratio"], expected[row][rollout.batch.mask[row]], rtol=1e-3)
        assert each["learned"] == [int(row != 1)] * len(each["ids"])
        change = (rollout.old_logp - rollout.ref_logp)[row][rollout.batch.mask[row]]
        np.testing.assert_allclose(each["logp_change"], change, atol=1e-5)
    assert float((expected - 1).abs().max()) > 1e-2
    rollout.loss_mask[:] = False
    update(policy, rollout, *asked)
    assert not any("ratio" in each for each in token_strips(0, answered, rollout, 8)), "no optimizer step was taken"


def test_a_failed_critique_moves_nothing(policy: Policy) -> None:
    from text2grad.feedback import Failure

    settings = PPOSettings(advantage="gae", rollouts=8)
    answered, rollout = collect(policy, settings, CreditSettings())
    failed = [Failure(kind="invalid", message="unreadable") for _ in answered.judgements]
    half = [failed[n] if n < 4 else judgement for n, judgement in enumerate(answered.judgements)]
    credits = [
        Credit.zero(a) if n < 4 else c
        for n, (a, c) in enumerate(zip(answered.aligned, answered.credits, strict=True))
    ]
    mixed = Responses(answered.examples, answered.samples, answered.aligned, list(half), credits, answered.labels)
    rollout = scored(policy, rollout.batch, mixed, settings)
    assert not rollout.loss_mask[:4].any() and rollout.loss_mask[4:].any()
    accumulate_gradient(policy, rollout, torch.arange(8), settings, GENERATION.temperature, warming=False)
    with_failed = gradients(policy)
    accumulate_gradient(policy, rollout, torch.arange(4, 8), settings, GENERATION.temperature, warming=False)
    torch.testing.assert_close(with_failed, gradients(policy), rtol=1e-4, atol=1e-7)
    assert compute_metrics(mixed, rollout, 0.1)["critic_failed"] == 0.5
    none = Responses(mixed.examples, mixed.samples, mixed.aligned, list(failed), mixed.credits, mixed.labels)
    rollout_none = scored(policy, rollout.batch, none, settings)
    before = [p.clone() for p in policy.parameters()]
    update(policy, rollout_none, make_optimizers(policy, settings), settings, GENERATION.temperature, False)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_warm_up_moves_the_value_function_alone(policy: Policy) -> None:
    settings = PPOSettings(advantage="gae", rollouts=8, lr=1e-2)
    _, rollout = collect(policy, settings, CreditSettings())
    policy_before = [p.clone() for p in policy.policy_parameters()]
    value_before = [p.clone() for p in policy.value_parameters()]
    update(policy, rollout, make_optimizers(policy, settings), settings, GENERATION.temperature, warming=True)
    assert all(torch.equal(a, b) for a, b in zip(policy_before, policy.policy_parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(value_before, policy.value_parameters(), strict=True))


def test_values_are_not_clipped_while_the_value_function_warms_up(policy: Policy) -> None:
    """A new head is far from its returns; held to 0.2 a batch it would need hundreds of batches."""
    torch.nn.init.zeros_(policy.value_head.outer.weight)
    settings = PPOSettings(advantage="gae", gamma=1.0, lam=1.0, rollouts=8, value_lr=0.05, epochs=100)
    _, rollout = collect(policy, settings, CreditSettings(scheme="spread_score"))
    rollout = replace(rollout, returns=torch.where(rollout.loss_mask, 15.0, 0.0))
    optimizers = make_optimizers(policy, settings)
    update(policy, rollout, optimizers, settings, GENERATION.temperature, warming=True)
    with policy.evaluating():
        values = policy(rollout.batch, GENERATION.temperature).values[rollout.loss_mask]
    assert float((values - 15).abs().mean()) < 3


def test_a_policy_in_float16_is_not_trained(folder: Path) -> None:
    policy = load_policy(PolicySettings(model=str(folder), dtype="float16"))
    with pytest.raises(UserError, match=r"without loss scaling.*bfloat16"):
        make_optimizers(policy, PPOSettings())
    with pytest.raises(UserError, match="without loss scaling"):
        make_optimizer(policy, SupervisedSettings())


@pytest.mark.parametrize("kind", ["shared", "separate"])
def test_warm_up_has_the_value_functions_own_gradient(folder: Path, kind: Literal["shared", "separate"]) -> None:
    policy = load_policy(PolicySettings(model=str(folder), value_head=kind))
    torch.nn.init.normal_(policy.value_head.outer.weight, std=0.3)
    policy.freeze_reference()
    settings = PPOSettings(advantage="gae", rollouts=8)
    _, rollout = collect(policy, settings, CreditSettings())
    losses = [loss_terms(policy, rollout, settings, GENERATION.temperature, warming) for warming in (False, True)]
    expected, found = (
        torch.autograd.grad(terms["value_loss"][rollout.loss_mask].sum(), policy.value_parameters())
        for terms in losses
    )
    assert max(gradient.abs().max() for gradient in expected) > 1e-3
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not losses[1]["policy_loss"].requires_grad  # nothing was kept for the policy's own


def grpo(answered: Responses, rollout: Rollout, size: int, decay: float, beta: float) -> Tensor:
    """Verdicts compared within the group, what words earn added, then the penalty: a token at a
    time."""
    verdicts = torch.tensor([said.score for said in answered.judgements if isinstance(said, Critique)])
    result = torch.zeros_like(rollout.delta)
    for row, mask in enumerate(rollout.loss_mask):
        first, length = row // size * size, int(mask.sum())
        group = verdicts[first : first + size]
        gained = (verdicts[row] - group.mean()) / (group.std(correction=0) + 1e-4)
        words = rollout.delta[row, mask]
        words[-1] -= verdicts[row]
        for t in range(length):
            earned = sum(decay ** (k - t) * words[k] for k in range(t, length))
            result[row, t] = gained + earned - beta * rollout.kl[row, t]
    return result


@pytest.fixture
def far(policy: Policy) -> Policy:
    """A policy that has moved: the KL of its tokens is not 0."""
    with torch.no_grad():
        for parameter in policy.policy_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    return policy


@pytest.mark.parametrize("scheme", ["spans", "last_token"])
def test_a_group_compares_verdicts_and_the_kl_comes_after(
    far: Policy, scheme: Literal["spans", "last_token"]
) -> None:
    """With the score alone no token earned it more than another: words earn nothing."""
    settings = PPOSettings(advantage="group", samples_per_prompt=2, rollouts=8, normalisation="none")
    answered, rollout = collect(far, settings, CreditSettings(scheme=scheme))
    assert rollout.kl.abs().max() > 0.01
    expected = grpo(answered, rollout, 2, settings.gamma * settings.lam, beta=0.1)
    torch.testing.assert_close(rollout.advantages, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalisation", ["none", "scale", "whiten"])
def test_with_equal_verdicts_a_group_is_held_by_the_kl_and_not_by_its_noise(
    far: Policy, normalisation: Literal["none", "scale", "whiten"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Halves, "score", lambda self, text: 0.7)
    settings = PPOSettings(advantage="group", samples_per_prompt=4, rollouts=8, normalisation=normalisation)
    _, rollout = collect(far, settings, CreditSettings(scheme="last_token"))
    torch.testing.assert_close(rollout.advantages, -0.1 * rollout.kl * rollout.loss_mask, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["returns", "group"])
def test_without_a_value_function_none_is_computed(
    policy: Policy, kind: Literal["returns", "group"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while a batch is scored nor in an update."""

    def asked(*_: object) -> Tensor:
        raise AssertionError("the value head was asked")

    monkeypatch.setattr(policy.value_head, "forward", asked)
    settings = PPOSettings(advantage=kind, samples_per_prompt=2, rollouts=8)
    _, rollout = collect(policy, settings, CreditSettings())
    update(policy, rollout, make_optimizers(policy, settings), settings, GENERATION.temperature, False)
    assert not rollout.values.any() and rollout.advantages.any()


def test_returns_need_no_values(policy: Policy) -> None:
    """The oracle: a sum written out. What the value head says changes nothing, and it gets no
    gradient."""
    settings = PPOSettings(advantage="returns", gamma=0.8, lam=0.5, rollouts=8, normalisation="none")
    torch.nn.init.normal_(policy.value_head.outer.weight, std=3.0)
    _, rollout = collect(policy, settings, CreditSettings())
    assert rollout.rewards.any() and settings.warmup_steps == 0
    for rewards, mask, found in zip(rollout.rewards, rollout.batch.mask, rollout.advantages, strict=True):
        length = int(mask.sum())
        sums = [sum(0.4 ** (k - t) * float(rewards[k]) for k in range(t, length)) for t in range(length)]
        torch.testing.assert_close(found[:length], torch.tensor(sums), rtol=1e-5, atol=1e-6)
        assert not found[length:].any()
    everything = torch.arange(len(rollout.loss_mask))
    accumulate_gradient(policy, rollout, everything, settings, GENERATION.temperature, False)
    assert all(p.grad is None or not p.grad.any() for p in policy.value_parameters())


def test_a_falling_rate_reaches_its_end_whatever_the_mini_batches(policy: Policy) -> None:
    """8 rows in 5 mini-batches are 5 optimizer steps, on which the schedule counts."""
    settings = PPOSettings(rollouts=8, steps=1, epochs=2, mini_batches=5, schedule="linear", lr=1e-3)
    _, rollout = collect(policy, settings, CreditSettings())
    optimizers = make_optimizers(policy, settings)
    update(policy, rollout, optimizers, settings, GENERATION.temperature, False)
    assert optimizers.schedule.last_epoch == 10 and optimizers.schedule.get_last_lr()[0] == 0


def test_delta_lands_on_the_sampled_tokens(policy: Policy) -> None:
    answered, rollout = collect(policy, PPOSettings(advantage="gae", rollouts=8), CreditSettings(weighting="token"))
    for row, (sample, aligned) in enumerate(zip(answered.samples, answered.aligned, strict=True)):
        assert isinstance(sample, Sample) and isinstance(aligned, Aligned)
        judgement = answered.judgements[row]
        assert isinstance(judgement, Critique)
        alone = credit(judgement, aligned, CreditSettings(weighting="token")).delta
        np.testing.assert_array_equal(rollout.delta[row, : len(sample.ids)], alone)
        assert not rollout.delta[row, len(sample.ids) :].any()
