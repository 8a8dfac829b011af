"""A unit model: a policy with a head that labels each unit of an answer poor, neither or good.

A unit is a step, given by its characters, or a token of the model. The head reads the state of the unit's last
token, which has seen all of it (paper, appendix N and Table 11). Results are in characters, since the policy in
training may have another tokenizer. Training is a supervised run (`train.supervised`) whose batches count answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from text2grad.align import Aligned, TokenTable, token_labels
from text2grad.durable.identity import digest_of_data
from text2grad.durable.run import RunOptions
from text2grad.errors import UserError
from text2grad.feedback import Failure, LabelledPlace, Message, Place, Span, Transcript
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.heads.head import LABEL, Head
from text2grad.policy.model import Policy
from text2grad.rl.advantage import at_least_float32
from text2grad.train.pairs import PromptAndTarget, plan_batches, refuse_long, supervised_identity
from text2grad.train.passes import PassSize, accumulate
from text2grad.train.settings import SupervisedSettings
from text2grad.train.supervised import Objective, descend, in_words, refuse_nothing

SECTION = "extra.unit_model.training"
HEAD_FILE = "unit_head.safetensors"
TOO_LONG = Failure(kind="unsupported", message="prompt and response are longer than the model's context")
CHANGED = Failure(kind="unsupported", message="the unit model's tokenizer changes the text that it reads")
SEVERAL_TURNS = Failure(kind="unsupported", message="a unit model labels single answers, not several turns")
NOT_FINITE = Failure(kind="invalid", message="the unit model's numbers are not finite")


# Loss and labels


def unit_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log p(label) of each unit, (N,): cross-entropy over poor, neither and good.

    Args:
        logits: (N, 3), of the labels -1, 0 and 1, in this order.
        labels: (N,), of -1, 0 and 1.

    Raises:
        ValueError: other shapes.
    """
    if logits.shape != (*labels.shape, 3) or labels.dim() != 1:
        raise ValueError(
            f"logits are {tuple(logits.shape)} for labels {tuple(labels.shape)}, expected (N, 3), (N,)"
        )
    return cross_entropy(at_least_float32(logits), labels.long() + 1, reduction="none")


def unit_labels(logits: Tensor, neutral: bool, poor_threshold: float | None = None) -> Tensor:
    """Return the likeliest label of each unit, (N,) of -1, 0 and 1; without `neutral` the likelier of -1 and 1.

    Ties go to the better label. With a threshold a unit is poor from this probability on. Where the best F1 that
    can be had is F, the threshold that has it is F / 2 (Lipton, Elkan and Naryanaswamy 2014).
    """
    poor, neither, good = at_least_float32(logits).unbind(dim=-1)  # (N,) each
    rest = torch.where((neither > good) & neutral, 0, 1)
    if poor_threshold is None:
        return torch.where(poor > (torch.maximum(neither, good) if neutral else good), -1, rest)
    others = torch.logaddexp(neither, good) if neutral else good
    return torch.where((poor - others).sigmoid() >= poor_threshold, -1, rest)


# Units of an answer


class Unit(NamedTuple):
    """The characters [start, end) of an answer, and the index of the token that ends them."""

    start: int
    end: int
    last: int


class Units(NamedTuple):
    """An answer as the ids of a model, the end of its turn included, and its units."""

    ids: list[int]
    units: list[Unit]

    @property
    def ends(self) -> list[int]:
        """The index of each unit's last token."""
        return [unit.last for unit in self.units]


