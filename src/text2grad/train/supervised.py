"""Supervised fine-tuning: next-token loss on the answer alone (paper, section 3.4 for the reward model).

The same loop trains the SFT policy on responses and the reward model on z = [critique ; span map].
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from text2grad.align import Aligned, TokenTable, token_labels
from text2grad.errors import UserError
from text2grad.feedback import Message, Span
from text2grad.policy.encode import check_lengths, encode_prompt, encode_target
from text2grad.policy.model import Policy, TokenBatch, pack
from text2grad.policy.shard import whole
from text2grad.train.guard import PassSize, refuse_float16
from text2grad.train.labels import UNLABELLED, LabelLoss
from text2grad.train.muon import muon_for
from text2grad.train.ranks import ALONE, Ranks
from text2grad.train.run import AUTO, OnStep, Resume, Run, learning_rate_factor
from text2grad.train.settings import SupervisedSettings
from text2grad.train.state import Training, digest_of_reference, digest_of_texts, flatten
from text2grad.train.stopping import EarlyStopping

LENGTH_POOL = 16
DIVERGED = 2.0
"""A loss so many times that of guessing among all tokens stops the run."""


@dataclass(frozen=True)
class Marked:
    """A text that stands at character `start` of the last turn of a prompt, and spans of it."""

    start: int
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Pair:
    """One training pair: a conversation and the answer to learn.

    `emphasis`: (start, end, weight) of characters of the target whose tokens count `weight` times in the loss.
    `marked`: a text in the prompt whose words are labelled, for a second loss (`train.labels`).
    """

    id: str
    prompt: tuple[Message, ...]
    target: str
    emphasis: tuple[tuple[int, int, float], ...] = ()
    marked: Marked | None = None


@dataclass(frozen=True)
class Encoded:
    """A pair as token ids; the loss is on `target` only, where each token has its weight.

    `labels`: of the tokens of the prompt, +1, -1, 0 or `UNLABELLED`; none where no second loss is wanted.
    """

    prompt: list[int]
    target: list[int]
    weights: list[float]
    labels: list[int] = field(default_factory=list)


def train_supervised(
    policy: Policy,
    pairs: Sequence[Pair],
    settings: SupervisedSettings,
    folder: Path,
    seed: int,
    title: str,
    heldout: Sequence[Pair] = (),
    on_step: OnStep | None = None,
    resume: Resume = AUTO,
    section: str = "sft",
    stopping: EarlyStopping | None = None,
    ranks: Ranks = ALONE,
    marking: LabelLoss | None = None,
) -> dict[str, float]:
    """Train in place and write the policy to `folder`; returns the last metrics.

    `section` is where the user finds `settings`. With `stopping` the run may end early, and the policy is the one
    that measured best. `heldout` pairs are only measured, at the end. The loss is the mean over the answer tokens
    of the whole optimizer step, so that accumulation over micro-batches does not change the gradient. An unfinished
    run in `folder` is gone on with; on one CPU it ends as if it had never stopped, bit for bit. Of several
    processes (`ranks`) each calls this with the same arguments. `marking` adds the loss of `train.labels` for
    pairs that have a marked text.

    Raises:
        UserError: there is nothing to train on, a pair does not fit the context, the loss is not a number or that
            of a model which has diverged, or what `train.run.Run` refuses.
    """
    if not pairs:
        raise UserError(f"{title}: nothing to train on", "check the data file and the split")
    encoded = encode_pairs(policy, pairs, settings)
    batches = list(plan_batches(encoded, settings, seed))
    identity = identity_of(policy, encoded, settings, seed, section) | (marking.identity() if marking else {})
    if ranks.sharded and settings.optimizer == "muon":
        raise UserError(f"{title}: muon needs whole matrices", f"--run.parallel ddp, or {section}.optimizer adamw")
    if marking:
        marking.prepare(policy)
    ranks.spread(policy)
    parameters = policy.policy_parameters()
    optimizer = make_optimizer(policy, settings)
    optimizers = [optimizer, marking.optimizer(policy)] if marking else [optimizer]
    factor = learning_rate_factor(settings.schedule, settings.warmup, len(batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    training = Training(policy, optimizers, schedule, keeper=stopping)
    size = PassSize(settings.micro_batch_size, f"{section}.micro_batch_size", fixed=ranks.sharded)
    guessing = math.log(len(policy.tokenizer))
    metrics: dict[str, float] = {}
    with Run(
        *(folder, title, len(batches), training, identity, resume),
        every=settings.checkpoint_every,
        memory=f"lower {section}.micro_batch_size ({settings.micro_batch_size})",
        numbers=f"lower {section}.lr ({settings.lr:g})",
        ranks=ranks,
    ) as run:
        policy.train()
        for step, batch in run.steps(batches):
            with run.keeping(functools.partial(_described, policy, step, batch)):
                losses = accumulate_gradient(policy, batch, size, ranks, marking)
                norm = float(whole(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)))
                if not math.isfinite(sum(losses.values()) + norm):
                    raise FloatingPointError("the loss is not a number, no parameter was changed by it")
                if losses["loss"] > DIVERGED * guessing:
                    raise FloatingPointError(
                        f"the training has diverged: a loss of {losses['loss']:.1f} a token, and guessing has"
                        f" {guessing:.1f}"
                    )
            for each in optimizers:
                each.step()
                each.zero_grad(set_to_none=True)
            metrics = {**losses, "grad_norm": norm, "lr": float(schedule.get_last_lr()[0])}
            schedule.step()
            if stopping:
                metrics |= stopping.look(step + 1, len(batches))
            run.log.metrics(step, metrics)
            if on_step:
                on_step(step, metrics)
            if stopping and stopping.over:
                break
        if stopping:
            metrics |= {"steps": step + 1, **stopping.restore_best()}
        policy.eval()
    if heldout:
        metrics["heldout_loss"] = measure_loss(policy, encode_pairs(policy, heldout, settings), settings)
    return metrics


def identity_of(
    policy: Policy, encoded: Sequence[Encoded], settings: SupervisedSettings, seed: int, section: str
) -> dict[str, str]:
    """What a run depends on, by name; large things as digests."""
    return {
        **flatten({f"{section}.checkpoint_every"}, **{section: settings}),
        "run.seed": str(seed),
        "the starting model": digest_of_reference(policy),
        "the training pairs": digest_of_texts(str(item) for item in encoded),
    }


def _described(policy: Policy, step: int, batch: Sequence[Encoded]) -> Iterator[dict[str, Any]]:
    """Each pair of a batch in words, with its loss per token under the present weights."""
    for item in batch:
        with policy.evaluating():
            loss = float(_loss_sums(policy, [item])[0]) / sum(item.weights)
        prompt, target = policy.tokenizer.decode(item.prompt), policy.tokenizer.decode(item.target)
        yield {"step": step, "loss": loss, "prompt": prompt, "target": target}


def make_optimizer(policy: Policy, settings: SupervisedSettings) -> torch.optim.Optimizer:
    """The optimizer that the settings name, over all that the policy trains.

    Raises:
        UserError: the policy is in float16.
    """
    refuse_float16(policy.parameters())
    if settings.optimizer == "muon":
        return muon_for(policy.model, settings.lr, settings.weight_decay)
    parameters = policy.policy_parameters()
    return torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)


def encode_pairs(policy: Policy, pairs: Sequence[Pair], settings: SupervisedSettings) -> list[Encoded]:
    """Token ids of all pairs; refuses pairs that do not fit, and cuts nothing."""
    table = TokenTable(policy.tokenizer) if any(pair.emphasis or pair.marked for pair in pairs) else None
    encoded = [_encoded(policy, pair, table) for pair in pairs]
    limit = min((n for n in (policy.context, settings.max_length) if n is not None), default=None)
    whole = [(pair.id, [*item.prompt, *item.target]) for pair, item in zip(pairs, encoded, strict=True)]
    check_lengths(whole, limit, 0)
    return encoded


def _encoded(policy: Policy, pair: Pair, table: TokenTable | None) -> Encoded:
    target = encode_target(policy.tokenizer, pair.target)
    weights = [1.0] * len(target)
    if pair.emphasis and table is not None:
        aligned = table.align(target)
        shift = aligned.text.find(pair.target)
        if shift < 0:
            raise UserError(
                f"{pair.id}: this tokenizer changes the text it reads, so no words can be weighted",
                "reward_model.poor_weight 1",
            )
        for start, end, weight in pair.emphasis:
            inside = (aligned.starts < end + shift) & (aligned.ends > start + shift)
            weights = [weight if chosen else kept for kept, chosen in zip(weights, inside, strict=True)]
    prompt = encode_prompt(policy.tokenizer, pair.prompt)
    labels = prompt_labels(pair, table.align(prompt)) if pair.marked and table is not None else []
    return Encoded(prompt, target, weights, labels)


def prompt_labels(pair: Pair, aligned: Aligned) -> list[int]:
    """The label of every token of the prompt: that of the spans of the marked text, `UNLABELLED` outside it.

    Raises:
        UserError: the text that the tokens spell is another.
    """
    marked, turn = pair.marked, pair.prompt[-1].content
    assert marked is not None
    said = turn.strip()  # chat templates strip turns
    start = aligned.text.rfind(said) + marked.start - (len(turn) - len(turn.lstrip()))
    end = start + len(marked.text)
    if said not in aligned.text or aligned.text[start:end] != marked.text:
        raise UserError(
            f"{pair.id}: this tokenizer changes the text it reads, so no words can be labelled",
            "reward_model.label_weight 0",
        )
    spans = [s.model_copy(update={"start": s.start + start, "end": s.end + start}) for s in marked.spans]
    inside = (aligned.starts < end) & (aligned.ends > start)
    labels = token_labels(spans, aligned)
    return [int(label) if here else UNLABELLED for label, here in zip(labels, inside, strict=True)]


def plan_batches(encoded: Sequence[Encoded], settings: SupervisedSettings, seed: int) -> Iterator[list[Encoded]]:
    """Optimizer steps: every epoch a new order, batches of similar length (less padding), in random order."""
    rng = random.Random(seed)
    total = max(1, round(settings.epochs * len(encoded) / settings.batch_size))
    while total > 0:
        order = rng.sample(list(encoded), len(encoded))
        pool = settings.batch_size * LENGTH_POOL
        batches: list[list[Encoded]] = []
        for start in range(0, len(order), pool):
            near = sorted(order[start : start + pool], key=lambda item: len(item.prompt) + len(item.target))
            batches += [near[i : i + settings.batch_size] for i in range(0, len(near), settings.batch_size)]
        rng.shuffle(batches)
        yield from batches[:total]
        total -= len(batches)


def accumulate_gradient(
    policy: Policy,
    batch: Sequence[Encoded],
    size: PassSize,
    ranks: Ranks = ALONE,
    marking: LabelLoss | None = None,
) -> dict[str, float]:
    """Add the gradient of the batch's (weighted) token-mean loss; returns it. Similar lengths share a pass.

    With `marking` the mean loss over labelled tokens of the prompts is added, and returned as `label_loss`. All
    processes make as many passes; one that has run out of pairs counts for nothing.
    """
    ordered = sorted(batch, key=lambda item: len(item.prompt) + len(item.target))
    tokens = sum(sum(item.weights) for item in batch)
    labelled = max(1, sum(label != UNLABELLED for item in batch for label in item.labels))
    mine = ordered[ranks.rank :: ranks.count]

    def passes(items_each: int) -> dict[str, float]:
        total = {"loss": 0.0} | ({"label_loss": 0.0} if marking else {})
        for number in range(ranks.passes(len(batch), items_each)):
            items = mine[number * items_each : (number + 1) * items_each]
            counted = 1.0 if items else 0.0
            loss, labels = _loss_sums(policy, items or ordered[:1], marking)
            parts = {"loss": counted * loss / tokens, "label_loss": counted * labels / labelled}
            objective = parts["loss"] + (marking.weight * parts["label_loss"] if marking else 0.0)
            objective.backward()  # type: ignore[no-untyped-call]
            total = {name: value + float(parts[name].detach()) for name, value in total.items()}
        return total

    with ranks.passing():
        total = size.fitting(passes, undo=functools.partial(policy.zero_grad, set_to_none=True))
    ranks.sum_gradients(policy.parameters())
    return ranks.total(total)


def _loss_sums(
    policy: Policy, items: Sequence[Encoded], marking: LabelLoss | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed losses of the answers' tokens, and of the labels of the prompts' (0 without `marking`)."""
    batch = _pack(policy, items)
    weights = torch.zeros(batch.mask.shape)
    for row, item in enumerate(items):
        weights[row, : len(item.weights)] = torch.tensor(item.weights)
    logp, layers = policy.logps_and_layers(batch, every=marking is not None)
    loss = -(logp * weights.to(logp.device)).sum()
    if marking is None:
        return loss, loss.new_zeros(())
    labels = torch.full(batch.input_ids.shape, UNLABELLED)
    width = batch.input_ids.shape[1] - batch.width
    for row, item in enumerate(items):  # prompts are padded on the left
        labels[row, width - len(item.labels) : width] = torch.tensor(item.labels, dtype=torch.long)
    return loss, marking.sum_over(policy, layers, labels.to(batch.input_ids.device))


def _pack(policy: Policy, items: Sequence[Encoded]) -> TokenBatch:
    pad = policy.tokenizer.pad_token_id
    return pack([i.prompt for i in items], [i.target for i in items], pad, policy.device)


def measure_loss(policy: Policy, encoded: Sequence[Encoded], settings: SupervisedSettings) -> float:
    """Mean (weighted) loss per answer token without training."""
    tokens = sum(sum(item.weights) for item in encoded)
    size = settings.micro_batch_size
    with policy.evaluating():
        parts = [float(_loss_sums(policy, encoded[i : i + size])[0]) for i in range(0, len(encoded), size)]
    return sum(parts) / tokens
