"""A reward model that labels tokens instead of writing: a head reads the judge's prompt.

One pass over the prompt labels each token of the response from a layer below the last
(`policy.heads.head`). The verdict is computed from the labels. Results are in characters of the
response, because the trained policy may have another tokenizer.
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

from text2grad.align import Aligned, get_table
from text2grad.chat import Completion
from text2grad.feedback import Failure, LabelledPlace, Message, Overlap, Place, Transcript, turns_of
from text2grad.policy.encode import count_excess, encode_prompt
from text2grad.policy.heads.head import likeliest_labels, select_layer, unweighted
from text2grad.policy.model import Policy

MIN_WEIGHT = 0.001
"""The weight of a mark whose good and poor labels are equally likely; span weights are positive."""
TOO_LONG = Failure(kind="unsupported", message="prompt and response are longer than the model's context")
NOT_FINITE = Failure(kind="invalid", message="the reward model's numbers are not finite")
NOT_VERBATIM = Failure(kind="unsupported", message="the response is not in the judge's prompt verbatim")


def find_turns(message: str, response: str) -> list[tuple[int, Place]]:
    """Find each turn of a response in a judge's last message.

    Returns:
        Each turn's start in the message and its place in the response; empty if a turn was changed.
    """
    starts: list[tuple[int, Place]] = []
    end, closing = len(message), "\n</turn>" if isinstance(response, Transcript) else "\n"
    for turn in reversed(turns_of(response)):
        start = message.rfind(f"\n{response[turn.start : turn.end]}{closing}", 0, end) + 1
        if not start:
            return []
        starts.insert(0, (start, (turn.start, turn.end)))
        end = start
    return starts


def find_text(aligned: Aligned, message: str, start: int, text: str) -> int | None:
    """Return the position of `text` in a tokenised prompt; None if the tokenizer changes it.

    `message` is the last message of the prompt, and `start` the position of the text in it.
    """
    offset = aligned.text.rfind(message.strip())  # chat templates strip turns
    begin = offset + start - (len(message) - len(message.lstrip()))
    return begin if offset >= 0 and aligned.text[begin : begin + len(text)] == text else None


def balance(marks: Sequence[LabelledPlace]) -> float:
    """Return a verdict in [-1, 1]: good minus poor characters as a share of both, or 0."""
    sizes = [mark.label * (mark.end - mark.start) for mark in marks]
    return sum(sizes) / max(1, sum(map(abs, sizes)))


class Question(NamedTuple):
    """A judge's prompt as ids, and its N tokens that belong to the response and are not blank.

    Attributes:
        tokens: the indices of the N tokens in the prompt.
        places: their characters in the response.
        turns: the turns they belong to.
    """

    ids: tuple[int, ...]
    tokens: tuple[int, ...]
    places: tuple[Place, ...]
    turns: tuple[int, ...]


class Reading(NamedTuple):
    """Logits (N, 3) for N places of a response, corrected for class weights, and their turns.

    `token_count` is the number of tokens that the model read, prompt included.
    """

    places: tuple[Place, ...]
    turns: tuple[int, ...]
    logits: Tensor
    token_count: int


class Tagger:
    """Labels the tokens of responses in judges' prompts."""

    def __init__(self, policy: Policy, batch_size: int) -> None:
        self.policy, self.batch_size = policy, batch_size
        self.overlap: Overlap = "never" if policy.adapter else "allowed"
        self._table = get_table(policy.tokenizer)

    def excess(self, conversation: Sequence[Message]) -> int:
        """Return the tokens by which a conversation exceeds the model's context."""
        return count_excess(self.policy.tokenizer, conversation, self.policy.context)

    def tag(self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]) -> list[Completion | Failure]:
        """Return the labelled places and the verdict of each response `texts[i]`.

        A response that does not fit, or whose numbers are not finite, yields a failure.
        """
        return [self._completion(reading) for reading in self.read(conversations, texts)]

    def read(self, conversations: Sequence[Sequence[Message]], texts: Sequence[str]) -> list[Reading | Failure]:
        """Return the logits of each response; equal questions are read once."""
        results = [self._question(*pair) for pair in zip(conversations, texts, strict=True)]
        distinct = {result for result in results if isinstance(result, Question)}
        questions = sorted(distinct, key=lambda question: len(question.ids))
        readings: dict[Question, Reading | Failure] = {}
        for start in range(0, len(questions), self.batch_size):
            batch = questions[start : start + self.batch_size]
            readings |= zip(batch, self._read_batch(batch), strict=True)
        return [result if isinstance(result, Failure) else readings[result] for result in results]

    def _question(self, conversation: Sequence[Message], text: str) -> Question | Failure:
        ids, message = encode_prompt(self.policy.tokenizer, conversation), conversation[-1].content
        if self.policy.context is not None and len(ids) > self.policy.context:
            return TOO_LONG
        aligned, starts_of_turns = self._table.align(ids), find_turns(message, text)
        tokens: list[int] = []
        places: list[Place] = []
        turns: list[int] = []
        for turn, (position, (start, end)) in enumerate(starts_of_turns):
            begin = find_text(aligned, message, position, text[start:end])
            if begin is None:
                return NOT_VERBATIM
            cores = (aligned.core_starts, aligned.core_ends)
            starts, ends = (np.clip(edge - begin + start, start, end) for edge in cores)
            inside = np.flatnonzero(starts < ends).tolist()
            tokens += inside
            places += [(int(starts[token]), int(ends[token])) for token in inside]
            turns += [turn] * len(inside)
        if not starts_of_turns:
            return NOT_VERBATIM
        return Question(tuple(ids), tuple(tokens), tuple(places), tuple(turns))

    def _read_batch(self, questions: Sequence[Question]) -> list[Reading | Failure]:
        policy, head = self.policy, self.policy.span_head
        assert head is not None
        batch = policy.pack([question.ids for question in questions], [[]] * len(questions))
        readings: list[Reading | Failure] = []
        with policy.evaluating():
            # (B, P, H), padded on the left
            layer = select_layer(policy.reader(policy.model, batch, all_layers=True).layers)
            for row, question in enumerate(questions):
                columns = torch.tensor(question.tokens, device=layer.device) + layer.shape[1] - len(question.ids)
                logits = unweighted(head(layer[row, columns.long()])).cpu()
                reading = Reading(question.places, question.turns, logits, len(question.ids))
                readings.append(reading if logits.isfinite().all() else NOT_FINITE)
        return readings

    def _completion(self, reading: Reading | Failure) -> Completion | Failure:
        if isinstance(reading, Failure):
            return reading
        marks = self.marks(reading)
        return Completion(text="", score=balance(marks), spans=marks, usage={"input_tokens": reading.token_count})

    def marks(self, reading: Reading) -> tuple[LabelledPlace, ...]:
        """Return the good and poor places, with neighbouring tokens of a turn merged.

        A token gets its likeliest label, and as weight the expected reward: the probability of good
        minus that of poor. The weight of a place is the mean of its tokens.
        """
        labels = likeliest_labels(reading.logits).tolist()
        probabilities = reading.logits.softmax(dim=-1)  # (N, 3): poor, neither, good
        token_weights = (probabilities[:, 2] - probabilities[:, 0]).abs().clamp(min=MIN_WEIGHT).tolist()
        marks = []
        tokens = zip(labels, reading.turns, reading.places, token_weights, strict=True)
        for (label, _), run in groupby(tokens, key=itemgetter(0, 1)):
            _, _, places, weights = zip(*run, strict=True)
            if label:
                marks.append(LabelledPlace(places[0][0], places[-1][1], label, round(fmean(weights), 3)))
        return tuple(marks)
