"""A head model: a policy whose head scores an answer or labels its units.

A unit is a step, given by its characters, or a token of the model. The head reads the state of the unit's last
token, which has seen all of it, or of the answer's last token for a score. Results are given in characters, since
the policy in training may have another tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from text2grad.align import Aligned, TokenTable
from text2grad.feedback import Failure, LabelledPlace, Message, Place, Transcript
from text2grad.policy.encode import encode_prompt, encode_target
from text2grad.policy.episode import encode_turns
from text2grad.policy.heads.head import LABEL, SCORE, Head
from text2grad.policy.model import Policy
from text2grad.rl.units import unit_labels

TOO_LONG = Failure(kind="unsupported", message="prompt and response are longer than the model's context")
CHANGED = Failure(kind="unsupported", message="the unit model's tokenizer changes the text that it reads")
SEVERAL_TURNS = Failure(
    kind="unsupported", message="a unit model labels single answers, and this has several turns"
)
NOT_FINITE = Failure(kind="invalid", message="the unit model's numbers are not finite")


class Unit(NamedTuple):
    """The characters [start, end) of an answer, and the index of the token that ends them."""

    start: int
    end: int
    last: int


class Units(NamedTuple):
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

    def __call__(self, answer: str, places: Sequence[Place] | None) -> Units | None:
        """The units of an answer: those at `places`, none of them blank, or its tokens that are not blank.

        None if the tokenizer changes the text, so that nobody knows which characters a token stands for.
        """
        ids = encode_target(self._tokenizer, answer)
        whole = self._table.align(ids)
        shift = whole.text.find(answer)
        if shift < 0:
            return None
        starts, ends = (np.clip(edges - shift, 0, len(answer)) for edges in (whole.starts, whole.ends))
        return Units(ids, _units(Aligned.of(answer, starts, ends), places))


def as_tokens(answer: str, units: Sequence[Unit | Place]) -> Aligned:
    """An answer aligned as if each unit or place were one token, for functions of tokens."""
    starts, ends = (np.array([unit[edge] for unit in units], dtype=np.int64) for edge in (0, 1))
    return Aligned.of(answer, starts, ends)


def _units(aligned: Aligned, places: Sequence[Place] | None) -> list[Unit]:
    starts, ends = aligned.core_starts, aligned.core_ends
    if places is None:
        solid = np.flatnonzero(ends > starts)
        return [Unit(int(starts[index]), int(ends[index]), int(index)) for index in solid]
    last = [np.flatnonzero((starts < end) & (ends > start) & (ends > starts))[-1] for start, end in places]
    return [Unit(start, end, int(index)) for (start, end), index in zip(places, last, strict=True)]


def head_of(policy: Policy, outputs: int) -> Head:
    """The head that a model of such outputs is read by."""
    head = policy.score_head if outputs == SCORE else policy.unit_head
    assert head is not None
    return head


def read_head(
    policy: Policy,
    outputs: int,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    ends: Sequence[Sequence[int]],
) -> Tensor:
    """Scores (N,) or logits (N, 3) of the N places in some answers, in one pass.

    Args:
        prompts, answers: token ids.
        ends: of each answer the indices of the tokens after which the head reads.
    """
    rows = [row for row, each in enumerate(ends) for _ in each]
    columns = [index + 1 for each in ends for index in each]  # column 0 is the state before the answer
    places = torch.tensor([rows, columns], dtype=torch.long, device=policy.device)
    hidden = policy.reader(policy.model, policy.pack(prompts, answers)).hidden  # (B, T+1, H)
    output: Tensor = head_of(policy, outputs)(hidden[places[0], places[1]])  # of (N, H)
    return output


class HeadModel:
    """Scores answers, or labels their units; those of similar length are read together, `batch_size` at a time.

    `poor_threshold`: the probability from which on a unit is poor (`rl.units.unit_labels`).
    """

    def __init__(self, policy: Policy, batch_size: int = 32, poor_threshold: float | None = None) -> None:
        self.policy = policy
        self.batch_size = batch_size
        self.poor_threshold = poor_threshold
        self.divide = Divider(policy.tokenizer)
        self.tokens = 0.0  # read in all

    def scores(self, prompts: Sequence[Sequence[Message]], answers: Sequence[str]) -> list[float | None]:
        """The score of `answers[i]` to `prompts[i]`; None where the two are longer than the model's context."""
        threads = [encode_turns(self.policy.tokenizer, *each) for each in zip(prompts, answers, strict=True)]
        asked, ids = [each.prompt for each in threads], [each.ids for each in threads]
        outputs = self._read(SCORE, asked, ids, [[len(each) - 1] for each in ids])
        return [None if each is None else float(each) for each in outputs]

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
        units = [self.divide(*each) for each in zip(answers, steps, strict=True)]
        turns = [isinstance(answer, Transcript) for answer in answers]
        known = [(index, each) for index, each in enumerate(units) if each is not None and not turns[index]]
        outputs = self._read(
            LABEL,
            [encode_prompt(self.policy.tokenizer, prompts[index]) for index, _ in known],
            [each.ids for _, each in known],
            [each.ends for _, each in known],
        )
        labelled: list[list[LabelledPlace] | Failure] = [SEVERAL_TURNS if each else CHANGED for each in turns]
        for (index, each), logits in zip(known, outputs, strict=True):
            labelled[index] = TOO_LONG if logits is None else self._labels(each, logits, places is None)
        return labelled

    def _labels(self, answer: Units, logits: Tensor, neutral: bool) -> list[LabelledPlace] | Failure:
        if not logits.isfinite().all():
            return NOT_FINITE
        labels = unit_labels(logits, neutral, self.poor_threshold).tolist()  # logits (units, 3)
        return [
            LabelledPlace(unit.start, unit.end, label) for unit, label in zip(answer.units, labels, strict=True)
        ]

    def _read(
        self,
        outputs: int,
        asked: Sequence[list[int]],
        answers: Sequence[list[int]],
        ends: Sequence[Sequence[int]],
    ) -> list[Tensor | None]:
        """What the head makes of each answer, as in `read_head`; None where it exceeds the context."""
        context = self.policy.context
        lengths = [len(before) + len(after) for before, after in zip(asked, answers, strict=True)]
        fitting = [index for index, length in enumerate(lengths) if context is None or length <= context]
        fitting.sort(key=lengths.__getitem__)  # similar lengths share a pass: less padding
        read: list[Tensor | None] = [None] * len(answers)
        for start in range(0, len(fitting), self.batch_size):
            chosen = fitting[start : start + self.batch_size]
            self.tokens += sum(lengths[index] for index in chosen)
            columns = ([column[index] for index in chosen] for column in (asked, answers, ends))
            with self.policy.evaluating():
                whole = read_head(self.policy, outputs, *columns)
            parts = torch.split(whole, [len(ends[index]) for index in chosen])
            for index, part in zip(chosen, parts, strict=True):
                read[index] = part
        return read
