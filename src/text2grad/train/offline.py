"""Train on logged answers and their critiques, without reward model, sampling or critic.

The credit schemes of PPO (`align.credit`) turn a critique into one number per token, which weighs
the loss of that token (`rl.offline`). A KL term keeps the policy close to its start. Nothing is
sampled, so rewards do not propagate to earlier tokens: PPO pays the verdict on the last token and
discounts it backwards; here a good verdict weighs every token of its answer equally.
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

from text2grad.align import Aligned, CreditSettings, TokenTable, credit, get_table, score_intervals
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
from text2grad.train.pairs import EncodedPair, plan_batches, refuse_long
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import OfflineSettings
from text2grad.train.supervised import Objective, describe_items, refuse_not_finite, train_batches

POOR_LIMIT = 10.0
"""Largest factor (1 - pi_0) / pi_0 of a poor token, reached where pi_0 is below 1 / 11."""
KL_COEFFICIENT = 0.1
"""Weight of the full KL to the start at every token."""
MAX_KL = 3.0
"""Nats per token from the start beyond which a run has diverged."""


@dataclass(frozen=True)
class LoggedAnswer:
    """A recorded answer and its critique.

    Attributes:
        id: names the answer in messages.
        response: the answer; in a `Transcript`, the policy's turns are trained on.
        ids: the sampled ids if known, for several turns one list per turn. They are used if this
            tokenizer decodes them to the response.
    """

    id: str
    prompt: tuple[Message, ...]
    response: str
    critique: Critique
    ids: tuple[Any, ...] = ()


@dataclass(frozen=True)
class WeightedAnswer(EncodedPair):
    """A logged answer as token ids; its `weights` may have any sign.

    Attributes:
        start_logps: log-probabilities of the policy's tokens before training.
        mask: True for the policy's tokens; None: all tokens.
    """

    start_logps: tuple[float, ...] = ()
    mask: list[bool] | None = None

    @property
    def token_count(self) -> int:
        """The number of the policy's tokens."""
        return len(self.target) if self.mask is None else sum(self.mask)


def train_offline(
    policy: Policy,
    answers: Sequence[LoggedAnswer],
    settings: OfflineSettings,
    credit_settings: CreditSettings,
    options: RunOptions,
) -> dict[str, float]:
    """Train `policy` in place on logged answers, and write it to the run's folder.

    The reference is the policy before training. An unfinished run in the folder is resumed; on one
    CPU the result equals that of an uninterrupted run bit for bit.

    Returns:
        The metrics of the last step.

    Raises:
        UserError: no token has a weight, an answer does not fit the context or cannot be read token
            by token, the policy has diverged, or an error of `durable.run.Run`.
    """
    weighted = encode_logged(policy, answers, credit_settings)
    if not any(weight for item in weighted for weight in item.weights):
        raise UserError(
            f"{options.title}: no token of {len(answers)} answers has a weight", "check the credit section"
        )
    identity = data_identity(policy, answers, settings, credit_settings)
    policy.freeze_reference()
    policy.eval()  # start_logps are computed without dropout, as in training
    weighted = add_start_logps(policy, weighted, settings.micro_batch_size)
    objective = Objective(
        identity=identity,
        gradient=partial(accumulate_gradient, policy),
        describe=partial(_describe_batch, policy),
        check=_refuse_diverged,
        dropout=False,  # both sides of the ratio and of the KL need the same network
    )
    batches = list(plan_batches(weighted, settings, options.seed))
    metrics = train_batches(policy, batches, objective, settings, options, "offline")
    policy.continued = True
    return metrics


def data_identity(
    policy: Policy, answers: Sequence[LoggedAnswer], settings: OfflineSettings, credit_settings: CreditSettings
) -> dict[str, str]:
    """Return the inputs that a run depends on, by name, large ones as digests."""
    turns = ((*answer.prompt, *conversation_of(answer.response)) for answer in answers)
    return {
        **flatten(offline=settings, credit=credit_settings),
        **hash_custom_code("the credit scheme", credit_settings.scheme),
        "the starting policy": hash_starting_weights(policy),
        "the logged answers": hash_data(policy, map(str, answers), itertools.chain.from_iterable(turns)),
    }


