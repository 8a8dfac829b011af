"""Training pairs: a conversation and the answer to learn, as token ids with weights and labels."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from text2grad.align import Aligned, TokenTable, token_labels
from text2grad.durable.identity import flatten, hash_starting_weights
from text2grad.errors import UserError
from text2grad.feedback import Message, Span
from text2grad.policy.encode import check_lengths
from text2grad.policy.episode import encode_turns
from text2grad.policy.heads.head import UNLABELLED
from text2grad.policy.heads.tagger import place_in
from text2grad.policy.model import Policy
from text2grad.train.settings import SupervisedSettings

LENGTH_POOL = 16
"""Batches whose pairs are sorted by length together."""


@dataclass(frozen=True)
class MarkedText:
    """A text that stands at character `start` of the last message of a prompt, and spans of it."""

    start: int
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Pair:
    """One training pair: a conversation (`prompt`) and the answer to learn (`target`), of a
    `Transcript` the turns of the policy; `id` names it in messages.

    `marked`: texts in the prompt whose words are labelled, for a second loss (`policy.heads`).
    `score`: in [-1, 1], for a head that reads it off the prompt (`policy.heads`).
    """

    id: str
    prompt: tuple[Message, ...]
    target: str
    marked: tuple[MarkedText, ...] = ()
    score: float | None = None


@dataclass(frozen=True)
class PromptAndTarget:
    """Token ids of a conversation, and of the answer that something is learned from.

    Items with similar numbers of `tokens` share a batch.
    """

    prompt: list[int]
    target: list[int]

    @property
    def whole(self) -> list[int]:
        """Both, as the model reads them."""
        return [*self.prompt, *self.target]

    @property
    def tokens(self) -> int:
        """Of the whole sequence."""
        return len(self.prompt) + len(self.target)

    @property
    def parts(self) -> dict[str, list[int]]:
        """Both by name."""
        return {"prompt": self.prompt, "target": self.target}


E = TypeVar("E", bound=PromptAndTarget)


@dataclass(frozen=True)
class Encoded(PromptAndTarget):
    """A pair as token ids; the loss is on `target` only, where each token has its weight.

    `labels`: of the tokens of the prompt, +1, -1, 0 or `UNLABELLED`; none where no second loss is
    wanted.
    """

    weights: list[float]
    labels: list[int] = field(default_factory=list)
    score: float | None = None


def supervised_identity(
    policy: Policy, settings: SupervisedSettings, section: str, data: dict[str, str]
) -> dict[str, str]:
    """What a supervised run depends on, by name: its `settings`, those of a section, and digests of
    `data`."""
    return {
        **flatten(**{section: settings}),
        "the starting model": hash_starting_weights(policy),
        **data,
    }


def encode_pairs(policy: Policy, pairs: Sequence[Pair]) -> list[Encoded]:
    """Token ids of all pairs; refuses pairs that do not fit, and cuts nothing."""
    table = TokenTable(policy.tokenizer) if any(pair.marked for pair in pairs) else None
    encoded = [_encoded(policy, pair, table) for pair in pairs]
    refuse_long(policy, [pair.id for pair in pairs], encoded)
    return encoded


def refuse_long(policy: Policy, names: Sequence[str], items: Sequence[PromptAndTarget]) -> None:
    """Raises UserError: an item exceeds the policy's context; names the first by its id."""
    sequences = [(name, item.whole) for name, item in zip(names, items, strict=True)]
    check_lengths(sequences, policy.context, 0)


def _encoded(policy: Policy, pair: Pair, table: TokenTable | None) -> Encoded:
    thread = encode_turns(policy.tokenizer, pair.prompt, pair.target)
    target, weights = thread.ids, [float(own) for own in thread.mask]
    labels = _prompt_labels(pair, table.align(thread.prompt)) if pair.marked and table is not None else []
    return Encoded(thread.prompt, target, weights, labels, pair.score)


def _prompt_labels(pair: Pair, aligned: Aligned) -> list[int]:
    """The label of every token of the prompt: that of the spans of a marked text, `UNLABELLED`
    outside all."""
    found = np.full(len(aligned), UNLABELLED)
    for marked in pair.marked:
        start = place_in(aligned, pair.prompt[-1].content, marked.start, marked.text)
        if start is None:
            raise UserError(
                f"{pair.id}: this tokenizer changes the text it reads, so no words can be labelled",
                "reward_model.kind generative, and label_weight 0",
            )
        spans = [s.model_copy(update={"start": s.start + start, "end": s.end + start}) for s in marked.spans]
        inside = (aligned.starts < start + len(marked.text)) & (aligned.ends > start)
        found[inside] = token_labels(spans, aligned)[inside]
    return [int(label) for label in found]


def updates_of(settings: SupervisedSettings, examples: int) -> int:
    """How many optimizer steps `settings.epochs` are."""
    return max(1, round(settings.epochs * examples / settings.batch_size))


def plan_batches(encoded: Sequence[E], settings: SupervisedSettings, seed: int) -> Iterator[list[E]]:
    """Optimizer steps: every epoch a new order, batches of similar length (less padding), in random
    order."""
    rng = random.Random(seed)
    total = updates_of(settings, len(encoded))
    while total > 0:
        order = rng.sample(list(encoded), len(encoded))
        pool = settings.batch_size * LENGTH_POOL  # sorting a whole epoch would batch the same items every time
        batches: list[list[E]] = []
        for start in range(0, len(order), pool):
            near = sorted(order[start : start + pool], key=lambda item: item.tokens)
            batches += [near[i : i + settings.batch_size] for i in range(0, len(near), settings.batch_size)]
        rng.shuffle(batches)
        yield from batches[:total]
        total -= len(batches)
