"""Trajectories as engines hold them: ids after the prompt, and a mask of those that the policy
sampled.

Each maximal run of the mask is a turn and is aligned by itself; nothing is tokenised again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from text2grad.align.tokens import Aligned, Offsets, TokenTable
from text2grad.errors import UserError
from text2grad.feedback import BETWEEN_TURNS, Example, Message, Transcript, turns_of

PADDED = 16_384
"""Models pad their output layer (Qwen by some 400 rows, Phi by 900) and sample such ids: tokens
without text. Where the size of that layer is unknown, ids further beyond the vocabulary are of
another tokenizer."""


class StrangeIdsError(UserError):
    """Ids that are not of the tokenizer."""


@dataclass(frozen=True)
class Trajectory:
    """One sampled trajectory of T ids after the prompt of `example`, as the engine holds them.

    `mask` (T,) is 1 where the policy sampled the id; without it, everywhere. `between` are the
    messages of others before each turn, and, one more, after the last; without it they are read off
    the ids that the policy did not sample, each run as one message of a tool.
    """

    example: Example
    ids: Sequence[int]
    mask: Sequence[int] | None = None
    between: Sequence[Sequence[Message]] | None = None


@dataclass(frozen=True)
class OwnTokens:
    """The policy's own part of a trajectory: its text, its N tokens aligned with it, and their
    places among the ids.

    `response` is plain text where there is one turn and nobody else spoke, and a `Transcript`
    otherwise. `places` is (N,), `turns` (N,) the number of each token's turn.
    """

    response: str
    aligned: Aligned
    places: Offsets
    turns: Offsets

    def of_turn(self, number: int) -> tuple[Aligned, Offsets]:
        """A turn's tokens aligned with its own text, and their places among the ids."""
        own, turn = self.turns == number, turns_of(self.response)[number]
        edges = (edge[own] - turn.start for edge in (self.aligned.starts, self.aligned.ends))
        return Aligned.of(self.response[turn.start : turn.end], *edges), self.places[own]


def own_tokens(table: TokenTable, trajectory: Trajectory, output_size: int | None = None) -> OwnTokens:
    """Read the policy's turns off the ids, every maximal run of its own by itself.

    `output_size`: the number of ids that the policy can sample.

    Raises:
        UserError: the mask or the messages between do not fit the ids, or the ids are of another
            tokenizer.
    """
    ids = trajectory.ids
    mask = _checked_mask(trajectory)
    limit = table.vocabulary + PADDED if output_size is None else output_size
    strange = next((index for index in ids if not 0 <= index < limit), None)
    if strange is not None:
        known_ids = f"{table.vocabulary:,} ids of this one"
        if output_size is not None:
            known_ids = f"{output_size:,} ids that the model can sample"
        raise StrangeIdsError(
            f"ids of another tokenizer: {strange} is not among the {known_ids}",
            "hand in the tokenizer of the policy that sampled them",
        )
    runs = [(own, [place for place, _ in run]) for own, run in groupby(enumerate(mask), key=lambda each: each[1])]
    pieces = [(places, table.align([ids[place] for place in places])) for own, places in runs if own]
    others = _others(table, trajectory, runs)
    if len(pieces) < 2 and not any(others):
        response = pieces[0][1].text if pieces else ""
    else:
        texts = [aligned.text for _, aligned in pieces]
        response = Transcript.of(zip(others, texts, strict=False), after=others[len(texts)])
    return _joined(response, pieces)


def recorded_tokens(table: TokenTable, response: str, ids: Sequence[Any] | None) -> Aligned:
    """The tokens of a response on record: those of `ids` as it was sampled, of several turns a list
    for each, where they read as the response does; else the tokenizer's own."""
    turns = ids if ids and isinstance(ids[0], Sequence) else [ids or ()]
    pieces: list[tuple[list[int], Aligned]] = [([], table.align(each)) for each in turns]
    if ids and BETWEEN_TURNS.join(aligned.text for _, aligned in pieces) == response:
        return _joined(response, pieces).aligned
    return table.align_text(response)


def _checked_mask(trajectory: Trajectory) -> list[bool]:
    mask = [True] * len(trajectory.ids) if trajectory.mask is None else [bool(own) for own in trajectory.mask]
    if len(mask) != len(trajectory.ids):
        raise UserError(
            f"a mask of {len(mask)} for {len(trajectory.ids)} ids", "one number for each id after the prompt"
        )
    return mask


def _others(
    table: TokenTable, trajectory: Trajectory, runs: Sequence[tuple[bool, list[int]]]
) -> list[Sequence[Message]]:
    """What others said before each turn, and after the last."""
    count = sum(own for own, _ in runs) + 1
    if trajectory.between is not None:
        if len(trajectory.between) != count:
            raise UserError(
                f"messages between turns for {len(trajectory.between)} places, and there are {count}",
                "one list of messages before each run of the mask, and one after the last; empty ones too",
            )
        return list(trajectory.between)
    found: list[Sequence[Message]] = [()] * count
    turn = 0
    for own, places in runs:
        if own:
            turn += 1
        elif text := table.align([trajectory.ids[place] for place in places]).text.strip():
            found[turn] = (Message(role="tool", content=text),)
    return found


def _joined(response: str, pieces: Sequence[tuple[list[int], Aligned]]) -> OwnTokens:
    """Turns that are aligned by themselves as one alignment with the whole response."""
    starts: list[Offsets] = []
    ends: list[Offsets] = []
    offset = 0
    for _, aligned in pieces:
        starts.append(aligned.starts + offset)
        ends.append(aligned.ends + offset)
        offset += len(aligned.text) + len(BETWEEN_TURNS)
    none = np.zeros(0, dtype=np.int64)
    edges = (np.concatenate([none, *starts]), np.concatenate([none, *ends]))
    turn_ends = tuple(accumulate(len(aligned) for _, aligned in pieces))
    return OwnTokens(
        response=response,
        aligned=Aligned.of(str(response), *edges, turn_ends),
        places=np.array([place for places, _ in pieces for place in places], dtype=np.int64),
        turns=np.repeat(np.arange(len(pieces)), [len(aligned) for _, aligned in pieces]),
    )