def encode_logged(
    policy: Policy, answers: Sequence[LoggedAnswer], credit_settings: CreditSettings
) -> list[WeightedAnswer]:
    """Return token ids and weights of all answers.

    Raises:
        UserError: an answer does not fit the context; answers are never truncated.
    """
    table = get_table(policy.tokenizer)
    weighted = [_encode_answer(policy, answer, table, credit_settings) for answer in answers]
    refuse_long(policy, [answer.id for answer in answers], weighted)
    return weighted


def _encode_answer(
    policy: Policy, answer: LoggedAnswer, table: TokenTable, credit_settings: CreditSettings
) -> WeightedAnswer:
    if isinstance(answer.response, Transcript):
        return _encode_transcript(policy, answer, table, credit_settings)
    ids, aligned = list(answer.ids), table.align(answer.ids)
    if not answer.ids or aligned.text != answer.response:  # no usable ids: as in supervised training
        ids = encode_target(policy.tokenizer, answer.response)
        aligned = table.align(ids)
    offset = aligned.text.find(answer.response)
    if offset < 0:
        raise _changed_text_error(answer)
    weights = token_weights(_shift_spans(answer.critique, offset), aligned, credit_settings)
    return WeightedAnswer(encode_prompt(policy.tokenizer, answer.prompt), ids, weights)


def _encode_transcript(
    policy: Policy, answer: LoggedAnswer, table: TokenTable, credit_settings: CreditSettings
) -> WeightedAnswer:
    """Encode the turns of a transcript that can be trained on (`policy.episode.Dialogue`).

    Spans and scores of other turns are dropped.
    """
    dialogue = encode_turns(policy.tokenizer, answer.prompt, answer.response, answer.ids)
    example = Example(id=answer.id, prompt=answer.prompt)
    tokens = read_policy_tokens(table, Trajectory(example, dialogue.ids, dialogue.mask, [*dialogue.between, ()]))
    trained = len(turns_of(tokens.response))
    first = turns_of(answer.response)[-trained].start  # the first character that is trained on
    if answer.response[first:] != str(tokens.response):
        raise _changed_text_error(answer)
    spans = tuple(span for span in answer.critique.spans if span.start >= first)
    remaining = {"spans": spans, "turn_scores": answer.critique.turn_scores[-trained:]}
    critique = _shift_spans(answer.critique.model_copy(update=remaining), -first)
    weights = np.zeros(len(dialogue.ids))
    weights[tokens.positions] = token_weights(critique, tokens.aligned, credit_settings)
    return WeightedAnswer(dialogue.prompt, dialogue.ids, weights.tolist(), mask=dialogue.mask)


def _changed_text_error(answer: LoggedAnswer) -> UserError:
    return UserError(
        f"{answer.id}: this tokenizer changes the text it reads, so tokens cannot be weighted",
        "use a model whose tokenizer keeps every character",
    )


def _shift_spans(critique: Critique, offset: int) -> Critique:
    spans = [s.model_copy(update={"start": s.start + offset, "end": s.end + offset}) for s in critique.spans]
    return critique.model_copy(update={"spans": tuple(spans)})


def token_weights(critique: Critique, aligned: Aligned, credit_settings: CreditSettings) -> list[float]:
    """Return the weight of each token, (T,): its delta plus a good verdict on the answer or turn.

    A poor verdict has no weight. Likelihood has the gradient 1 - pi and unlikelihood pi, so an
    answer that fails would take far more from tokens that are right and certain than an answer that
    passes could give back. Under schemes that pay only the score, only verdicts count.
    """
    weights = np.zeros(len(aligned))
    for start, end, score in score_intervals(critique, aligned):
        weights[start:end] += max(score, 0.0)
    if not credit_settings.by_score:
        # The verdict is weighed above; the credit scheme would pay it on the last token again.
        spans_only = credit_settings.model_copy(update={"outcome_weight": 0.0})
        weights += credit(critique, aligned, spans_only).delta
    return [float(weight) for weight in weights]