class Divider:
    """Finds the units of answers for one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._table = TokenTable(tokenizer)

    def __call__(self, answer: str, places: Sequence[Place] | None) -> Units | None:
        """Return the units of an answer: those at `places`, none of them blank, or its tokens that are not blank.

        None if the tokenizer changes the text, so that the characters of a token are unknown.
        """
        ids = encode_target(self._tokenizer, answer)
        decoded = self._table.align(ids)
        shift = decoded.text.find(answer)
        if shift < 0:
            return None
        starts, ends = (np.clip(edges - shift, 0, len(answer)) for edges in (decoded.starts, decoded.ends))
        return Units(ids, _units(Aligned.of(answer, starts, ends), places))


def as_tokens(answer: str, units: Sequence[Unit | Place]) -> Aligned:
    """Align an answer as if each unit or place were one token, for functions of tokens."""
    starts, ends = (np.array([unit[edge] for unit in units], dtype=np.int64) for edge in (0, 1))
    return Aligned.of(answer, starts, ends)


def _units(aligned: Aligned, places: Sequence[Place] | None) -> list[Unit]:
    starts, ends = aligned.core_starts, aligned.core_ends
    if places is None:
        solid = np.flatnonzero(ends > starts)
        return [Unit(int(starts[index]), int(ends[index]), int(index)) for index in solid]
    last = [np.flatnonzero((starts < end) & (ends > start) & (ends > starts))[-1] for start, end in places]
    return [Unit(start, end, int(index)) for (start, end), index in zip(places, last, strict=True)]


# The head


def add_unit_head(policy: Policy) -> Head:
    """Give a policy a head that labels units, as a part of it, so that it is trained and checkpointed with it."""
    head = Head(policy.hidden_size, LABEL).to(policy.device)
    policy.add_module("unit_head", head)
    return head


def unit_head(policy: Policy) -> Head:
    """Return the head that `add_unit_head` gave the policy."""
    head = policy.get_submodule("unit_head")
    assert isinstance(head, Head)
    return head


def save_unit_head(policy: Policy, folder: Path) -> None:
    """Write the head beside the policy in `folder`."""
    save_file(dict(unit_head(policy).state_dict()), str(folder / HEAD_FILE))


def load_unit_head(policy: Policy, folder: Path) -> Policy:
    """Give a frozen policy the head that was written beside it."""
    add_unit_head(policy).load_state_dict(load_file(str(folder / HEAD_FILE)))
    return policy.requires_grad_(False).eval()


def read_units(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    ends: Sequence[Sequence[int]],
) -> Tensor:
    """Return logits (N, 3) of the N units of some answers, in one pass.

    Args:
        prompts, answers: token ids.
        ends: per answer the indices of the tokens after which the head reads.
    """
    rows = [row for row, indices in enumerate(ends) for _ in indices]
    columns = [index + 1 for indices in ends for index in indices]  # column 0 is the state before the answer
    places = torch.tensor([rows, columns], dtype=torch.long, device=policy.device)
    hidden = policy.reader(policy.model, policy.pack(prompts, answers)).hidden  # (B, T+1, H)
    logits: Tensor = unit_head(policy)(hidden[places[0], places[1]])  # of (N, H)
    return logits


class UnitModel:
    """Labels the units of answers; those of similar length are read together, `batch_size` at a time."""

    def __init__(self, policy: Policy, batch_size: int = 32, poor_threshold: float | None = None) -> None:
        self.policy = policy
        self.batch_size = batch_size
        self.poor_threshold = poor_threshold
        self.divide = Divider(policy.tokenizer)
        self.tokens = 0.0  # read in all

    def label(
        self,
        prompts: Sequence[Sequence[Message]],
        answers: Sequence[str],
        places: Sequence[Sequence[Place]] | None,
    ) -> list[list[LabelledPlace] | Failure]:
        """Return the units of `answers[i]` to `prompts[i]` with their labels.

        Units are the steps at `places[i]`, good or poor; without places the tokens, good, poor or neither. An
        answer that the model cannot read whole, or whose numbers are not finite, is a failure.
        """
        steps = places if places is not None else [None] * len(answers)
        units = [self.divide(answer, step) for answer, step in zip(answers, steps, strict=True)]
        turns = [isinstance(answer, Transcript) for answer in answers]
        readable = [(i, unit) for i, unit in enumerate(units) if unit is not None and not turns[i]]
        outputs = self._read(
            [encode_prompt(self.policy.tokenizer, prompts[i]) for i, _ in readable], [unit for _, unit in readable]
        )
        labelled: list[list[LabelledPlace] | Failure] = [SEVERAL_TURNS if several else CHANGED for several in turns]
        for (i, unit), logits in zip(readable, outputs, strict=True):
            labelled[i] = TOO_LONG if logits is None else self._labels(unit, logits, places is None)
        return labelled

    def _labels(self, answer: Units, logits: Tensor, neutral: bool) -> list[LabelledPlace] | Failure:
        if not logits.isfinite().all():
            return NOT_FINITE
        labels = unit_labels(logits, neutral, self.poor_threshold).tolist()  # logits (units, 3)
        return [
            LabelledPlace(unit.start, unit.end, label) for unit, label in zip(answer.units, labels, strict=True)
        ]

    def _read(self, prompts: Sequence[list[int]], answers: Sequence[Units]) -> list[Tensor | None]:
        """Return the logits of each answer's units; None where it exceeds the context."""
        context = self.policy.context
        lengths = [len(prompt) + len(answer.ids) for prompt, answer in zip(prompts, answers, strict=True)]
        fitting = [index for index, length in enumerate(lengths) if context is None or length <= context]
        fitting.sort(key=lengths.__getitem__)  # similar lengths share a pass: less padding
        read: list[Tensor | None] = [None] * len(answers)
        for start in range(0, len(fitting), self.batch_size):
            chosen = fitting[start : start + self.batch_size]
            self.tokens += sum(lengths[index] for index in chosen)
            ids, ends = [answers[index].ids for index in chosen], [answers[index].ends for index in chosen]
            with self.policy.evaluating():
                logits = read_units(self.policy, [prompts[index] for index in chosen], ids, ends)
            for index, part in zip(chosen, torch.split(logits, list(map(len, ends))), strict=True):
                read[index] = part
        return read


