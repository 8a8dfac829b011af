"""Encode training pairs: a conversation and the answer to learn, as weighted and labelled ids."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from text2grad.align import Aligned, TokenTable, get_table, token_labels
from text2grad.durable.identity import flatten, hash_starting_weights
from text2grad.errors import UserError
from text2grad.feedback import Message, Span
from text2grad.policy.encode import check_lengths
from text2grad.policy.episode import encode_turns
from text2grad.policy.heads.head import UNLABELLED
from text2grad.policy.heads.tagger import find_text
from text2grad.policy.model import Policy
from text2grad.train.settings import SupervisedSettings

LENGTH_POOL = 16
"""Number of batches whose pairs are sorted by length together."""


@dataclass(frozen=True)
class MarkedText:
    """A text at character `start` of the last message of a prompt, with labelled spans."""

    start: int
    text: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Pair:
    """One training pair: a conversation and the answer to learn.

    Attributes:
        id: names the pair in messages.
        prompt: the conversation.
        target: the answer; in a `Transcript`, the policy's turns are learned.
        marked: texts in the prompt whose words are labelled, for a second loss (`policy.heads`).
        score: in [-1, 1], the target of a head that reads the prompt (`policy.heads`).
    """

    id: str
    prompt: tuple[Message, ...]
    target: str
    marked: tuple[MarkedText, ...] = ()
    score: float | None = None


@dataclass(frozen=True)
class PromptAndTarget:
    """Token ids of a conversation, and of the answer to learn."""

    prompt: list[int]
    target: list[int]

    @property
    def ids(self) -> list[int]:
        """Prompt and target, as the model reads them."""
        return [*self.prompt, *self.target]

    @property
    def tokens(self) -> int:
        """The number of tokens; items with similar numbers share a batch."""
        return len(self.prompt) + len(self.target)

    @property
    def parts(self) -> dict[str, list[int]]:
        """Prompt and target by name."""
        return {"prompt": self.prompt, "target": self.target}


E = TypeVar("E", bound=PromptAndTarget)


@dataclass(frozen=True)
class EncodedPair(PromptAndTarget):
    """A pair as token ids; the loss is on `target` only.

    Attributes:
        weights: the weight of each token of the target.
        labels: +1, -1, 0 or `UNLABELLED` for each token of the prompt; empty without a second loss.
        score: the target of a score head.
    """

    weights: list[float]
    labels: list[int] = field(default_factory=list)
    score: float | None = None


def supervised_identity(
    policy: Policy, settings: SupervisedSettings, section: str, data: dict[str, str]
) -> dict[str, str]:
    """Return the inputs of a supervised run by name: settings, starting model, digests of data."""
    return {
        **flatten(**{section: settings}),
        "the starting model": hash_starting_weights(policy),
        **data,
    }


def encode_pairs(policy: Policy, pairs: Sequence[Pair]) -> list[EncodedPair]:
    """Return the token ids of all pairs.

    Raises:
        UserError: a pair does not fit the context (pairs are never truncated), or the tokenizer
            changes a text whose words are labelled.
    """
    table = get_table(policy.tokenizer) if any(pair.marked for pair in pairs) else None
    encoded = [_encode_pair(policy, pair, table) for pair in pairs]
    refuse_long(policy, [pair.id for pair in pairs], encoded)
    return encoded


def refuse_long(policy: Policy, names: Sequence[str], items: Sequence[PromptAndTarget]) -> None:
    """Raise a `UserError` if an item is longer than the policy's context."""
    sequences = [(name, item.ids) for name, item in zip(names, items, strict=True)]
    check_lengths(sequences, policy.context, 0)


def _encode_pair(policy: Policy, pair: Pair, table: TokenTable | None) -> EncodedPair:
    dialogue = encode_turns(policy.tokenizer, pair.prompt, pair.target)
    # Tools and users in a transcript are read, not imitated.
    weights = [float(sampled) for sampled in dialogue.mask]
    labels = _prompt_labels(pair, table.align(dialogue.prompt)) if pair.marked and table is not None else []
    return EncodedPair(dialogue.prompt, dialogue.ids, weights, labels, pair.score)


def _prompt_labels(pair: Pair, aligned: Aligned) -> list[int]:
    """Return the label of every token of the prompt, `UNLABELLED` outside the marked texts."""
    labels = np.full(len(aligned), UNLABELLED)
    for marked in pair.marked:
        start = find_text(aligned, pair.prompt[-1].content, marked.start, marked.text)
        if start is None:
            raise UserError(
                f"{pair.id}: this tokenizer changes the text it reads, so no words can be labelled",
                "reward_model.kind generative, and label_weight 0",
            )
        spans = [s.model_copy(update={"start": s.start + start, "end": s.end + start}) for s in marked.spans]
        inside = (aligned.starts < start + len(marked.text)) & (aligned.ends > start)
        labels[inside] = token_labels(spans, aligned)[inside]
    return [int(label) for label in labels]


def count_updates(settings: SupervisedSettings, examples: int) -> int:
    """Return the number of optimizer steps in `settings.epochs`."""
    return max(1, round(settings.epochs * examples / settings.batch_size))


def plan_batches(encoded: Sequence[E], settings: SupervisedSettings, seed: int) -> Iterator[list[E]]:
    """Yield the batch of each optimizer step, in a new order every epoch.

    Batches have items of similar length (less padding) and come in random order.
    """
    rng = random.Random(seed)
    remaining = count_updates(settings, len(encoded))
    # Sorting pools instead of a whole epoch: otherwise every epoch would have the same batches.
    pool_size = settings.batch_size * LENGTH_POOL
    while remaining > 0:
        order = rng.sample(list(encoded), len(encoded))
        batches: list[list[E]] = []
        for start in range(0, len(order), pool_size):
            pool = sorted(order[start : start + pool_size], key=lambda item: item.tokens)
            batches += [pool[i : i + settings.batch_size] for i in range(0, len(pool), settings.batch_size)]
        rng.shuffle(batches)
        yield from batches[:remaining]
        remaining -= len(batches)