def add_start_logps(policy: Policy, weighted: Sequence[WeightedAnswer], rows: int) -> list[WeightedAnswer]:
    """Return the answers with their log-probabilities under the present policy.

    `rows` answers of similar length are read at a time.
    """
    order = sorted(range(len(weighted)), key=lambda index: weighted[index].tokens)
    result = list(weighted)
    for first in range(0, len(order), rows):
        indices = order[first : first + rows]
        items = [weighted[index] for index in indices]
        # By the forward pass of training: pi = pi_0 at first, so the gradient is Definition 1.
        with policy.evaluating():
            logp = policy(_pack(policy, items), valued=False).logp  # (rows, T)
        for index, item, row in zip(indices, items, logp.tolist(), strict=True):
            result[index] = replace(item, start_logps=tuple(row[: len(item.target)]))
    return result


def accumulate_gradient(policy: Policy, batch: Sequence[WeightedAnswer], size: PassSize) -> dict[str, float]:
    """Add the gradient of a batch's mean loss per token to the policy's; return the loss terms."""
    ordered = sorted(batch, key=lambda item: item.tokens)
    tokens = sum(item.token_count for item in batch)  # the denominator, over the whole batch

    def terms(items: Sequence[WeightedAnswer]) -> tuple[Tensor, dict[str, Tensor]]:
        shares = loss_terms(policy, items, tokens)
        return shares["loss"], shares

    return accumulate(policy, ordered, terms, size)


def loss_terms(policy: Policy, items: Sequence[WeightedAnswer], tokens: int) -> dict[str, Tensor]:
    """Return the share of some answers in the loss of a batch of `tokens`: `loss`, and its `kl`.

    The KL is over the whole vocabulary: estimates from single tokens are unbiased only for tokens
    that the policy sampled itself.
    """
    batch = _pack(policy, items)
    weights = _to_tensor([item.weights for item in items], batch)  # (B, T)
    start_logps = _to_tensor([item.start_logps for item in items], batch)  # (B, T)
    output = policy(batch, kl="full", valued=False)  # logp and kl (B, T)
    per_token = offline_loss(output.logp, start_logps, weights, batch.mask, POOR_LIMIT)
    weighted_loss, kl = (average(column, batch.mask, tokens) for column in (per_token, output.kl))
    return {"loss": weighted_loss + KL_COEFFICIENT * kl, "kl": kl}


def _pack(policy: Policy, items: Sequence[WeightedAnswer]) -> TokenBatch:
    masks = [item.mask for item in items]
    return policy.pack([item.prompt for item in items], [item.target for item in items], masks)


def _to_tensor(rows: Sequence[Sequence[float]], batch: TokenBatch) -> Tensor:
    """Return rows of one number per response token as (B, T), padded with 0."""
    padded = torch.zeros(batch.mask.shape)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row)
    return padded.to(batch.mask.device)


def _refuse_diverged(metrics: dict[str, float]) -> None:
    refuse_not_finite(metrics)
    if metrics["kl"] > MAX_KL:
        raise FloatingPointError(
            f"the policy has diverged: {metrics['kl']:.1f} nats a token from its start, more than {MAX_KL:g}"
        )


def _describe_batch(policy: Policy, step: int, batch: Sequence[WeightedAnswer]) -> Iterator[dict[str, Any]]:
    """Yield each answer of a batch as text, with its present loss and its weights."""
    rows = describe_items(policy, lambda item: loss_terms(policy, [item], item.token_count)["loss"], step, batch)
    for item, row in zip(batch, rows, strict=True):
        yield {**row, "weights": item.weights}
