"""A reward model that writes nothing: a head labels the response where it stands in the judge's
prompt.

One pass over the prompt gives the label of each token of the response, off a layer below the last
(`policy.heads.head`), and the verdict is what the labels come to. Results are in characters of the
response, since the policy in training may have another tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from text2grad.align import Aligned, TokenTable
from text2grad.chat import Completion
from text2grad.feedback import Failure, LabelledPlace, Message, Overlap, Place, Transcript, turns_of
from text2grad.policy.encode import encode_prompt
from text2grad.policy.heads.head import DEPTH, likeliest_labels, unweighted
from text2grad.policy.model import Policy

LEAST = 0.001
"""The weight of a mark of which good and poor are equally likely: a span has one above 0."""
TOO_LONG = Failure(kind="unsupported", message="prompt and response are longer than the model's context")
NOT_FINITE = Failure(kind="invalid", message="the reward model's numbers are not finite")
CHANGED = Failure(kind="unsupported", message="the response is not in the judge's prompt to the letter")


def shown_at(message: str, response: str) -> list[tuple[int, Place]]:
    """The character of a judge's last message at which each turn of a response begins, and the
    turn's place in it.

    None at all if a tag in one was changed.
    """
    found: list[tuple[int, Place]] = []
    end, closing = len(message), "\n</turn>" if isinstance(response, Transcript) else "\n"
    for turn in reversed(turns_of(response)):
        start = message.rfind(f"\n{response[turn.start : turn.end]}{closing}", 0, end) + 1
        if not start:
            return []
        found.insert(0, (start, (turn.start, turn.end)))
        end = start
    return found


def place_in(aligned: Aligned, message: str, start: int, text: str) -> int | None:
    """The character of a tokenised prompt at which `text` begins, which stands at `start` of its
    last message.

    None if the tokenizer changes the text that it reads.
    """
    found = aligned.text.rfind(message.strip())  # chat templates strip turns
    begin = found + start - (len(message) - len(message.lstrip()))
    return begin if found >= 0 and aligned.text[begin : begin + len(text)] == text else None


def balance(marks: Sequence[LabelledPlace]) -> float:
    """The verdict that marks come to, -1 to 1: characters praised less those blamed, as a share of
    both; 0 where nothing is marked."""
    sizes = [mark.label * (mark.end - mark.start) for mark in marks]
    return sum(sizes) / max(1, sum(map(abs, sizes)))


class Question(NamedTuple):
    """A judge's prompt as ids, and the N tokens of the response in it that are not blank: their
    indices in the prompt, characters in the response, and turns."""

    ids: tuple[int, ...]
    tokens: tuple[int, ...]
    places: tuple[Place, ...]
    turns: tuple[int, ...]


class Reading(NamedTuple):
    """Logits (N, 3) of N places in a response, as if a poor token had counted once in training, and
    their turns."""

    places: tuple[Place, ...]
    turns: tuple[int, ...]
    logits: Tensor


class Tagger:
    """Labels the tokens of responses in judges' prompts; those of similar length are read
    together."""

    def __init__(self, policy: Policy, batch_size: int) -> None:
        self.policy, self.batch_size = policy, batch_size
        self.overlap: Overlap = "never" if policy.adapter else "allowed"
        self._table = TokenTable(policy.tokenizer)

    def excess(self, conversation: Sequence[Message]) -> int:
        """Tokens by which the conversation exceeds the model's context."""
        limit = self.policy.context
        return 0 if limit is None else len(encode_prompt(self.policy.tokenizer, conversation)) - limit

    def tag(self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]) -> list[Completion | Failure]:
        """The labelled places of each response `texts[i]` and the verdict they come to, without
        words.

        A failure stands for a response that cannot be read whole, or whose numbers are not finite.
        """
        return [self._completion(each) for each in self.read(conversations, texts)]

    def read(self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]) -> list[Reading | Failure]:
        """The logits of each response; equal questions are read once."""
        asked = [self._question(*each) for each in zip(conversations, texts, strict=True)]
        questions = sorted({each for each in asked if isinstance(each, Question)}, key=lambda each: len(each.ids))
        read: dict[Question, Reading | Failure] = {}
        for start in range(0, len(questions), self.batch_size):
            chosen = questions[start : start + self.batch_size]
            read |= zip(chosen, self._pass(chosen), strict=True)
        return [each if isinstance(each, Failure) else read[each] for each in asked]

    def _question(self, conversation: Sequence[Message], text: str) -> Question | Failure:
        ids, message = encode_prompt(self.policy.tokenizer, conversation), conversation[-1].content
        if self.policy.context is not None and len(ids) > self.policy.context:
            return TOO_LONG
        aligned, shown = self._table.align(ids), shown_at(message, text)
        tokens: list[int] = []
        places: list[Place] = []
        turns: list[int] = []
        for turn, (at, (start, end)) in enumerate(shown):
            begin = place_in(aligned, message, at, text[start:end])
            if begin is None:
                return CHANGED
            cores = (aligned.core_starts, aligned.core_ends)
            starts, ends = (np.clip(edge - begin + start, start, end) for edge in cores)
            inside = np.flatnonzero(starts < ends).tolist()
            tokens += inside
            places += [(int(starts[token]), int(ends[token])) for token in inside]
            turns += [turn] * len(inside)
        return Question(tuple(ids), tuple(tokens), tuple(places), tuple(turns)) if shown else CHANGED

    def _pass(self, questions: Sequence[Question]) -> list[Reading | Failure]:
        policy, head = self.policy, self.policy.span_head
        assert head is not None
        batch = policy.pack([each.ids for each in questions], [[]] * len(questions))
        readings: list[Reading | Failure] = []
        with policy.evaluating():
            layers = policy.reader(policy.model, batch, every=True).layers
            layer = layers[int(DEPTH * (len(layers) - 1))]  # (B, P, H), padded on the left
            for row, question in enumerate(questions):
                columns = torch.tensor(question.tokens, device=layer.device) + layer.shape[1] - len(question.ids)
                logits = unweighted(head(layer[row, columns.long()])).cpu()
                reading = Reading(question.places, question.turns, logits)
                readings.append(reading if logits.isfinite().all() else NOT_FINITE)
        return readings

    def _completion(self, reading: Reading | Failure) -> Completion | Failure:
        if isinstance(reading, Failure):
            return reading
        marks = self.marks(reading)
        return Completion(text="", score=balance(marks), spans=marks)

    def marks(self, reading: Reading) -> tuple[LabelledPlace, ...]:
        """The good and poor places, those of neighbouring tokens of a turn as one.

        A token's label is the likeliest, and its weight what it may be expected to pay: the
        probability of good less that of poor. Neighbours share the mean.
        """
        labels = likeliest_labels(reading.logits).tolist()
        chances = reading.logits.softmax(dim=-1)  # (N, 3) of poor, neither and good
        sure = (chances[:, 2] - chances[:, 0]).abs().clamp(min=LEAST).tolist()
        found = []
        each = zip(labels, reading.turns, reading.places, sure, strict=True)
        for (label, _), run in groupby(each, key=itemgetter(0, 1)):
            _, _, places, weights = zip(*run, strict=True)
            if label:
                mark = LabelledPlace(places[0][0], places[-1][1], label, round(fmean(weights), 3))
                found.append(mark)
        return tuple(found)
