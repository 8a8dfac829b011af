"""Learning from logged answers and their critiques: no reward model, no sampling, no critic in the
loop.

The credit schemes of PPO (`align.credit`) turn a critique into one number per token, which here
weights the token's own loss (`rl.offline`), beside a KL that keeps the policy close to its start.
Nothing is sampled, so rewards do not propagate to earlier tokens: PPO pays the verdict at the last
token and discounts it backwards; here a good verdict weights every token of its answer equally.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from text2grad.align import Aligned, CreditSettings, TokenTable, credit, score_intervals
from text2grad.align.trajectory import Trajectory, read_policy_tokens
from text2grad.durable.identity import flatten, hash_custom_code, hash_data, hash_starting_weights
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Critique, Example, Message, Transcript, conversation_of, turns_of
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.episode import encode_turns
from text2grad.policy.model import Policy
from text2grad.rl.loss import average
from text2grad.rl.offline import offline_loss
from text2grad.train.pairs import Encoded, plan_batches, refuse_long
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import OfflineSettings
from text2grad.train.supervised import Objective, descend, in_words, refuse_not_finite

POOR_LIMIT = 10.0
"""Limit of the factor (1 - p) / p of a poor token, p its probability at the start: tokens rarer
than 1 in 11."""
KL_COEFFICIENT = 0.1
"""Weight of the KL to the start, over the whole vocabulary, at every token."""
MAX_KL = 3.0
"""Nats per token from the start beyond which a run has diverged."""


@dataclass(frozen=True)
class LoggedAnswer:
    """A recorded answer and its critique; of a `Transcript` the policy's turns are learned from.

    `ids`: as it was sampled, if known, of several turns a list for each; they are used if this
    tokenizer decodes them to the response.
    """

    id: str
    prompt: tuple[Message, ...]
    response: str
    critique: Critique
    ids: tuple[Any, ...] = ()


@dataclass(frozen=True)
class WeightedAnswer(Encoded):
    """A logged answer as token ids; `weights` may be of any sign. `start`: log-probabilities before
    training.

    `mask`: which tokens are the policy's; None: all of them.
    """

    start: tuple[float, ...] = ()
    mask: list[bool] | None = None

    @property
    def own(self) -> int:
        """How many tokens are the policy's."""
        return len(self.target) if self.mask is None else sum(self.mask)


def train_offline(
    policy: Policy,
    answers: Sequence[LoggedAnswer],
    settings: OfflineSettings,
    credit_settings: CreditSettings,
    options: RunOptions,
) -> dict[str, float]:
    """Train in place on logged answers and write the policy to the run's folder; returns the last
    metrics.

    Resumed as `train_supervised` is, bit for bit on one CPU. The policy as it comes is the
    reference.

    Raises:
        UserError: no token has a weight, an answer does not fit the context or cannot be read token
            by token, the policy has diverged, or what `durable.run.Run` refuses.
    """
    weighed = encode_logged(policy, answers, credit_settings)
    if not any(weight for item in weighed for weight in item.weights):
        raise UserError(
            f"{options.title}: no token of {len(answers)} answers has a weight", "check the credit section"
        )
    identity = identity_of(policy, answers, settings, credit_settings)
    policy.freeze_reference()
    policy.eval()  # the start is read without dropout, as it is in training
    weighed = list(with_start(policy, weighed, settings.micro_batch_size))
    objective = Objective(
        identity=identity,
        gradient=partial(accumulate_gradient, policy),
        described=partial(_described, policy),
        check=_refuse_diverged,
        dropout=False,  # both sides of the ratio and of the KL are read alike
    )
    batches = list(plan_batches(weighed, settings, options.seed))
    metrics = descend(policy, batches, objective, settings, options, "offline")
    policy.continued = True
    return metrics


def identity_of(
    policy: Policy, answers: Sequence[LoggedAnswer], settings: OfflineSettings, credit_settings: CreditSettings
) -> dict[str, str]:
    """What a run depends on, by name; large things as digests."""
    turns = ((*each.prompt, *conversation_of(each.response)) for each in answers)
    return {
        **flatten(offline=settings, credit=credit_settings),
        **hash_custom_code("the credit scheme", credit_settings.scheme),
        "the starting policy": hash_starting_weights(policy),
        "the logged answers": hash_data(policy, map(str, answers), itertools.chain.from_iterable(turns)),
    }


def encode_logged(
    policy: Policy, answers: Sequence[LoggedAnswer], credit_settings: CreditSettings
) -> list[WeightedAnswer]:
    """Token ids and weights of all answers; refuses answers that do not fit, and cuts nothing."""
    table = TokenTable(policy.tokenizer)
    weighed = [_weighed(policy, answer, table, credit_settings) for answer in answers]
    refuse_long(policy, [answer.id for answer in answers], weighed)
    return weighed


def _weighed(
    policy: Policy, answer: LoggedAnswer, table: TokenTable, credit_settings: CreditSettings
) -> WeightedAnswer:
    if isinstance(answer.response, Transcript):
        return _weighed_turns(policy, answer, table, credit_settings)
    ids, aligned = _read(policy, answer, table)
    shift = aligned.text.find(answer.response)
    if shift < 0:
        raise UserError(
            f"{answer.id}: this tokenizer changes the text it reads, so no words can be weighed",
            "take a model whose tokenizer keeps every character",
        )
    weights = token_weights(_moved(answer.critique, shift), aligned, credit_settings)
    return WeightedAnswer(encode_prompt(policy.tokenizer, answer.prompt), ids, weights)


