"""A unit model: which steps or tokens of an answer are right (paper, appendix N and Table 11).

A supervised run (`train.supervised`) whose loss is the cross-entropy of each unit's label, read off the model's
state after the unit's last token. Batches count answers, and every unit of a batch counts alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from text2grad.align import token_labels
from text2grad.durable.identity import digest_of_reference, digest_of_texts, flatten
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Message, Place, Span
from text2grad.policy.encode import check_lengths, encode_prompt, rendering_of
from text2grad.policy.heads.units import Divided, Divider, as_tokens
from text2grad.policy.model import Policy
from text2grad.rl.units import unit_labels, unit_loss
from text2grad.train.pairs import plan_batches
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import Objective, descend, longest, refuse_muon, refuse_nothing

SECTION = "unit_model.training"
"""Where the user finds the settings."""


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer and the spans that label its units: those at `places`, or, without places, its tokens."""

    id: str
    prompt: tuple[Message, ...]
    response: str
    spans: tuple[Span, ...]
    places: tuple[Place, ...] | None = None


@dataclass(frozen=True)
class EncodedUnits:
    """An answer as token ids; `ends` are the last tokens of its units, `labels` the units' -1, 0 or 1."""

    prompt: list[int]
    response: list[int]
    ends: list[int]
    labels: list[int]

    @property
    def tokens(self) -> int:
        """Of the whole sequence."""
        return len(self.prompt) + len(self.response)


def train_unit_model(
    policy: Policy, answers: Sequence[JudgedAnswer], settings: SupervisedSettings, options: RunOptions
) -> dict[str, float]:
    """Make `policy` a unit model, in place: a head that labels each unit of an answer.

    Writes it to the run's folder, and resumes an unfinished run there, bit for bit on one CPU. Each of several
    processes calls this with the same arguments. Returns the last metrics, means over the units of a batch: `loss`,
    and `accuracy`, the share whose likeliest label is theirs.

    Raises:
        UserError: there is nothing to train on, an answer does not fit the context or has no unit, the loss is not
            finite, or what `durable.run.Run` refuses.
    """
    refuse_nothing(answers, options)
    refuse_muon(settings, options, SECTION)
    encoded = encode_units(policy, answers)
    limit = longest(policy, settings)
    whole = [(each.id, [*item.prompt, *item.response]) for each, item in zip(answers, encoded, strict=True)]
    check_lengths(whole, limit, 0)
    objective = Objective[EncodedUnits](
        identity=identity_of(policy, answers, settings),
        gradient=partial(accumulate_gradient, policy),
        described=partial(_described, policy),
        heads=[policy.add_unit_head()],
    )
    batches = list(plan_batches(encoded, settings, options.seed))
    return descend(policy, batches, objective, settings, options, SECTION)


def identity_of(policy: Policy, answers: Sequence[JudgedAnswer], settings: SupervisedSettings) -> dict[str, str]:
    """What a run depends on, by name; large things as digests."""
    turns = ((*each.prompt, Message(role="assistant", content=each.response)) for each in answers)
    said = rendering_of(policy.tokenizer, itertools.chain.from_iterable(turns))
    return {
        **flatten({f"{SECTION}.checkpoint_every"}, **{SECTION: settings}),
        "the starting model": digest_of_reference(policy),
        "the judged answers": digest_of_texts([*map(str, answers), *said]),
    }


def encode_units(policy: Policy, answers: Sequence[JudgedAnswer]) -> list[EncodedUnits]:
    """Token ids of all answers with their labelled units; nothing is cut.

    Raises:
        UserError: the tokenizer changes the text it reads, or an answer has no unit.
    """
    divide = Divider(policy.tokenizer)
    return [_encoded(policy, divide, each) for each in answers]


def _encoded(policy: Policy, divide: Divider, answer: JudgedAnswer) -> EncodedUnits:
    """The label of a unit is 1 or -1 where a span of that sign overlaps it, 0 where none does or both do."""
    found = divided(divide, answer)
    labels = token_labels(answer.spans, as_tokens(answer.response, found.units)).tolist()
    return EncodedUnits(encode_prompt(policy.tokenizer, answer.prompt), found.ids, found.ends, labels)


def divided(divide: Divider, answer: JudgedAnswer) -> Divided:
    """An answer with its units.

    Raises:
        UserError: the tokenizer changes the text it reads, or the answer has no unit.
    """
    found = divide(answer.response, answer.places)
    if found is None:
        problem = "this tokenizer changes the text it reads, so no words can be labelled"
        raise UserError(f"{answer.id}: {problem}", "set unit_model.policy to another model")
    if not found.units:
        raise UserError(f"{answer.id}: the response has no units to label", "leave it out")
    return found


def accumulate_gradient(policy: Policy, batch: Sequence[EncodedUnits], size: PassSize) -> dict[str, float]:
    """Add the gradient of the mean loss of a batch's units; returns its metrics. Similar lengths share a pass."""
    units = sum(len(item.labels) for item in batch)

    def terms(items: Sequence[EncodedUnits]) -> tuple[Tensor, dict[str, Tensor]]:
        logits, labels = _read(policy, items)
        right = unit_labels(logits, neutral=True) == labels
        shares = {"loss": unit_loss(logits, labels).sum() / units, "accuracy": right.sum() / units}
        return shares["loss"], shares

    return accumulate(policy, sorted(batch, key=lambda item: item.tokens), terms, size)


def _read(policy: Policy, items: Sequence[EncodedUnits]) -> tuple[Tensor, Tensor]:
    """Logits (N, 3) and labels (N,) of all units of some answers."""
    batch = policy.pack([item.prompt for item in items], [item.response for item in items])
    logits = policy.unit_logits(batch, [item.ends for item in items])
    labels = torch.tensor([label for item in items for label in item.labels], device=logits.device)
    return logits, labels


def _described(policy: Policy, step: int, batch: Sequence[EncodedUnits]) -> Iterator[dict[str, Any]]:
    """Each answer of a batch in words, with its loss under the present weights; None: it is not finite."""
    for item in batch:
        with policy.evaluating():
            loss = float(unit_loss(*_read(policy, [item])).mean())
        prompt, response = policy.tokenizer.decode(item.prompt), policy.tokenizer.decode(item.response)
        yield {"step": step, "loss": loss if math.isfinite(loss) else None, "prompt": prompt, "response": response}
