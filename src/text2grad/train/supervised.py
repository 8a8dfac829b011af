"""Fine-tune on pairs by the next-token loss on the answer (paper, section 3.4: the reward model).

The same loop trains the SFT policy on responses and the reward model on z = [critique ; span map].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Generic, Literal, NamedTuple

import torch
from torch import Tensor

from text2grad.durable.identity import flatten, hash_data
from text2grad.durable.run import Cures, Run, RunOptions
from text2grad.durable.state import Training
from text2grad.errors import UserError
from text2grad.feedback import conversation_of
from text2grad.named import call_user_code, load_named
from text2grad.policy.batch import TokenBatch
from text2grad.policy.heads.head import (
    STEP_OF_LABELS,
    STEP_OF_VERDICTS,
    UNLABELLED,
    Head,
    label_loss,
    verdict_loss,
)
from text2grad.policy.load import add_head
from text2grad.policy.model import Policy
from text2grad.train.optimizers import add_master_weights, clip_gradient, learning_rate_factor, refuse_float16
from text2grad.train.pairs import E, EncodedPair, Pair, encode_pairs, plan_batches, supervised_identity
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import ADAMW, NextTokenSettings, SupervisedSettings
from text2grad.train.watch.steps import LossFloor

CHECKPOINT_EVERY = 200
"""Steps between checkpoints, unless the run sets them."""
DIVERGED = 2.0
"""A loss this many times that of a uniform guess stops the run."""


class Heads(NamedTuple):
    """The heads trained and saved with the policy (`policy.heads`).

    Attributes:
        label_weight: weight of the label head's loss on marked texts; 0: no label head.
        verdicts: a head learns the scores of the pairs.
        spans: the label head marks the spans, as a tagger.
    """

    label_weight: float = 0.0
    verdicts: bool = False
    spans: bool = False


NO_HEADS = Heads()


def train_supervised(
    policy: Policy,
    pairs: Sequence[Pair],
    settings: SupervisedSettings,
    options: RunOptions,
    section: str = "sft",
    stopping: LossFloor | None = None,
    heads: Heads = NO_HEADS,
) -> dict[str, float]:
    """Train `policy` in place on pairs, and write it to the run's folder.

    An unfinished run in the folder is resumed; on one CPU the result equals that of an
    uninterrupted run bit for bit.

    Args:
        section: the section of the configuration that has `settings`, for messages.
        stopping: ends the run early once the loss is low enough.

    Returns:
        The metrics of the last step.

    Raises:
        UserError: there are no pairs, a pair does not fit the context, the loss is not finite or
            has diverged, or an error of `durable.run.Run`.
    """
    refuse_empty(pairs, options)
    encoded = encode_pairs(policy, pairs)
    labels: Literal["span_head", "label_head"] = "span_head" if heads.spans else "label_head"
    objective = Objective(
        identity=supervised_identity(policy, settings, section, data_identity(policy, pairs, heads)),
        gradient=partial(accumulate_gradient, policy, label_weight=heads.label_weight),
        describe=partial(describe_items, policy, lambda item: _loss_sums(policy, [item]).loss / sum(item.weights)),
        # A uniform distribution over V tokens has a loss of log V nats a token.
        check=partial(refuse_diverged, guessing=math.log(len(policy.tokenizer))),
        heads=[
            *([add_head(policy, labels, STEP_OF_LABELS)] if heads.label_weight else []),
            *([add_head(policy, "score_head", STEP_OF_VERDICTS)] if heads.verdicts else []),
        ],
    )
    batches = list(plan_batches(encoded, settings, options.seed))
    metrics = train_batches(policy, batches, objective, settings, options, section, stopping)
    policy.continued = True
    return metrics


def data_identity(policy: Policy, pairs: Sequence[Pair], heads: Heads = NO_HEADS) -> dict[str, str]:
    """Return digests of the pairs and the choice of heads, by name."""
    turns = itertools.chain.from_iterable((*pair.prompt, *conversation_of(pair.target)) for pair in pairs)
    return {
        "the training pairs": hash_data(policy, map(str, pairs), turns),
        **({"reward_model.label_weight": str(heads.label_weight)} if heads.label_weight else {}),
        **({"reward_model.score_head": "true"} if heads.verdicts else {}),
        **({"reward_model.kind": "tagger"} if heads.spans else {}),
    }


def refuse_not_finite(metrics: dict[str, float]) -> None:
    """Raise a `FloatingPointError` if the loss or the gradient of a step is not finite."""
    if not math.isfinite(sum(metrics.values())):
        raise FloatingPointError("the loss is not finite, no parameter was changed by it")


@dataclass(frozen=True)
class Objective(Generic[E]):
    """The loss that a supervised run minimises, over batches of any kind.

    Attributes:
        identity: the inputs of the run, by name.
        gradient: adds a batch's gradient to the policy's and returns its metrics with `loss`.
        describe: yields the batch of a step as records, written when a number is not finite.
        check: raises FloatingPointError for metrics that forbid a step.
        heads: trained with the policy, each by its own optimizer.
    """

    identity: Mapping[str, str]
    gradient: Callable[[Sequence[E], PassSize], dict[str, float]]
    describe: Callable[[int, Sequence[E]], Iterator[dict[str, Any]]]
    check: Callable[[dict[str, float]], None] = refuse_not_finite
    dropout: bool = True
    heads: Sequence[Head] = ()


def train_batches(
    policy: Policy,
    batches: Sequence[Sequence[E]],
    objective: Objective[E],
    settings: SupervisedSettings,
    options: RunOptions,
    section: str,
    stopping: LossFloor | None = None,
) -> dict[str, float]:
    """Take one gradient step per batch, in a run's folder; return the metrics of the last step.

    Raises:
        UserError: the loss is not finite, the objective's check failed, or an error of
            `durable.run.Run`.
    """
    optimizers = [
        make_optimizer(policy, settings, options.course.weight_decay),
        *(head.optimizer() for head in objective.heads),
    ]
    # For the trunk alone: heads start at zero, and with its warm-up and clipping they learned less
    # (lab/book/reward-models.md).
    factor = learning_rate_factor(options.course.schedule, options.course.warmup, len(batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[0], factor)
    training = Training(policy, optimizers, schedule, keeper=stopping)
    size = PassSize(settings.micro_batch_size, f"{section}.micro_batch_size")
    cures = Cures(
        memory=f"lower {section}.micro_batch_size ({settings.micro_batch_size})",
        numbers=f"lower {section}.lr ({settings.lr:g})",
    )
    identity = {**objective.identity, **flatten(training=options.course)}
    metrics: dict[str, float] = {}
    with Run(options, len(batches), training, identity, cures, CHECKPOINT_EVERY) as run:
        policy.train(objective.dropout)
        for step, batch in run.steps(batches):
            with run.guard_step(partial(objective.describe, step, batch)):
                metrics = objective.gradient(batch, size)
                metrics["grad_norm"] = clip_gradient(policy.policy_parameters())
                objective.check(metrics)
            for optimizer in optimizers:
                optimizer.step()
            policy.zero_grad(set_to_none=True)
            metrics["lr"] = float(schedule.get_last_lr()[0])
            schedule.step()
            if stopping:
                stopping.add(metrics["loss"])
            run.record_metrics(step, metrics)
            if stopping and stopping.reached:
                break
        if stopping:
            metrics["steps"] = step + 1
        policy.eval()
    return metrics


def make_optimizer(
    policy: Policy, settings: SupervisedSettings, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Make the optimizer of the settings over all trained parameters, with master weights.

    Raises:
        UserError: the policy is in float16, or there is no such optimizer.
    """
    refuse_float16(policy)
    optimizer = plain_optimizer(policy, settings, weight_decay)
    add_master_weights(optimizer, policy)
    return optimizer


