"""One batch of experience: responses in words, with what was said of them, and the same in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from text2grad.align import Aligned, Credit, CreditSettings, TokenTable, credit, scored
from text2grad.errors import CritiquesFailed
from text2grad.feedback import Critic, Example, Failure, Judgement, judgements_of
from text2grad.policy.generate import Sample, generate
from text2grad.policy.model import Policy, TokenBatch
from text2grad.policy.settings import GenerationSettings
from text2grad.rl import advantage as adv
from text2grad.train.guard import PassSize
from text2grad.train.ranks import ALONE, Ranks
from text2grad.train.settings import PPOSettings


@dataclass(frozen=True)
class Answered:
    """A batch of responses in words: what was asked, sampled, said about it, and the credit it got."""

    examples: list[Example]
    samples: list[Sample]
    aligned: list[Aligned]
    judgements: list[Judgement]
    credits: list[Credit]


@dataclass(frozen=True)
class Rollout:
    """The same batch in numbers. All (B, T), response-aligned; `learned` is `mask` without failed critiques."""

    batch: TokenBatch
    learned: Tensor
    delta: Tensor
    old_logp: Tensor
    kl: Tensor
    entropy: Tensor
    values: Tensor
    rewards: Tensor
    advantages: Tensor
    returns: Tensor


def draws_of(seed: int, step: int, rows: slice, tokens: int) -> Tensor:
    """(N, tokens) random numbers for some rows of a step's batch.

    They depend on nothing else, so a row's response is the same in whatever process it is sampled.
    """
    numbers = [np.random.default_rng([seed, step, row]).random(tokens) for row in range(rows.start, rows.stop)]
    return torch.from_numpy(np.stack(numbers))


def respond(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    generation: GenerationSettings,
    draws: Tensor | None = None,
) -> list[Sample]:
    """One sampled response per prompt; `draws` as in `generate`.

    Raises:
        FloatingPointError: the policy's probabilities are not numbers.
    """
    try:
        return generate(policy, prompts, generation, draws=draws)
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise FloatingPointError("the policy's probabilities are not numbers") from error


def merge(parts: Sequence[Answered]) -> Answered:
    """The shares of all processes as one batch."""
    columns = zip(*((p.examples, p.samples, p.aligned, p.judgements, p.credits) for p in parts), strict=True)
    return Answered(*([item for part in column for item in part] for column in columns))


def judge(
    examples: list[Example],
    samples: list[Sample],
    table: TokenTable,
    critic: Critic,
    settings: CreditSettings,
) -> Answered:
    """Show the critic the text of the sampled ids, and tie what it says to those ids."""
    aligned = [table.align(sample.ids) for sample in samples]
    said = judgements_of(critic, examples, [item.text for item in aligned])
    judgements = [scored(each, settings) for each in said]
    credits = [
        credit(judgement, item, settings) if not isinstance(judgement, Failure) else Credit.nothing(item)
        for judgement, item in zip(judgements, aligned, strict=True)
    ]
    return Answered(examples, samples, aligned, judgements, credits)


def refuse_failures(judgements: Sequence[Judgement], limit: float) -> None:
    """Stop when more than a share `limit` of the critiques failed: a policy cannot learn from silence."""
    failures = [judgement for judgement in judgements if isinstance(judgement, Failure)]
    if len(failures) > limit * len(judgements):
        raise CritiquesFailed(
            f"{len(failures)} of {len(judgements)} critiques failed, the first: {failures[0].kind}:"
            f" {failures[0].message}",
            "mend the critic, or raise ppo.max_failed",
        )


def refuse_diverged(rollout: Rollout, limit: float | None) -> None:
    """Stop before an update when the policy is more than `limit` nats a token away from its reference.

    Raises:
        FloatingPointError: says how far.
    """
    far = float(adv.masked_mean(rollout.kl, rollout.batch.mask))
    if limit is not None and far > limit:
        raise FloatingPointError(
            f"the policy has diverged, {far:.1f} nats a token from its reference (ppo.max_kl {limit:g})"
        )


def refuse_not_finite(rollout: Rollout) -> None:
    """Stop before an update on numbers that are none.

    Raises:
        FloatingPointError: names the columns.
    """
    columns = ("old_logp", "kl", "values", "rewards", "advantages", "returns")
    wrong = [name for name in columns if not getattr(rollout, name).isfinite().all()]
    if wrong:
        raise FloatingPointError(f"{', '.join(wrong)} not finite before the update, no parameter was changed")


def measure(
    policy: Policy,
    batch: TokenBatch,
    settings: PPOSettings,
    temperature: float,
    ranks: Ranks = ALONE,
    size: PassSize | None = None,
) -> tuple[Tensor, ...]:
    """What the policy and its reference say of this process's share of a batch, whatever a critic says.

    Log-probabilities, KL, entropy and values (rows, T), 0 outside the mask, and the last values (rows,). Nobody is
    met, unless weights are split: then all processes make as many passes.
    """
    share = ranks.share(len(batch.mask))
    columns = [torch.zeros(batch.mask.shape, device=batch.mask.device) for _ in range(4)]
    last_value = torch.zeros(len(batch.mask), device=batch.mask.device)

    def fill(rows_each: int) -> None:
        passes = batch.passes(torch.arange(share.start, share.stop, device=batch.mask.device), rows_each)
        surplus = passes[-1:] * (ranks.passes(len(batch.mask), rows_each) - len(passes))
        for rows in (*passes, *surplus):
            part = batch.rows(rows).trimmed()
            output = policy(part, temperature, entropy=True, kl=settings.kl)
            values = output.values.masked_fill(~part.mask, 0.0)
            for column, found in zip(columns, (output.logp, output.kl, output.entropy, values), strict=True):
                column[rows, : part.width] = found
            last_value[rows] = output.last_value

    with policy.evaluating():
        (size or PassSize(settings.micro_batch_size)).fitting(fill, undo=lambda: None)
    return *(column[share] for column in columns), last_value[share]


def score(
    policy: Policy,
    batch: TokenBatch,
    answered: Answered,
    settings: PPOSettings,
    temperature: float,
    coefficient: float,
    measured: Sequence[Tensor] | None = None,
) -> Rollout:
    """Log-probabilities, KL, values, rewards and advantages of a batch under the policy that sampled it.

    `measured` is what `measure` gave of all rows, where that was done before.
    """
    with policy.evaluating():
        if measured is None:
            measured = measure(policy, batch, settings, temperature)
        old_logp, kl, entropy, values, last_value = measured
        delta = _delta(answered.credits, batch)
        failed = torch.tensor([isinstance(j, Failure) for j in answered.judgements], device=batch.mask.device)
        cut = torch.tensor([sample.truncated for sample in answered.samples], device=batch.mask.device)
        learned = batch.mask & ~failed[:, None]
        bootstrap = torch.where(cut, last_value, torch.zeros_like(last_value))
        rewards = adv.token_rewards(delta, kl, coefficient, batch.mask)
        if settings.advantage == "group":
            weight = 0.0 if any(item.whole for item in answered.credits) else settings.group_span_weight
            advantages = adv.group_advantages(delta, learned, settings.samples_per_prompt, weight)
            advantages, returns = adv.normalise(advantages, learned, settings.normalisation), values
            # After normalisation: where all verdicts are equal, there is nothing but KL to bring to unit size.
            advantages = adv.token_rewards(advantages, kl, coefficient, learned)
        else:
            if settings.advantage == "returns":
                values, bootstrap = torch.zeros_like(values), torch.zeros_like(bootstrap)
            advantages, returns = adv.gae(rewards, values, batch.mask, settings.gamma, settings.lam, bootstrap)
            if settings.value_target == "mc":
                returns = adv.mc_returns(rewards, batch.mask, settings.gamma, bootstrap)
            advantages = adv.normalise(advantages, learned, settings.normalisation)
    return Rollout(batch, learned, delta, old_logp, kl, entropy, values, rewards, advantages, returns)


def _delta(credits: Sequence[Credit], batch: TokenBatch) -> Tensor:
    delta = torch.zeros(batch.mask.shape, device=batch.mask.device)
    for row, item in enumerate(credits):
        delta[row, : len(item.delta)] = torch.from_numpy(item.delta)
    return delta


def take_rows(rollout: Rollout, rows: Tensor) -> Rollout:
    """Some rows of a rollout, without the columns that are padding in all of them."""
    batch = rollout.batch.rows(rows).trimmed()
    tensors = {name: x[rows, : batch.width] for name, x in vars(rollout).items() if isinstance(x, Tensor)}
    return replace(rollout, batch=batch, **tensors)