# Training


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


def train_unit_model(
    policy: Policy, answers: Sequence[JudgedAnswer], settings: SupervisedSettings, options: RunOptions
) -> dict[str, float]:
    """Make `policy` a unit model, in place, and write it to the run's folder; resumes an unfinished run there.

    Each of several processes calls this with the same arguments. Returns the last metrics, means over the units of
    a batch: `loss`, and `accuracy`, the share whose likeliest label is theirs.

    Raises:
        UserError: there is nothing to train on, an answer does not fit the context or has no unit, the loss is not
            finite, or what `durable.run.Run` refuses.
    """
    refuse_nothing(answers, options)
    encoded = encode_units(policy, answers)
    refuse_long(policy, [answer.id for answer in answers], encoded)
    turns = itertools.chain.from_iterable(
        (*answer.prompt, Message(role="assistant", content=answer.response)) for answer in answers
    )
    data = {"the judged answers": digest_of_data(policy, map(str, answers), turns)}
    objective = Objective[EncodedUnits](
        identity=supervised_identity(policy, settings, SECTION, data),
        gradient=partial(accumulate_gradient, policy),
        described=partial(in_words, policy, lambda item: unit_loss(*_read(policy, [item])).mean()),
        heads=[add_unit_head(policy)],
    )
    batches = list(plan_batches(encoded, settings, options.seed))
    metrics = descend(policy, batches, objective, settings, options, SECTION)
    if options.ranks.first:
        save_unit_head(policy, options.folder / "policy")
    return metrics


def encode_units(policy: Policy, answers: Sequence[JudgedAnswer]) -> list[EncodedUnits]:
    """Return token ids of all answers with their labelled units; nothing is cut.

    A unit's label is 1 or -1 where spans of one sign overlap it, 0 where none or both do.

    Raises:
        UserError: the tokenizer changes the text it reads, or an answer has no unit.
    """
    divide, encoded = Divider(policy.tokenizer), []
    for answer in answers:
        units = units_of(divide, answer)
        labels = token_labels(answer.spans, as_tokens(answer.response, units.units)).tolist()  # one per unit
        prompt = encode_prompt(policy.tokenizer, answer.prompt)
        encoded.append(EncodedUnits(prompt, units.ids, units.ends, labels))
    return encoded


def units_of(divide: Divider, answer: JudgedAnswer) -> Units:
    """Return an answer with its units.

    Raises:
        UserError: the tokenizer changes the text it reads, or the answer has no unit.
    """
    units = divide(answer.response, answer.places)
    if units is None:
        problem = "this tokenizer changes the text it reads, so no words can be labelled"
        raise UserError(f"{answer.id}: {problem}", "set policy.model to another model")
    if not units.units:
        raise UserError(f"{answer.id}: the response has no units to label", "leave it out")
    return units


def accumulate_gradient(policy: Policy, batch: Sequence[EncodedUnits], size: PassSize) -> dict[str, float]:
    """Add the gradient of the mean loss of a batch's units; return its metrics. Similar lengths share a pass."""
    units = sum(len(item.labels) for item in batch)  # the denominator of the whole batch

    def terms(items: Sequence[EncodedUnits]) -> tuple[Tensor, dict[str, Tensor]]:
        logits, labels = _read(policy, items)  # (N, 3) and (N,)
        right = unit_labels(logits, neutral=True) == labels
        shares = {"loss": unit_loss(logits, labels).sum() / units, "accuracy": right.sum() / units}
        return shares["loss"], shares

    return accumulate(policy, sorted(batch, key=lambda item: item.tokens), terms, size)


def _read(policy: Policy, items: Sequence[EncodedUnits]) -> tuple[Tensor, Tensor]:
    """Return logits (N, 3) and labels (N,) of all units of some answers."""
    prompts, answers, ends = zip(*((item.prompt, item.target, item.ends) for item in items), strict=True)
    logits = read_units(policy, prompts, answers, ends)
    return logits, torch.tensor([label for item in items for label in item.labels], device=logits.device)
