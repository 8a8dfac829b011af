"""A unit model: what it reads of an answer, where each unit ends, and the labels that it gives.

A unit is a step, named by its characters, or a token of the model's own. The model is read at the unit's last
token, which has seen all of it. Characters leave this file, tokens do not: the policy in training may have others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from text2grad.align import Aligned, TokenTable
from text2grad.feedback import Failure, LabelledPlace, Message, Place
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.heads.scores import alike
from text2grad.policy.model import Policy
from text2grad.rl.units import unit_labels

TOO_LONG = Failure(kind="unsupported", message="prompt and response are longer than the model's context")
CHANGED = Failure(kind="unsupported", message="the unit model's tokenizer changes the text that it reads")
NOT_FINITE = Failure(kind="invalid", message="the unit model's numbers are not finite")


class Unit(NamedTuple):
    """The characters [start, end) of an answer, and the index of the token that ends them."""

    start: int
    end: int
    last: int


class Divided(NamedTuple):
    """An answer as the ids of a model, the end of its turn among them, and its units."""

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

    def __call__(self, answer: str, places: Sequence[Place] | None) -> Divided | None:
        """The units of an answer: those at `places`, none of them blank, or its tokens that are not blank.

        None if the tokenizer changes the text, so that nobody knows which characters a token stands for.
        """
        ids = encode_target(self._tokenizer, answer)
        whole = self._table.align(ids)
        shift = whole.text.find(answer)
        if shift < 0:
            return None
        starts, ends = (np.clip(edges - shift, 0, len(answer)) for edges in (whole.starts, whole.ends))
        return Divided(ids, _units(Aligned.of(answer, starts, ends), places))


def as_tokens(answer: str, units: Sequence[Unit]) -> Aligned:
    """An answer of which each unit is one token: what is true of tokens elsewhere is true of units here."""
    starts, ends = (np.array([unit[edge] for unit in units], dtype=np.int64) for edge in (0, 1))
    return Aligned.of(answer, starts, ends)


def _units(aligned: Aligned, places: Sequence[Place] | None) -> list[Unit]:
    starts, ends = aligned.core_starts, aligned.core_ends
    if places is None:
        solid = np.flatnonzero(ends > starts)
        return [Unit(int(starts[index]), int(ends[index]), int(index)) for index in solid]
    last = [np.flatnonzero((starts < end) & (ends > start) & (ends > starts))[-1] for start, end in places]
    return [Unit(start, end, int(index)) for (start, end), index in zip(places, last, strict=True)]


class LocalUnits:
    """Labels the units of answers with a unit model, `batch_size` answers at a time, those of similar length.

    `poor_threshold`: the probability from which on a unit is poor (`rl.units.unit_labels`).
    """

    def __init__(self, model: Policy, batch_size: int, poor_threshold: float | None = None) -> None:
        self.model = model
        self.batch_size = batch_size
        self.poor_threshold = poor_threshold
        self.divide = Divider(model.tokenizer)
        self.tokens = 0.0  # read in all

    def label(
        self,
        prompts: Sequence[Sequence[Message]],
        answers: Sequence[str],
        places: Sequence[Sequence[Place]] | None,
    ) -> list[list[LabelledPlace] | Failure]:
        """The units of `answers[i]` to `prompts[i]` with their labels.

        They are the steps at `places[i]`, good or poor; without places the tokens, good, poor or neither. A failure
        stands for an answer that the model cannot read whole, or of which its numbers are not finite.
        """
        steps = places if places is not None else [None] * len(answers)
        cut = [self.divide(*each) for each in zip(answers, steps, strict=True)]
        found: list[list[LabelledPlace] | Failure] = [CHANGED if each is None else TOO_LONG for each in cut]
        known = [(index, each) for index, each in enumerate(cut) if each is not None]
        asked = [encode_prompt(self.model.tokenizer, prompts[index]) for index, _ in known]
        lengths = [len(prompt) + len(each.ids) for prompt, (_, each) in zip(asked, known, strict=True)]
        for chosen in alike(lengths, self.model.context, self.batch_size):
            self.tokens += sum(lengths[n] for n in chosen)
            read = self._read([asked[n] for n in chosen], [known[n][1] for n in chosen], places is None)
            for n, labelled in zip(chosen, read, strict=True):
                found[known[n][0]] = labelled
        return found

    def _read(
        self, prompts: Sequence[list[int]], answers: Sequence[Divided], neutral: bool
    ) -> list[list[LabelledPlace] | Failure]:
        """The labels of answers that fit the model, in one pass."""
        with self.model.evaluating():
            batch = self.model.pack(prompts, [each.ids for each in answers])
            logits = self.model.unit_logits(batch, [each.ends for each in answers])
        found: list[list[LabelledPlace] | Failure] = []
        for each, own in zip(answers, torch.split(logits, [len(each.units) for each in answers]), strict=True):
            labels = zip(each.units, unit_labels(own, neutral, self.poor_threshold).tolist(), strict=True)
            finite = bool(own.isfinite().all())
            found.append([(unit.start, unit.end, label) for unit, label in labels] if finite else NOT_FINITE)
        return found
