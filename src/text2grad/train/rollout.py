"""One batch of experience: responses in words, with what was said of them, and the same in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from text2grad.align import Aligned, Credit, CreditSettings, TokenTable, credit
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example, Failure, Judgement
from text2grad.policy.generate import Sample, generate
from text2grad.policy.model import Policy, TokenBatch
from text2grad.policy.settings import GenerationSettings
from text2grad.rl import advantage as adv
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


def respond(policy: Policy, prompts: Sequence[Sequence[int]], generation: GenerationSettings) -> list[Sample]:
    """One sampled response per prompt.

    Raises:
        FloatingPointError: the policy's probabilities are not numbers.
    """
    try:
        return generate(policy, prompts, generation)
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise FloatingPointError("the policy's probabilities are not numbers") from error


def judge(
    examples: list[Example],
    samples: list[Sample],
    table: TokenTable,
    critic: Critic,
    settings: CreditSettings,
) -> Answered:
    """Show the critic the text of the sampled ids, and tie what it says to those ids."""
    aligned = [table.align(sample.ids) for sample in samples]
    judgements = critic.critique(examples, [item.text for item in aligned])
    credits = [
        credit(judgement, item, settings) if not isinstance(judgement, Failure) else Credit.nothing(item)
        for judgement, item in zip(judgements, aligned, strict=True)
    ]
    return Answered(examples, samples, aligned, judgements, credits)


def judged(
    examples: list[Example],
    samples: list[Sample],
    table: TokenTable,
    critic: Critic,
    settings: CreditSettings,
    max_failed: float,
) -> Answered:
    """`judge`, refused where too many critiques failed."""
    answered = judge(examples, samples, table, critic, settings)
    refuse_failures(answered.judgements, max_failed)
    return answered


def refuse_failures(judgements: Sequence[Judgement], limit: float) -> None:
    """Stop when more than a share `limit` of the critiques failed: a policy cannot learn from silence."""
    failures = [judgement for judgement in judgements if isinstance(judgement, Failure)]
    if len(failures) > limit * len(judgements):
        raise UserError(
            f"{len(failures)} of {len(judgements)} critiques failed, the first: {failures[0].kind}:"
            f" {failures[0].message}",
            "mend the critic, or raise ppo.max_failed",
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


def measure(policy: Policy, batch: TokenBatch, settings: PPOSettings, temperature: float) -> tuple[Tensor, ...]:
    """What the policy and its reference say of a batch, whatever a critic says.

    Log-probabilities, KL, entropy and values (B, T), 0 outside the mask, and the last values (B,).
    """
    with policy.evaluating():
        everything = torch.arange(len(batch.mask), device=batch.mask.device)
        columns = [torch.zeros(batch.mask.shape, device=batch.mask.device) for _ in range(4)]
        last_value = torch.zeros(len(batch.mask), device=batch.mask.device)
        for rows in batch.passes(everything, settings.micro_batch_size):
            part = batch.rows(rows).trimmed()
            output = policy(part, temperature, entropy=True, kl=settings.kl)
            values = output.values.masked_fill(~part.mask, 0.0)
            for column, found in zip(columns, (output.logp, output.kl, output.entropy, values), strict=True):
                column[rows, : part.width] = found
            last_value[rows] = output.last_value
        return *columns, last_value


def score(
    policy: Policy,
    batch: TokenBatch,
    answered: Answered,
    settings: PPOSettings,
    temperature: float,
    coefficient: float,
    measured: tuple[Tensor, ...] | None = None,
) -> Rollout:
    """Log-probabilities, KL, values, rewards and advantages of a batch under the policy that sampled it.

    `measured` is what `measure` gave, where that was done before.
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
        advantages, returns = adv.gae(rewards, values, batch.mask, settings.gamma, settings.lam, bootstrap)
        if settings.value_target == "mc":
            returns = adv.mc_returns(rewards, batch.mask, settings.gamma, bootstrap)
        if settings.advantage == "group":
            size, weight = settings.samples_per_prompt, settings.group_span_weight
            advantages, returns = adv.group_advantages(rewards, learned, size, weight), values
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
