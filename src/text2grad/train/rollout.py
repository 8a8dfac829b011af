"""One batch of experience: responses in words with their critiques, and the same in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from text2grad.align import Aligned, Credit, CreditSettings, TokenTable, credit, require_score, token_labels
from text2grad.errors import CritiquesFailed, NotFinite
from text2grad.feedback import Critic, Example, Failure, Judgement, count_critic_tokens, get_judgements
from text2grad.policy.batch import TokenBatch
from text2grad.policy.episode import MakeEnvironment, play, words_and_tokens
from text2grad.policy.generate import Sample, generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.rl import advantage as adv
from text2grad.train.passes import PassSize
from text2grad.train.ppo_settings import PPOSettings


@dataclass(frozen=True)
class Responses:
    """A batch of responses in words: prompts, samples, critiques, and the credit of each.

    `aligned`, `credits` and `labels` are of the policy's own tokens, one number for each.
    `labels`: +1, -1 or 0 of each token, by the spans that it belongs to; empty where the critique
    failed. `critic_tokens`: tokens that the critic read and wrote. `texts`: what the critic was
    shown of each, a `Transcript` where others spoke.
    """

    examples: list[Example]
    samples: list[Sample]
    aligned: list[Aligned]
    judgements: list[Judgement]
    credits: list[Credit]
    labels: list[NDArray[np.int8]]
    critic_tokens: float = 0.0
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The same batch in numbers. All (B, T), response-aligned.

    `learned`: the tokens that the loss is taken over. Those of failed critiques are never among
    them, nor what `ppo.mask_truncated` or `ppo.drop_equal_groups` leaves out.

    `ratio`: what `update` writes into it, pi now / `old_logp`'s in the last epoch; 0 where no pass
    has read.
    """

    batch: TokenBatch
    learned: Tensor
    delta: Tensor
    old_logp: Tensor
    ref_logp: Tensor
    ratio: Tensor
    kl: Tensor
    entropy: Tensor
    values: Tensor
    rewards: Tensor
    advantages: Tensor
    returns: Tensor


def draws_of(seed: int, step: int, rows: int, tokens: int) -> Tensor:
    """Return random numbers (rows, tokens); those of a row depend on seed, step and row alone."""
    numbers = [np.random.default_rng([seed, step, row]).random(tokens) for row in range(rows)]
    return torch.from_numpy(np.stack(numbers))


def respond(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    generation: GenerationSettings,
    draws: Tensor | None = None,
    make: MakeEnvironment | None = None,
    examples: Sequence[Example] = (),
) -> list[Sample]:
    """One sampled response per prompt; `draws` as in `generate`. With `make` an episode for each of
    the examples.

    Raises:
        FloatingPointError: the policy's probabilities are not finite.
    """
    try:
        if make is not None:
            return play(policy, examples, make, generation, draws)
        return generate(policy, prompts, generation, draws=draws)
    except NotFinite as error:  # the run names its own cure, which depends on its settings
        raise FloatingPointError("the policy's probabilities are not finite") from error


def packed(policy: Policy, prompts: Sequence[Sequence[int]], samples: Sequence[Sample]) -> TokenBatch:
    """Samples behind their prompts; an episode begins behind what it was asked first."""
    begun = [sample.prompt or prompt for sample, prompt in zip(samples, prompts, strict=True)]
    return policy.pack(begun, [each.ids for each in samples], [each.mask for each in samples])


def merge(parts: Sequence[Responses]) -> Responses:
    """Parts of a batch that were judged apart, as one batch."""
    columns = {item.name: [getattr(part, item.name) for part in parts] for item in fields(Responses)}
    tokens = sum(columns.pop("critic_tokens"))
    return Responses(
        **{name: [*chain.from_iterable(lists)] for name, lists in columns.items()}, critic_tokens=tokens
    )