def plain_optimizer(policy: Policy, settings: SupervisedSettings, weight_decay: float) -> torch.optim.Optimizer:
    """Make the optimizer of the settings without master weights."""
    if isinstance(settings, NextTokenSettings) and settings.optimizer != ADAMW:
        make = load_named("optimizer", settings.optimizer, kinds=(FunctionType,))
        optimizer: torch.optim.Optimizer = call_user_code(
            "return a torch optimizer", make, policy.model, settings.lr, weight_decay
        )
        return optimizer
    weights = policy.policy_parameters()
    return torch.optim.AdamW(weights, lr=settings.lr, weight_decay=weight_decay, fused=True)


def refuse_empty(data: Sequence[object], options: RunOptions) -> None:
    """Raise a `UserError` if there are no data to train on."""
    if not data:
        raise UserError(f"{options.title}: nothing to train on", "check the data file and the split")


def refuse_diverged(metrics: dict[str, float], guessing: float) -> None:
    """Raise FloatingPointError if the loss is not finite or far above `guessing` (nats a token)."""
    refuse_not_finite(metrics)
    if metrics["loss"] > DIVERGED * guessing:
        raise FloatingPointError(
            f"the training has diverged: the loss is {metrics['loss']:.1f} a token, that of guessing {guessing:.1f}"
        )


