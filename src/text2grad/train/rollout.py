"""Build one batch of experience: responses with their critiques, and the same batch in numbers."""

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
from text2grad.policy.episode import MakeEnvironment, decode_sample, play
from text2grad.policy.generate import Sample, generate
from text2grad.policy.model import Policy
from text2grad.policy.settings import GenerationSettings
from text2grad.rl import advantage as adv
from text2grad.train.passes import PassSize
from text2grad.train.ppo_settings import PPOSettings


@dataclass(frozen=True)
class Responses:
    """A batch of B responses with their critiques and credit.

    Attributes:
        aligned: the policy's own tokens of each response, aligned with its text.
        labels: +1, -1 or 0 for each token, by its spans; empty where the critique failed.
        critic_tokens: number of tokens that the critic read and wrote.
        texts: the text shown to the critic, a `Transcript` if there are other messages.
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
    """A batch of responses in numbers; all tensors are (B, T) and response-aligned.

    Attributes:
        loss_mask: the tokens that the loss covers: not those of failed critiques, nor those that
            `ppo.mask_truncated` or `ppo.drop_equal_groups` removes.
        delta: pseudo-rewards.
        old_logp: log-probabilities under the policy that sampled the tokens.
        ref_logp: log-probabilities under the reference.
        ratio: pi / pi_old in the last epoch, written by `update`; 0 where no pass was made.
        values: V before each token.
        rewards: delta - beta * kl.
        advantages: constants of the policy loss.
        returns: targets of the value function.
    """

    batch: TokenBatch
    loss_mask: Tensor
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


def random_numbers(seed: int, step: int, rows: int, tokens: int) -> Tensor:
    """Return random numbers (rows, tokens); a row depends on seed, step and row number only."""
    numbers = [np.random.default_rng([seed, step, row]).random(tokens) for row in range(rows)]
    return torch.from_numpy(np.stack(numbers))


def sample_responses(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    generation: GenerationSettings,
    draws: Tensor | None,
    make: MakeEnvironment | None,
    examples: Sequence[Example],
) -> list[Sample]:
    """Sample one response per prompt, or with an environment one episode per example.

    `draws` are the random numbers of `policy.generate.generate`.

    Raises:
        FloatingPointError: the policy's probabilities are not finite.
    """
    try:
        if make is not None:
            return play(policy, examples, make, generation, draws)
        return generate(policy, prompts, generation, draws=draws)
    except NotFinite as error:  # the run adds its own cure, which depends on its settings
        raise FloatingPointError("the policy's probabilities are not finite") from error


def pack_samples(policy: Policy, prompts: Sequence[Sequence[int]], samples: Sequence[Sample]) -> TokenBatch:
    """Pack samples after their prompts; an episode has its own first prompt."""
    starts = [sample.prompt or prompt for sample, prompt in zip(samples, prompts, strict=True)]
    return policy.pack(starts, [sample.ids for sample in samples], [sample.mask for sample in samples])


def merge_responses(parts: Sequence[Responses]) -> Responses:
    """Concatenate parts of a batch that were judged separately."""
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
    """Critique the text of the sampled ids, and turn the spans into credit for these ids."""
    decoded = [decode_sample(table, *pair) for pair in zip(examples, samples, strict=True)]
    texts, aligned = [text for text, _ in decoded], [tokens for _, tokens in decoded]
    tokens_before = count_critic_tokens(critic)
    judgements = [require_score(item, settings) for item in get_judgements(critic, examples, texts)]
    credits, labels = [], []
    for judgement, tokens in zip(judgements, aligned, strict=True):
        if isinstance(judgement, Failure):  # no credit; a failure is not a score of 0
            credits.append(Credit.zero(tokens))
            labels.append(np.zeros(0, np.int8))
        else:
            credits.append(credit(judgement, tokens, settings))
            labels.append(token_labels(judgement.spans, tokens))
    critic_tokens = count_critic_tokens(critic) - tokens_before
    return Responses(list(examples), list(samples), aligned, judgements, credits, labels, critic_tokens, texts)


def refuse_failures(judgements: Sequence[Judgement], limit: float) -> None:
    """Refuse to train if more than a share `limit` of the critiques failed.

    Raises:
        CritiquesFailed: names the first failure.
    """
    failures = [judgement for judgement in judgements if isinstance(judgement, Failure)]
    if len(failures) > limit * len(judgements):
        raise CritiquesFailed(
            f"{len(failures)} of {len(judgements)} critiques failed, the first: {failures[0].kind}:"
            f" {failures[0].message}",
            "fix the critic, or raise ppo.max_failed",
        )


def refuse_diverged(rollout: Rollout, limit: float | None) -> None:
    """Refuse an update on numbers that are not finite, or with a KL above `limit` nats a token.

    Raises:
        FloatingPointError: names the columns, or the KL.
    """
    columns = ("old_logp", "kl", "values", "rewards", "advantages", "returns")
    wrong = [name for name in columns if not getattr(rollout, name).isfinite().all()]
    if wrong:
        raise FloatingPointError(f"{', '.join(wrong)} not finite before the update, no parameter was changed")
    kl = float(adv.masked_mean(rollout.kl, rollout.batch.mask))
    if limit is not None and kl > limit:
        raise FloatingPointError(
            f"the policy has diverged, {kl:.1f} nats a token from its reference (ppo.max_kl {limit:g})"
        )


class PolicyStats(NamedTuple):
    """Policy and reference statistics of a batch, which need no critic.

    Log-probabilities, KL, entropy and values are (B, T), 0 outside the mask. `last_value` (B,) is
    the value after each response.
    """

    logp: Tensor
    ref_logp: Tensor
    kl: Tensor
    entropy: Tensor
    values: Tensor
    last_value: Tensor


def measure_policy(
    policy: Policy, batch: TokenBatch, settings: PPOSettings, temperature: float, size: PassSize | None = None
) -> PolicyStats:
    """Return the policy and reference statistics of a batch."""
    size = size or PassSize(settings.micro_batch_size)
    device = batch.mask.device
    logp, ref_logp, kl, entropy, values = (torch.zeros(batch.mask.shape, device=device) for _ in range(5))
    last_value = torch.zeros(len(batch.mask), device=device)
    stats = PolicyStats(logp, ref_logp, kl, entropy, values, last_value)

    def fill(rows_per_pass: int) -> None:
        index = torch.arange(len(batch.mask), device=device)
        for rows in batch.passes(index, rows_per_pass, grouped=policy.reader.shares_prompts):
            part = batch.rows(rows).trimmed()  # (b, t) with t <= T
            output = policy(part, temperature, entropy=True, kl=settings.kl, valued=settings.valued)
            for name in ("logp", "ref_logp", "kl", "entropy"):
                getattr(stats, name)[rows, : part.width] = getattr(output, name)
            stats.values[rows, : part.width] = output.values.masked_fill(~part.mask, 0.0)
            stats.last_value[rows] = output.last_value

    # log pi_old comes from the forward pass of the update, not from sampling: a pass with a cache
    # rounds differently, and the first ratio pi / pi_old has to be exactly 1.
    with policy.evaluating():
        size.run(fill, undo=lambda: None)
    return stats


def group_scores(credits: Sequence[Credit], size: int) -> Tensor:
    """Return the score that each response brings to its group of `size`, (B,).

    NaN, which is compared with nothing, for responses without a verdict in a group where others
    have one: sums of word rewards and verdicts have different units.
    """
    scores = torch.tensor([item.group_score for item in credits])
    has_verdict = torch.tensor([item.verdict is not None for item in credits])
    group_has_verdict = has_verdict.view(-1, size).any(dim=1, keepdim=True).expand(-1, size).reshape(-1)
    return scores.masked_fill(group_has_verdict & ~has_verdict, math.nan)


def build_rollout(
    batch: TokenBatch, responses: Responses, stats: PolicyStats, settings: PPOSettings, coefficient: float
) -> Rollout:
    """Return rewards and advantages of a batch under the policy that sampled it.

    `coefficient` is beta, the weight of the KL.
    """
    size, device = settings.samples_per_prompt, batch.mask.device
    failed = torch.tensor([isinstance(item, Failure) for item in responses.judgements], device=device)  # (B,)
    truncated = torch.tensor([sample.truncated for sample in responses.samples], device=device)  # (B,)
    judged_mask = batch.mask & ~failed[:, None]  # (B, T); a failed critique is not a reward of 0
    # (B, T) each; word_rewards are delta without the verdicts.
    delta = scatter_to_tokens([item.delta for item in responses.credits], batch.mask)
    word_rewards = scatter_to_tokens([item.word_rewards for item in responses.credits], batch.mask)
    scores = group_scores(responses.credits, size).to(device)
    if settings.lost_groups == "shared":
        all_failed = adv.in_failed_groups(scores, judged_mask, size)
        # Where only the verdict is paid, it is the whole signal and stays.
        all_failed &= torch.tensor([not item.by_score for item in responses.credits], device=device)
        delta, word_rewards = adv.share_blame(delta, word_rewards, all_failed)
    # A truncated response would have earned more; a finished one ends with value 0.
    bootstrap = torch.where(truncated, stats.last_value, 0)
    estimate = adv.estimate_advantages(
        settings.advantage,
        adv.RewardTerms(delta, stats.kl, coefficient, stats.values, bootstrap, batch.mask, judged_mask),
        gamma=settings.gamma,
        lam=settings.lam,
        normalisation=settings.normalisation,
        group=adv.GroupTerms(scores, word_rewards, size),
    )
    # Responses are removed after the estimate: a truncated one still counts in its group's mean,
    # but not in the loss and its denominator.
    in_loss = torch.ones_like(truncated)  # (B,)
    if settings.drop_equal_groups:
        in_loss &= adv.in_unequal_groups(scores, judged_mask, size)
    if settings.mask_truncated:
        in_loss &= ~truncated
    return Rollout(
        batch=batch,
        loss_mask=judged_mask & in_loss[:, None],
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


def scatter_to_tokens(numbers: Sequence[NDArray[np.generic]], mask: Tensor) -> Tensor:
    """Place one number per policy token where `mask` (B, T) is True, float32 (B, T), else 0.

    A row without numbers (labels of a failed critique) stays 0.

    Raises:
        ValueError: a row has more or fewer numbers than tokens.
    """
    scattered = torch.zeros(mask.shape)
    for index, (row, row_mask) in enumerate(zip(numbers, mask.cpu(), strict=True)):
        if len(row):
            scattered[index, row_mask] = torch.from_numpy(row.astype(np.float32))
    return scattered.to(mask.device)


def take_rows(rollout: Rollout, rows: Tensor) -> Rollout:
    """Return some rows of a rollout, without columns that are padding in all of them."""
    batch = rollout.batch.rows(rows).trimmed()
    tensors = {name: x[rows, : batch.width] for name, x in vars(rollout).items() if isinstance(x, Tensor)}
    return replace(rollout, batch=batch, **tensors)