def judge(
    examples: Sequence[Example],
    samples: Sequence[Sample],
    table: TokenTable,
    critic: Critic,
    settings: CreditSettings,
) -> Responses:
    """Critique the text of the sampled ids, and turn the spans into credit for those ids."""
    read = [words_and_tokens(table, *each) for each in zip(examples, samples, strict=True)]
    texts, aligned = [words for words, _ in read], [tokens for _, tokens in read]
    before = count_critic_tokens(critic)
    critiques = get_judgements(critic, examples, texts)
    judgements = [require_score(each, settings) for each in critiques]
    credits = [  # one delta per token; none for a failure, which is no score of 0
        credit(judgement, item, settings) if not isinstance(judgement, Failure) else Credit.zero(item)
        for judgement, item in zip(judgements, aligned, strict=True)
    ]
    labels = [
        np.zeros(0, np.int8) if isinstance(each, Failure) else token_labels(each.spans, item)
        for each, item in zip(judgements, aligned, strict=True)
    ]
    tokens = count_critic_tokens(critic) - before
    return Responses(list(examples), list(samples), aligned, judgements, credits, labels, tokens, texts)


def refuse_failures(judgements: Sequence[Judgement], limit: float) -> None:
    """Stop when more than a share `limit` of the critiques failed."""
    failures = [judgement for judgement in judgements if isinstance(judgement, Failure)]
    if len(failures) > limit * len(judgements):
        raise CritiquesFailed(
            f"{len(failures)} of {len(judgements)} critiques failed, the first: {failures[0].kind}:"
            f" {failures[0].message}",
            "fix the critic, or raise ppo.max_failed",
        )


def refuse_diverged(rollout: Rollout, limit: float | None) -> None:
    """Stop before an update on numbers that are not finite, or more than `limit` nats a token from
    the reference.

    Raises:
        FloatingPointError: names the columns, or says how far.
    """
    columns = ("old_logp", "kl", "values", "rewards", "advantages", "returns")
    wrong = [name for name in columns if not getattr(rollout, name).isfinite().all()]
    if wrong:
        raise FloatingPointError(f"{', '.join(wrong)} not finite before the update, no parameter was changed")
    far = float(adv.masked_mean(rollout.kl, rollout.batch.mask))
    if limit is not None and far > limit:
        raise FloatingPointError(
            f"the policy has diverged, {far:.1f} nats a token from its reference (ppo.max_kl {limit:g})"
        )


class PolicyStats(NamedTuple):
    """Policy and reference statistics of a batch, independent of the critic.

    Log-probabilities of policy and reference, KL, entropy and values (B, T), 0 outside the mask,
    and the values after the responses (B,).
    """

    logp: Tensor
    ref_logp: Tensor
    kl: Tensor
    entropy: Tensor
    values: Tensor
    last_value: Tensor


def measure(
    policy: Policy, batch: TokenBatch, settings: PPOSettings, temperature: float, size: PassSize | None = None
) -> PolicyStats:
    """Policy and reference statistics of a batch."""
    size = size or PassSize(settings.micro_batch_size)
    device = batch.mask.device
    logp, ref_logp, kl, entropy, values = (torch.zeros(batch.mask.shape, device=device) for _ in range(5))
    last_value = torch.zeros(len(batch.mask), device=device)
    stats = PolicyStats(logp, ref_logp, kl, entropy, values, last_value)

    def fill(rows_each: int) -> None:
        index = torch.arange(len(batch.mask), device=device)
        for rows in batch.passes(index, rows_each, grouped=policy.reader.shares):
            part = batch.rows(rows).trimmed()  # (b, t) with t <= T
            output = policy(part, temperature, entropy=True, kl=settings.kl, valued=settings.valued)
            for name in ("logp", "ref_logp", "kl", "entropy"):
                getattr(stats, name)[rows, : part.width] = getattr(output, name)
            stats.values[rows, : part.width] = output.values.masked_fill(~part.mask, 0.0)
            stats.last_value[rows] = output.last_value

    with policy.evaluating():
        size.fitting(fill, undo=lambda: None)
    return stats