def _weighed_turns(
    policy: Policy, answer: LoggedAnswer, table: TokenTable, credit_settings: CreditSettings
) -> WeightedAnswer:
    """The turns of a transcript that can be trained (`policy.episode.Thread`); spans on others are
    left out."""
    thread = encode_turns(policy.tokenizer, answer.prompt, answer.response, answer.ids)
    asked = Example(id=answer.id, prompt=answer.prompt)
    own = read_policy_tokens(table, Trajectory(asked, thread.ids, thread.mask, [*thread.between, ()]))
    trained = len(turns_of(own.response))
    first = turns_of(answer.response)[-trained].start
    if answer.response[first:] != str(own.response):
        raise UserError(
            f"{answer.id}: this tokenizer changes the text it reads, so no words can be weighed",
            "take a model whose tokenizer keeps every character",
        )
    spans = tuple(span for span in answer.critique.spans if span.start >= first)
    kept = {"spans": spans, "turn_scores": answer.critique.turn_scores[-trained:]}
    critique = _moved(answer.critique.model_copy(update=kept), -first)
    weights = np.zeros(len(thread.ids))
    weights[own.positions] = token_weights(critique, own.aligned, credit_settings)
    return WeightedAnswer(thread.prompt, thread.ids, weights.tolist(), mask=thread.mask)


def _read(policy: Policy, answer: LoggedAnswer, table: TokenTable) -> tuple[list[int], Aligned]:
    """The tokens of an answer: as it was sampled, else as a target of supervised training."""
    aligned = table.align(answer.ids)
    if answer.ids and aligned.text == answer.response:
        return list(answer.ids), aligned
    ids = encode_target(policy.tokenizer, answer.response)
    return ids, table.align(ids)


def _moved(critique: Critique, shift: int) -> Critique:
    spans = [s.model_copy(update={"start": s.start + shift, "end": s.end + shift}) for s in critique.spans]
    return critique.model_copy(update={"spans": tuple(spans)})


def token_weights(critique: Critique, aligned: Aligned, credit_settings: CreditSettings) -> list[float]:
    """The weight of each token, (T,): its delta by the credit scheme, and a good verdict on the
    answer or its turn.

    A poor verdict has no weight. The gradient of likelihood is 1 - pi and that of unlikelihood pi:
    tokens of which the policy is rightly sure would lose far more through answers that fail than
    answers that pass could restore. With schemes that pay the score alone, only verdicts count.
    """
    weights = np.zeros(len(aligned))
    for start, end, score in score_intervals(critique, aligned):
        weights[start:end] += max(score, 0.0)
    if not credit_settings.by_score:
        by_spans = credit_settings.model_copy(update={"outcome_weight": 0.0})
        weights += credit(critique, aligned, by_spans).delta
    return [float(weight) for weight in weights]


def with_start(policy: Policy, weighed: Sequence[WeightedAnswer], rows: int) -> Iterator[WeightedAnswer]:
    """The answers with their log-probabilities under the policy as it is."""
    for first in range(0, len(weighed), rows):
        items = weighed[first : first + rows]
        with policy.evaluating():
            logp = policy(_packed(policy, items), valued=False).logp
        for item, row in zip(items, logp.tolist(), strict=True):
            yield replace(item, start=tuple(row[: len(item.target)]))


def accumulate_gradient(policy: Policy, batch: Sequence[WeightedAnswer], size: PassSize) -> dict[str, float]:
    """Add the gradient of the batch's mean loss per token; returns its terms."""
    ordered = sorted(batch, key=lambda item: item.tokens)
    tokens = sum(item.own for item in batch)  # the denominator of the whole batch

    def terms(items: Sequence[WeightedAnswer]) -> tuple[Tensor, dict[str, Tensor]]:
        shares = loss_terms(policy, items, tokens)
        return shares["loss"], shares

    return accumulate(policy, ordered, terms, size)


def loss_terms(policy: Policy, items: Sequence[WeightedAnswer], tokens: int) -> dict[str, Tensor]:
    """Shares of some answers in a batch of so many tokens: `loss`, and its `kl`.

    The KL is over the whole vocabulary: an estimate from single tokens is unbiased only for tokens
    that the policy sampled itself.
    """
    batch = _packed(policy, items)
    weights, start = (_spread(column, batch) for column in zip(*((i.weights, i.start) for i in items), strict=True))
    output = policy(batch, kl="full", valued=False)  # logp and kl (B, T)
    per_token = offline_loss(output.logp, start, weights, batch.mask, POOR_LIMIT)
    weighed, kl = (average(each, batch.mask, "token", tokens) for each in (per_token, output.kl))
    return {"loss": weighed + KL_COEFFICIENT * kl, "kl": kl}


def _packed(policy: Policy, items: Sequence[WeightedAnswer]) -> TokenBatch:
    masks = [item.mask for item in items]
    return policy.pack([item.prompt for item in items], [item.target for item in items], masks)


def _spread(rows: Sequence[Sequence[float]], batch: TokenBatch) -> Tensor:
    """One number per response token, (B, T), 0 outside the mask."""
    spread = torch.zeros(batch.mask.shape)
    for place, row in enumerate(rows):
        spread[place, : len(row)] = torch.tensor(row)
    return spread.to(batch.mask.device)


def _refuse_diverged(metrics: dict[str, float]) -> None:
    refuse_not_finite(metrics)
    if metrics["kl"] > MAX_KL:
        raise FloatingPointError(
            f"the policy has diverged: {metrics['kl']:.1f} nats a token from its start, more than {MAX_KL:g}"
        )


def _described(policy: Policy, step: int, batch: Sequence[WeightedAnswer]) -> Iterator[dict[str, Any]]:
    """Each answer of a batch in words, with its loss under the present weights."""
    rows = in_words(policy, lambda item: loss_terms(policy, [item], item.own)["loss"], step, batch)
    for item, row in zip(batch, rows, strict=True):
        yield {**row, "weights": item.weights}
