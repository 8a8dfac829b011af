"""Learning from logged answers and what was said of them: no reward model, no sampling, no critic in the loop.

The words of a critique become one number per token by the credit schemes of PPO (`align.credit`); here it weighs
the token's own loss (`rl.offline`), beside a KL that keeps the policy close to where it started. Nothing is
sampled, so no reward travels from a token to those before it: where PPO pays the verdict at the last token and
discounts it on its way back, here a good one weighs every token of its answer alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from text2grad.align import Aligned, CreditSettings, TokenTable, credit
from text2grad.durable.identity import digest_of_reference, digest_of_texts, flatten, own_code
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Critique, Message
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import check_lengths, encode_prompt, encode_target, rendering_of
from text2grad.policy.model import Policy
from text2grad.rl.loss import average
from text2grad.rl.offline import offline_loss
from text2grad.train.pairs import Encoded, plan_batches
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import OfflineSettings
from text2grad.train.supervised import Objective, descend, refuse_not_finite

UNCHECKED = {"offline.checkpoint_every", "offline.max_kl"}
"""What may change when a run is resumed."""


@dataclass(frozen=True)
class Logged:
    """An answer that is on record, and what was said of it.

    `ids` are those it was sampled as, where they are known; they are used if they are ids of this tokenizer.
    """

    id: str
    prompt: tuple[Message, ...]
    response: str
    critique: Critique
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Weighed(Encoded):
    """A logged answer as token ids; `weights` may be of any sign. `start`: log-probabilities before training."""

    start: tuple[float, ...] = ()


def train_offline(
    policy: Policy,
    answers: Sequence[Logged],
    settings: OfflineSettings,
    credit_settings: CreditSettings,
    options: RunOptions,
) -> dict[str, float]:
    """Train in place on logged answers and write the policy to the run's folder; returns the last metrics.

    Resumed as `train_supervised` is, bit for bit on one CPU. The policy as it comes is the reference.

    Raises:
        UserError: no token has a weight, an answer does not fit the context or cannot be read token by token, the
            policy has diverged, or what `durable.run.Run` refuses.
    """
    weighed = encode_logged(policy, answers, settings, credit_settings)
    if not any(weight for item in weighed for weight in item.weights):
        raise UserError(
            f"{options.title}: no token of {len(answers)} answers has a weight", "check the credit section"
        )
    identity = identity_of(policy, answers, settings, credit_settings)
    policy.freeze_reference()
    policy.eval()
    weighed = list(with_start(policy, weighed, settings.micro_batch_size))
    objective = Objective(
        identity=identity,
        gradient=partial(accumulate_gradient, policy, settings=settings),
        described=partial(_described, policy, settings=settings),
        check=partial(_refuse_diverged, settings=settings),
        dropout=False,  # both sides of the ratio and of the KL are read alike
    )
    batches = list(plan_batches(weighed, settings, options.seed))
    metrics = descend(policy, batches, objective, settings, options, "offline")
    policy.continued = True
    return metrics


def identity_of(
    policy: Policy, answers: Sequence[Logged], settings: OfflineSettings, credit_settings: CreditSettings
) -> dict[str, str]:
    """What a run depends on, by name; large things as digests."""
    turns = ((*each.prompt, Message(role="assistant", content=each.response)) for each in answers)
    said = rendering_of(policy.tokenizer, itertools.chain.from_iterable(turns))
    return {
        **flatten(UNCHECKED, offline=settings, credit=credit_settings),
        **own_code("the credit scheme", credit_settings.scheme),
        "the starting policy": digest_of_reference(policy),
        "the logged answers": digest_of_texts([*map(str, answers), *said]),
    }


def encode_logged(
    policy: Policy, answers: Sequence[Logged], settings: OfflineSettings, credit_settings: CreditSettings
) -> list[Weighed]:
    """Token ids and weights of all answers; refuses answers that do not fit, and cuts nothing."""
    table = TokenTable(policy.tokenizer)
    weighed = [_weighed(policy, each, table, settings, credit_settings) for each in answers]
    limit = min((n for n in (policy.context, settings.max_length) if n is not None), default=None)
    whole = [(each.id, [*item.prompt, *item.target]) for each, item in zip(answers, weighed, strict=True)]
    check_lengths(whole, limit, 0)
    return weighed


def _weighed(
    policy: Policy, answer: Logged, table: TokenTable, settings: OfflineSettings, credit_settings: CreditSettings
) -> Weighed:
    ids, aligned = _read(policy, answer, table)
    shift = aligned.text.find(answer.response)
    if shift < 0:
        raise UserError(
            f"{answer.id}: this tokenizer changes the text it reads, so no words can be weighed",
            "take a model whose tokenizer keeps every character",
        )
    weights = token_weights(_moved(answer.critique, shift), aligned, settings, credit_settings)
    return Weighed(encode_prompt(policy.tokenizer, answer.prompt), ids, weights)


def _read(policy: Policy, answer: Logged, table: TokenTable) -> tuple[list[int], Aligned]:
    """The tokens of an answer: as it was sampled, else as a target of supervised training."""
    aligned = table.align(answer.ids)
    if answer.ids and aligned.text == answer.response:
        return list(answer.ids), aligned
    ids = encode_target(policy.tokenizer, answer.response)
    return ids, table.align(ids)


def _moved(critique: Critique, shift: int) -> Critique:
    spans = [s.model_copy(update={"start": s.start + shift, "end": s.end + shift}) for s in critique.spans]
    return critique.model_copy(update={"spans": tuple(spans)})


def token_weights(
    critique: Critique, aligned: Aligned, settings: OfflineSettings, credit_settings: CreditSettings
) -> list[float]:
    """The weight of each token, (T,): what the credit scheme gives it, and a good verdict on the whole answer.

    A poor verdict weighs nothing: likelihood has the gradient 1 - pi and unlikelihood pi, so that tokens of which
    the policy is rightly sure would lose far more to the answers that fail than those that pass could give back.
    Of schemes that pay the score alone, the verdict is all there is.
    """
    verdict = settings.verdict_weight * max(critique.score or 0.0, 0.0)
    if credit_settings.by_score:
        return [verdict] * len(aligned)
    by_spans = credit_settings.model_copy(update={"outcome_weight": 0.0})
    return [float(delta) + verdict for delta in credit(critique, aligned, by_spans).delta]


def with_start(policy: Policy, weighed: Sequence[Weighed], rows: int) -> Iterator[Weighed]:
    """The answers with their log-probabilities under the policy as it is."""
    for first in range(0, len(weighed), rows):
        items = weighed[first : first + rows]
        with policy.evaluating():
            logp = policy.logps(_packed(policy, items)).logp
        for item, row in zip(items, logp.tolist(), strict=True):
            yield replace(item, start=tuple(row[: len(item.target)]))


def accumulate_gradient(
    policy: Policy, batch: Sequence[Weighed], size: PassSize, settings: OfflineSettings
) -> dict[str, float]:
    """Add the gradient of the batch's mean loss per token; returns its terms."""
    ordered = sorted(batch, key=lambda item: item.tokens)
    tokens = sum(len(item.target) for item in batch)

    def terms(items: Sequence[Weighed]) -> tuple[Tensor, dict[str, Tensor]]:
        shares = loss_terms(policy, items, settings, tokens)
        return shares["loss"], shares

    return accumulate(policy, ordered, terms, size)