def gains_of(credits: Sequence[Credit], size: int) -> Tensor:
    """(B,), what each response is worth beside the `size` to its prompt; NaN, which is compared
    with nothing, where it has no verdict and another to that prompt has one."""
    gains = torch.tensor([item.group_score for item in credits])
    known = torch.tensor([item.verdict is not None for item in credits])
    beside = known.view(-1, size).any(dim=1, keepdim=True).expand(-1, size).reshape(-1)
    return gains.masked_fill(beside & ~known, math.nan)


def score(
    batch: TokenBatch, responses: Responses, stats: PolicyStats, settings: PPOSettings, coefficient: float
) -> Rollout:
    """Rewards and advantages of a batch under the policy that sampled it; `coefficient` is beta, of
    the KL."""
    # (B,) each: whose critique failed, and who was cut at max_new_tokens.
    failed = torch.tensor([isinstance(j, Failure) for j in responses.judgements], device=batch.mask.device)
    cut = torch.tensor([sample.truncated for sample in responses.samples], device=batch.mask.device)
    judged = batch.mask & ~failed[:, None]  # (B, T), the tokens of answers that have a critique
    # (B, T) each: delta of the credit scheme, and the part of it that single words earned.
    delta = on_own_tokens([item.delta for item in responses.credits], batch.mask)
    words = on_own_tokens([item.word_rewards for item in responses.credits], batch.mask)
    gains = gains_of(responses.credits, settings.samples_per_prompt).to(batch.mask.device)
    if settings.lost_groups == "shared":
        lost = adv.in_failed_groups(gains, judged, settings.samples_per_prompt)
        lost &= torch.tensor([not item.by_score for item in responses.credits], device=lost.device)
        delta, words = adv.share_blame(delta, words, lost)
    bootstrap = torch.where(cut, stats.last_value, 0)  # a truncated response would have earned more
    estimate = adv.estimate_advantages(
        settings.advantage,
        adv.RewardTerms(delta, stats.kl, coefficient, stats.values, bootstrap, batch.mask, judged),
        gamma=settings.gamma,
        lam=settings.lam,
        normalisation=settings.normalisation,
        group=adv.GroupTerms(gains, words, settings.samples_per_prompt),
    )
    # A truncated answer still counts in the mean of its group; here it leaves the loss and its
    # token mean.
    counted = torch.ones_like(cut)  # (B,)
    if settings.drop_equal_groups:
        counted &= adv.in_unequal_groups(gains, judged, settings.samples_per_prompt)
    if settings.mask_truncated:
        counted &= ~cut
    return Rollout(
        batch=batch,
        learned=judged & counted[:, None],
        delta=delta,
        old_logp=stats.logp,
        ref_logp=stats.ref_logp,
        ratio=torch.zeros_like(stats.logp),
        kl=stats.kl,
        entropy=stats.entropy,
        values=stats.values,
        rewards=estimate.rewards,
        advantages=estimate.advantages,
        returns=estimate.returns,
    )


def on_own_tokens(numbers: Sequence[NDArray[np.generic]], mask: Tensor) -> Tensor:
    """One number for each of the policy's own tokens, put where these stand, float32 (B, T); 0
    elsewhere.

    Rows without numbers (labels of a failed critique) are 0.

    Raises:
        ValueError: a row has more or fewer numbers than tokens.
    """
    spread = torch.zeros(mask.shape)
    for row, (each, own) in enumerate(zip(numbers, mask.cpu(), strict=True)):
        if len(each):
            spread[row, own] = torch.from_numpy(each.astype(np.float32))
    return spread.to(mask.device)


def take_rows(rollout: Rollout, rows: Tensor) -> Rollout:
    """Some rows of a rollout, without the columns that are padding in all of them."""
    batch = rollout.batch.rows(rows).trimmed()
    tensors = {name: x[rows, : batch.width] for name, x in vars(rollout).items() if isinstance(x, Tensor)}
    return replace(rollout, batch=batch, **tensors)