def describe_items(
    policy: Policy, compute_loss: Callable[[E], Tensor], step: int, batch: Sequence[E]
) -> Iterator[dict[str, Any]]:
    """Yield each item of a batch as text with its present loss, None if that is not finite."""
    for item in batch:
        with policy.evaluating():
            loss = float(compute_loss(item))
        texts = {name: policy.tokenizer.decode(ids) for name, ids in item.parts.items()}
        yield {"step": step, "loss": loss if math.isfinite(loss) else None, **texts}


def accumulate_gradient(
    policy: Policy, batch: Sequence[EncodedPair], size: PassSize, label_weight: float = 0.0
) -> dict[str, float]:
    """Add the gradient of the batch's weighted token-mean loss to the policy's; return the loss.

    With `label_weight`, the mean loss of the label head over labelled prompt tokens is added and
    returned as `label_loss`. With a score head, its mean loss over answers with a score is added
    and returned as `score_loss`.
    """
    ordered = sorted(batch, key=lambda item: item.tokens)
    # Denominators of the whole batch, so that the size of a pass changes nothing.
    tokens = sum(sum(item.weights) for item in batch)
    labelled = max(1, sum(label != UNLABELLED for item in batch for label in item.labels))  # tokens
    scored = max(1, sum(item.score is not None for item in batch))  # answers

    def terms(items: Sequence[EncodedPair]) -> tuple[Tensor, dict[str, Tensor]]:
        sums = _loss_sums(policy, items, label_weight > 0)
        shares = {"loss": sums.loss / tokens}
        total = shares["loss"]
        if sums.labels is not None:
            shares["label_loss"] = sums.labels / labelled
            total = total + label_weight * shares["label_loss"]
        if sums.scores is not None:
            shares["score_loss"] = sums.scores / scored
            total = total + shares["score_loss"]
        return total, shares

    return accumulate(policy, ordered, terms, size)


class _Sums(NamedTuple):
    """Summed losses of answer tokens, of labels of prompt tokens, and of scores; scalars."""

    loss: Tensor
    labels: Tensor | None
    scores: Tensor | None


def _loss_sums(policy: Policy, items: Sequence[EncodedPair], with_labels: bool = False) -> _Sums:
    batch = policy.pack([item.prompt for item in items], [item.target for item in items])
    weights = torch.zeros(batch.mask.shape)  # (B, T), 0 on padding and on the words of others
    for row, item in enumerate(items):
        weights[row, : len(item.weights)] = torch.tensor(item.weights)
    output = policy(batch, valued=False, layers=with_labels)
    labels = _label_loss(policy, items, batch, output.layers) if with_labels else None
    scores = None
    if policy.score_head is not None:
        targets = [math.nan if item.score is None else item.score for item in items]  # (B,), NaN: no target
        # (B, H), the state before z: it has read the judged answer. A state after z would also have
        # read the annotator's spans, which give the score away.
        scores = verdict_loss(policy.score_head, output.before, torch.tensor(targets, device=policy.device))
    return _Sums(-(output.logp * weights.to(policy.device)).sum(), labels, scores)


def _label_loss(
    policy: Policy, items: Sequence[EncodedPair], batch: TokenBatch, layers: Sequence[Tensor]
) -> Tensor:
    labels = torch.full(batch.input_ids.shape, UNLABELLED)  # (B, P + T)
    width = batch.input_ids.shape[1] - batch.width  # P, the padded length of the prompts
    for row, item in enumerate(items):  # prompts are padded on the left
        labels[row, width - len(item.labels) : width] = torch.tensor(item.labels, dtype=torch.long)
    head = policy.span_head or policy.label_head
    assert head is not None
    return label_loss(head, layers, labels.to(batch.input_ids.device))
