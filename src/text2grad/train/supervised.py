"""Supervised fine-tuning: next-token loss on the answer alone (paper, section 3.4 for the reward model).

The same loop trains the SFT policy on responses and the reward model on z = [critique ; span map].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple

import torch
from torch import Tensor

from text2grad.durable.identity import digest_of_reference, digest_of_texts, flatten
from text2grad.durable.run import Cures, Run, RunOptions
from text2grad.durable.state import Training
from text2grad.errors import UserError
from text2grad.feedback import Message
from text2grad.policy.batch import TokenBatch
from text2grad.policy.encode import rendering_of
from text2grad.policy.heads.label_head import UNLABELLED, LabelHead
from text2grad.policy.heads.score_head import STEP_OF_VERDICTS, ScoreHead
from text2grad.policy.model import Policy
from text2grad.train.optimizers import clip_gradient, learning_rate_factor, make_optimizer
from text2grad.train.pairs import E, Encoded, Pair, encode_pairs, plan_batches
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import SupervisedSettings
from text2grad.train.stopping import EarlyStopping, LossFloor

DIVERGED = 2.0
"""A loss this many times that of guessing among all tokens stops the run."""


def train_supervised(
    policy: Policy,
    pairs: Sequence[Pair],
    settings: SupervisedSettings,
    options: RunOptions,
    section: str = "sft",
    stopping: EarlyStopping | LossFloor | None = None,
    label_weight: float = 0.0,
    verdicts: bool = False,
) -> dict[str, float]:
    """Train in place and write the policy to the run's folder; returns the last metrics.

    An unfinished run in the folder is resumed; on one CPU it ends as if it had never stopped, bit for bit. Each of
    several processes calls this with the same arguments. `section` is where the user finds `settings`. With
    `stopping` the run may end early, and the policy is the one that measured best, or the last one. `label_weight`
    is that of the label head's loss on marked texts (`policy.heads`); 0: no such head. `verdicts`: the scores
    of the pairs are learned by a head (`policy.heads`), which is saved with the policy.

    Raises:
        UserError: there is nothing to train on, a pair does not fit the context, the loss is not finite or that
            of a model which has diverged, or what `durable.run.Run` refuses.
    """
    refuse_nothing(pairs, options)
    encoded = encode_pairs(policy, pairs, settings)
    objective = Objective(
        identity=identity_of(policy, pairs, settings, section, label_weight, verdicts),
        gradient=partial(accumulate_gradient, policy, label_weight=label_weight),
        described=partial(_described, policy),
        check=partial(_refuse_diverged, guessing=math.log(len(policy.tokenizer))),
        heads=[
            *([policy.add_label_head()] if label_weight else []),
            *([policy.add_score_head(STEP_OF_VERDICTS)] if verdicts else []),
        ],
    )
    batches = list(plan_batches(encoded, settings, options.seed))
    metrics = descend(policy, batches, objective, settings, options, section, stopping)
    policy.continued = True
    return metrics


def refuse_not_finite(metrics: dict[str, float]) -> None:
    """Stop before a step on a loss or gradient that is not finite."""
    if not math.isfinite(sum(metrics.values())):
        raise FloatingPointError("the loss is not finite, no parameter was changed by it")


@dataclass(frozen=True)
class Objective(Generic[E]):
    """What a supervised run minimises, over batches of anything.

    `gradient` adds a batch's gradient to the policy's and returns its metrics, `loss` among them; `described` gives
    the batch of a step in words, for when a number is not finite; `check` raises FloatingPointError for metrics
    with which no step may be made. `dropout`: whether it is on. `heads` are trained beside the policy, each by an
    optimizer of its own. `identity`: what the run depends on.
    """

    identity: Mapping[str, str]
    gradient: Callable[[Sequence[E], PassSize], dict[str, float]]
    described: Callable[[int, Sequence[E]], Iterator[dict[str, Any]]]
    check: Callable[[dict[str, float]], None] = refuse_not_finite
    dropout: bool = True
    heads: Sequence[LabelHead | ScoreHead] = ()


def descend(
    policy: Policy,
    batches: Sequence[Sequence[E]],
    objective: Objective[E],
    settings: SupervisedSettings,
    options: RunOptions,
    section: str,
    stopping: EarlyStopping | LossFloor | None = None,
) -> dict[str, float]:
    """One gradient step for each batch, in a run's folder; returns the last metrics. Changes the policy in place.

    Raises:
        UserError: the loss is not finite, the objective's check fails, or what `durable.run.Run` refuses.
    """
    ranks, title = options.ranks, options.title
    if ranks.sharded and settings.optimizer == "muon":
        raise UserError(f"{title}: muon needs whole matrices", f"--run.parallel ddp, or {section}.optimizer adamw")
    ranks.broadcast_weights(policy)
    optimizers = [make_optimizer(policy, settings), *(head.optimizer() for head in objective.heads)]
    factor = learning_rate_factor(settings.schedule, settings.warmup, len(batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizers[0], factor)
    training = Training(policy, optimizers, schedule, keeper=stopping)
    size = PassSize(settings.micro_batch_size, f"{section}.micro_batch_size", ranks)
    memory, numbers = f"{section}.micro_batch_size ({settings.micro_batch_size})", f"{section}.lr ({settings.lr:g})"
    cures = Cures(f"lower {memory}", f"lower {numbers}")
    metrics: dict[str, float] = {}
    with Run(options, len(batches), training, objective.identity, cures, settings.checkpoint_every) as run:
        policy.train(objective.dropout)
        for step, batch in run.steps(batches):
            with run.guarding(partial(objective.described, step, batch)):
                metrics = objective.gradient(batch, size)
                metrics["grad_norm"] = clip_gradient(policy.policy_parameters(), settings.max_grad_norm)
                objective.check(metrics)
            if stopping and stopping.due(step + 1, len(batches)):  # it measures the changed policy
                run.changing()
            for optimizer in optimizers:
                optimizer.step()
            policy.zero_grad(set_to_none=True)
            metrics["lr"] = float(schedule.get_last_lr()[0])
            schedule.step()
            if stopping:
                metrics |= stopping.look(step + 1, len(batches), metrics["loss"])
            run.note(step, metrics)
            if stopping and stopping.over:
                break
        if stopping:
            metrics |= {"steps": step + 1, **stopping.restore_best()}
        policy.eval()
    return metrics


def refuse_nothing(data: Sequence[object], options: RunOptions) -> None:
    """Raises UserError: there is no data."""
    if not data:
        raise UserError(f"{options.title}: nothing to train on", "check the data file and the split")


def refuse_muon(settings: SupervisedSettings, options: RunOptions, section: str) -> None:
    """Raises UserError: muon is to train a model that is read by a head of its own."""
    if settings.optimizer == "muon":
        problem = "muon trains every layer, and a model that is read by a head of its own has no use for the last"
        raise UserError(f"{options.title}: {problem}", f"--{section}.optimizer adamw")


def longest(policy: Policy, settings: SupervisedSettings) -> int | None:
    """The longest sequence that can be trained on, in tokens; None: any."""
    return min((n for n in (policy.context, settings.max_length) if n is not None), default=None)


def identity_of(
    policy: Policy,
    pairs: Sequence[Pair],
    settings: SupervisedSettings,
    section: str,
    label_weight: float,
    verdicts: bool,
) -> dict[str, str]:
    """What a run depends on, by name; large things as digests."""
    turns = ((*pair.prompt, Message(role="assistant", content=pair.target)) for pair in pairs)
    said = rendering_of(policy.tokenizer, itertools.chain.from_iterable(turns))
    return {
        **flatten({f"{section}.checkpoint_every"}, **{section: settings}),
        "the starting model": digest_of_reference(policy),
        "the training pairs": digest_of_texts([*map(str, pairs), *said]),
        **({"reward_model.label_weight": str(label_weight)} if label_weight else {}),
        **({"reward_model.verdict": "head"} if verdicts else {}),
    }


def _refuse_diverged(metrics: dict[str, float], guessing: float) -> None:
    """Stop before a step on losses that are not finite, or far above that of `guessing` (nats a token)."""
    refuse_not_finite(metrics)
    if metrics["loss"] > DIVERGED * guessing:
        raise FloatingPointError(
            f"the training has diverged: a loss of {metrics['loss']:.1f} a token, and guessing has {guessing:.1f}"
        )


def _described(policy: Policy, step: int, batch: Sequence[Encoded]) -> Iterator[dict[str, Any]]:
    """Each pair of a batch in words, with its loss per token under the present weights; None: it is not finite."""
    for item in batch:
        with policy.evaluating():
            loss = float(_loss_sums(policy, [item]).loss) / sum(item.weights)
        prompt, target = policy.tokenizer.decode(item.prompt), policy.tokenizer.decode(item.target)
        yield {"step": step, "loss": loss if math.isfinite(loss) else None, "prompt": prompt, "target": target}


def accumulate_gradient(
    policy: Policy, batch: Sequence[Encoded], size: PassSize, label_weight: float = 0.0
) -> dict[str, float]:
    """Add the gradient of the batch's (weighted) token-mean loss; returns it. Similar lengths share a pass.

    With `label_weight` the mean loss over labelled tokens of the prompts is added, and returned as `label_loss`;
    where the policy has a score head that over the answers with a score, as `score_loss`.
    """
    ordered = sorted(batch, key=lambda item: item.tokens)
    tokens = sum(sum(item.weights) for item in batch)
    labelled = max(1, sum(label != UNLABELLED for item in batch for label in item.labels))
    scored = max(1, sum(item.score is not None for item in batch))

    def terms(items: Sequence[Encoded]) -> tuple[Tensor, dict[str, Tensor]]:
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
    """Summed losses: of the answers' tokens, of the labels of the prompts' if asked for, and of the scores where
    the policy has a head for them."""

    loss: Tensor
    labels: Tensor | None
    scores: Tensor | None


def _loss_sums(policy: Policy, items: Sequence[Encoded], with_labels: bool = False) -> _Sums:
    batch = policy.pack([item.prompt for item in items], [item.target for item in items])
    weights = torch.zeros(batch.mask.shape)
    for row, item in enumerate(items):
        weights[row, : len(item.weights)] = torch.tensor(item.weights)
    logp, before, layers = policy.logps(batch, every=with_labels)
    labels = _label_loss(policy, items, batch, layers) if with_labels else None
    scores = None
    if policy.score_head is not None:
        known = [math.nan if item.score is None else item.score for item in items]
        scores = policy.score_head.loss(before, torch.tensor(known, device=before.device))
    return _Sums(-(logp * weights.to(logp.device)).sum(), labels, scores)


def _label_loss(policy: Policy, items: Sequence[Encoded], batch: TokenBatch, layers: Sequence[Tensor]) -> Tensor:
    labels = torch.full(batch.input_ids.shape, UNLABELLED)
    width = batch.input_ids.shape[1] - batch.width
    for row, item in enumerate(items):  # prompts are padded on the left
        labels[row, width - len(item.labels) : width] = torch.tensor(item.labels, dtype=torch.long)
    assert policy.label_head is not None
    return policy.label_head.loss(layers, labels.to(batch.input_ids.device))
