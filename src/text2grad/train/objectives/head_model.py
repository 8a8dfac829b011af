"""A head model, with one of two targets: which of two answers is better, or which units of an answer are right.

Both are supervised runs (`train.supervised`) of a policy with a head (`policy.heads`), read at the last token of an
answer or of a unit (paper, appendix N and Table 11). The scores of a scalar model have the loss of Bradley and
Terry, and batches count pairs. The labels of a unit model have their cross-entropy; batches count answers, and
every unit of a batch counts alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from text2grad.align import token_labels
from text2grad.durable.identity import digest_of_data
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Message, Place, Preference, Span
from text2grad.policy.encode import encode_prompt
from text2grad.policy.heads.head import LABEL, SCORE
from text2grad.policy.heads.model import Divider, Units, as_tokens, read_head
from text2grad.policy.model import Policy
from text2grad.rl.units import unit_labels, unit_loss
from text2grad.train.objectives.preference import EncodedPreference, Rewards, train_on_pairs
from text2grad.train.pairs import PromptAndTarget, plan_batches, refuse_long, supervised_identity
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import Objective, descend, in_words, refuse_nothing

SCALAR_MODEL, UNIT_MODEL = "scalar_model.training", "unit_model.training"
"""Where the user finds the settings of the two targets."""


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer and the spans that label its units: those at `places`, or, without places, its tokens."""

    id: str
    prompt: tuple[Message, ...]
    response: str
    spans: tuple[Span, ...]
    places: tuple[Place, ...] | None = None


@dataclass(frozen=True)
class EncodedUnits(PromptAndTarget):
    """An answer as token ids; `ends` are the last tokens of its units, `labels` the units' -1, 0 or 1."""

    ends: list[int]
    labels: list[int]

    @property
    def parts(self) -> dict[str, list[int]]:
        """The prompt and the answer by name."""
        return {"prompt": self.prompt, "response": self.target}


def train_scalar_model(
    policy: Policy, pairs: Sequence[Preference], settings: SupervisedSettings, options: RunOptions
) -> dict[str, float]:
    """Make `policy` a scalar reward model, in place: a head on the state of an answer's last token.

    Otherwise as `train.objectives.preference.train_dpo`.
    """
    head = policy.add_head("score_head")
    return train_on_pairs(policy, pairs, partial(scored, policy), settings, options, SCALAR_MODEL, [head])


def scored(policy: Policy, items: Sequence[EncodedPreference]) -> Rewards:
    """The scores of a scalar reward model, (N,) of the chosen answers and (N,) of the rejected ones."""
    answers = [item.chosen for item in items] + [item.rejected for item in items]
    ends = [[len(ids) - 1] for ids in answers]  # one score, read after the last token
    chosen, rejected = read_head(policy, SCORE, [item.prompt for item in items] * 2, answers, ends).chunk(2)
    return chosen, rejected


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
    encoded = encode_units(policy, answers)
    refuse_long(policy, [each.id for each in answers], encoded)
    turns = itertools.chain.from_iterable(
        (*each.prompt, Message(role="assistant", content=each.response)) for each in answers
    )
    data = {"the judged answers": digest_of_data(policy, map(str, answers), turns)}
    objective = Objective[EncodedUnits](
        identity=supervised_identity(policy, settings, UNIT_MODEL, data),
        gradient=partial(accumulate_gradient, policy),
        described=partial(in_words, policy, lambda item: unit_loss(*_read(policy, [item])).mean()),
        heads=[policy.add_head("unit_head")],
    )
    batches = list(plan_batches(encoded, settings, options.seed))
    return descend(policy, batches, objective, settings, options, UNIT_MODEL)


def encode_units(policy: Policy, answers: Sequence[JudgedAnswer]) -> list[EncodedUnits]:
    """Token ids of all answers with their labelled units; nothing is cut.

    Raises:
        UserError: the tokenizer changes the text it reads, or an answer has no unit.
    """
    divide = Divider(policy.tokenizer)
    return [_encoded(policy, divide, each) for each in answers]


def _encoded(policy: Policy, divide: Divider, answer: JudgedAnswer) -> EncodedUnits:
    """The label of a unit is 1 or -1 where a span of that sign overlaps it, 0 where none does or both do."""
    units = units_of(divide, answer)
    labels = token_labels(answer.spans, as_tokens(answer.response, units.units)).tolist()  # one a unit
    return EncodedUnits(encode_prompt(policy.tokenizer, answer.prompt), units.ids, units.ends, labels)


def units_of(divide: Divider, answer: JudgedAnswer) -> Units:
    """An answer with its units.

    Raises:
        UserError: the tokenizer changes the text it reads, or the answer has no unit.
    """
    units = divide(answer.response, answer.places)
    if units is None:
        problem = "this tokenizer changes the text it reads, so no words can be labelled"
        raise UserError(f"{answer.id}: {problem}", "set unit_model.policy to another model")
    if not units.units:
        raise UserError(f"{answer.id}: the response has no units to label", "leave it out")
    return units


def accumulate_gradient(policy: Policy, batch: Sequence[EncodedUnits], size: PassSize) -> dict[str, float]:
    """Add the gradient of the mean loss of a batch's units; returns its metrics. Similar lengths share a pass."""
    units = sum(len(item.labels) for item in batch)  # the denominator of the whole batch

    def terms(items: Sequence[EncodedUnits]) -> tuple[Tensor, dict[str, Tensor]]:
        logits, labels = _read(policy, items)  # (N, 3) and (N,)
        right = unit_labels(logits, neutral=True) == labels
        shares = {"loss": unit_loss(logits, labels).sum() / units, "accuracy": right.sum() / units}
        return shares["loss"], shares

    return accumulate(policy, sorted(batch, key=lambda item: item.tokens), terms, size)


def _read(policy: Policy, items: Sequence[EncodedUnits]) -> tuple[Tensor, Tensor]:
    """Logits (N, 3) and labels (N,) of all units of some answers."""
    prompts, answers, ends = zip(*((item.prompt, item.target, item.ends) for item in items), strict=True)
    logits = read_head(policy, LABEL, prompts, answers, ends)
    return logits, torch.tensor([label for item in items for label in item.labels], device=logits.device)
