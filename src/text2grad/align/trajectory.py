"""Read trajectories as engines hold them: ids after the prompt, and a mask of the sampled ones.

Each maximal run of the mask is a turn and is aligned separately; nothing is tokenised again.
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

MAX_PADDING = 16_384
"""Largest assumed padding of an output layer, where its size is unknown.

Models pad that layer (Qwen by about 400 rows, Phi by 900) and may sample such ids, which have no
text. Ids further beyond the vocabulary belong to another tokenizer.
"""


class ForeignIdsError(UserError):
    """Ids that the tokenizer does not have."""


@dataclass(frozen=True)
class Trajectory:
    """One sampled trajectory of T ids after the prompt of `example`.

    Attributes:
        example: the prompt, with its reference and metadata for the critic.
        ids: (T,), as sampled and as inserted by the environment, special tokens included.
        mask: (T,), 1 where the policy sampled the id; None: everywhere.
        between: the messages of tools and users before each turn, and one more entry for those
            after the last turn. None: they are decoded from the ids that the policy did not sample,
            each run as one message of a tool.
    """

    example: Example
    ids: Sequence[int]
    mask: Sequence[int] | None = None
    between: Sequence[Sequence[Message]] | None = None

    @property
    def is_sampled(self) -> list[bool]:
        """True where the policy sampled the id, (T,)."""
        return [True] * len(self.ids) if self.mask is None else [bool(sampled) for sampled in self.mask]


@dataclass(frozen=True)
class PolicyTokens:
    """The N tokens of a trajectory that the policy sampled.

    Attributes:
        response: their text; a `Transcript` if there are several turns or other messages.
        aligned: the tokens aligned with `response`.
        positions: (N,), the index of each token in the T ids.
        turns: (N,), the turn number of each token.
    """

    response: str
    aligned: Aligned
    positions: Offsets
    turns: Offsets

    def select_turn(self, number: int) -> tuple[Aligned, Offsets]:
        """Return one turn's tokens, aligned with the text of the turn, and their positions."""
        in_turn, turn = self.turns == number, turns_of(self.response)[number]
        edges = (edge[in_turn] - turn.start for edge in (self.aligned.starts, self.aligned.ends))
        return Aligned.of(self.response[turn.start : turn.end], *edges), self.positions[in_turn]


def read_policy_tokens(table: TokenTable, trajectory: Trajectory, output_size: int | None = None) -> PolicyTokens:
    """Align the policy's tokens of a trajectory, each turn separately.

    `output_size` is the number of ids that the policy can sample, if known.

    Raises:
        UserError: the mask or `between` does not fit the ids, or the ids belong to another
            tokenizer.
    """
    ids, mask = trajectory.ids, trajectory.is_sampled
    if len(mask) != len(ids):
        raise UserError(f"a mask of {len(mask)} for {len(ids)} ids", "one number for each id after the prompt")
    limit = table.vocabulary + MAX_PADDING if output_size is None else output_size
    foreign = next((index for index in ids if not 0 <= index < limit), None)
    if foreign is not None:
        valid_ids = f"{table.vocabulary:,} ids of this one"
        if output_size is not None:
            valid_ids = f"{output_size:,} ids that the model can sample"
        raise ForeignIdsError(
            f"ids of another tokenizer: {foreign} is not among the {valid_ids}",
            "pass the tokenizer of the policy that sampled them",
        )
    # Maximal runs of the mask in order: turns of the policy, and the text of others in between.
    runs = [
        (sampled, [position for position, _ in run])
        for sampled, run in groupby(enumerate(mask), key=lambda item: item[1])
    ]
    pieces = [
        (positions, table.align([ids[position] for position in positions]))
        for sampled, positions in runs
        if sampled
    ]
    between = _messages_between(table, trajectory, runs)
    if len(pieces) < 2 and not any(between):
        response = pieces[0][1].text if pieces else ""
    else:
        texts = [aligned.text for _, aligned in pieces]
        response = Transcript.of(zip(between, texts, strict=False), after=between[len(texts)])
    return _join_turns(response, pieces)


def align_recorded(table: TokenTable, response: str, ids: Sequence[Any] | None) -> Aligned:
    """Align a recorded response with its sampled ids if they decode to it, else tokenise it.

    `ids` is a list of ids, or for several turns one such list per turn.
    """
    turns = ids if ids and isinstance(ids[0], Sequence) else [ids or ()]
    pieces: list[tuple[list[int], Aligned]] = [([], table.align(turn)) for turn in turns]
    if ids and BETWEEN_TURNS.join(aligned.text for _, aligned in pieces) == response:
        return _join_turns(response, pieces).aligned
    return table.align_text(response)


def _messages_between(
    table: TokenTable, trajectory: Trajectory, runs: Sequence[tuple[bool, list[int]]]
) -> list[Sequence[Message]]:
    """Return the messages of tools and users before each turn, and after the last."""
    count = sum(sampled for sampled, _ in runs) + 1
    if trajectory.between is not None:
        if len(trajectory.between) != count:
            raise UserError(
                f"`between` has {len(trajectory.between)} lists of messages, and the trajectory needs {count}",
                "one list of messages before each run of the mask, and one after the last; empty ones too",
            )
        return list(trajectory.between)
    between: list[Sequence[Message]] = [()] * count
    turn = 0
    for sampled, positions in runs:
        if sampled:
            turn += 1
        elif text := table.align([trajectory.ids[position] for position in positions]).text.strip():
            between[turn] = (Message(role="tool", content=text),)
    return between


def _join_turns(response: str, pieces: Sequence[tuple[list[int], Aligned]]) -> PolicyTokens:
    """Join turns that were aligned separately, (positions, aligned) each, into one alignment."""
    starts: list[Offsets] = []
    ends: list[Offsets] = []
    offset = 0
    for _, aligned in pieces:
        starts.append(aligned.starts + offset)
        ends.append(aligned.ends + offset)
        # Characters count in the joined text, where BETWEEN_TURNS separates the turns.
        offset += len(aligned.text) + len(BETWEEN_TURNS)
    empty = np.zeros(0, dtype=np.int64)  # np.concatenate refuses an empty list
    edges = (np.concatenate([empty, *starts]), np.concatenate([empty, *ends]))
    turn_ends = tuple(accumulate(len(aligned) for _, aligned in pieces))
    return PolicyTokens(
        response=response,
        aligned=Aligned.of(str(response), *edges, turn_ends),
        positions=np.array([position for positions, _ in pieces for position in positions], dtype=np.int64),
        turns=np.repeat(np.arange(len(pieces)), [len(aligned) for _, aligned in pieces]),
    )