def loss_terms(
    policy: Policy, items: Sequence[Weighed], settings: OfflineSettings, tokens: int
) -> dict[str, Tensor]:
    """Shares of some answers in a batch of so many tokens: `loss`, and its `kl`.

    The KL is over the whole vocabulary: of logged tokens, which the policy did not sample, an estimate from the
    token alone would be one of something else.
    """
    batch = _packed(policy, items)
    weights, start = (_spread(column, batch) for column in zip(*((i.weights, i.start) for i in items), strict=True))
    output = policy(batch, kl="full", valued=False)
    per_token = offline_loss(output.logp, start, weights, batch.mask, settings.poor_limit)
    weighed, kl = (average(each, batch.mask, "token", tokens) for each in (per_token, output.kl))
    return {"loss": weighed + settings.kl_coefficient * kl, "kl": kl}


def _packed(policy: Policy, items: Sequence[Weighed]) -> TokenBatch:
    return policy.pack([item.prompt for item in items], [item.target for item in items])


def _spread(rows: Sequence[Sequence[float]], batch: TokenBatch) -> Tensor:
    """One number per response token, (B, T), 0 outside the mask."""
    spread = torch.zeros(batch.mask.shape)
    for place, row in enumerate(rows):
        spread[place, : len(row)] = torch.tensor(row)
    return spread.to(batch.mask.device)


def _refuse_diverged(metrics: dict[str, float], settings: OfflineSettings) -> None:
    refuse_not_finite(metrics)
    if settings.max_kl is not None and metrics["kl"] > settings.max_kl:
        raise FloatingPointError(
            f"the policy has diverged: {metrics['kl']:.1f} nats a token from where it started"
            f" (offline.max_kl {settings.max_kl:g})"
        )


def _described(
    policy: Policy, step: int, batch: Sequence[Weighed], settings: OfflineSettings
) -> Iterator[dict[str, Any]]:
    """Each answer of a batch in words, with its loss under the present weights."""
    for item in batch:
        with policy.evaluating():
            loss = float(loss_terms(policy, [item], settings, len(item.target))["loss"])
        prompt, target = policy.tokenizer.decode(item.prompt), policy.tokenizer.decode(item.target)
        yield {"step": step, "loss": loss, "prompt": prompt, "target": target, "weights": item.weights}
