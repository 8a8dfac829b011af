"""What a trajectory is paid, by another road: for random words of it, which tokens must have a
reward."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from text2grad.align import TokenTable
from text2grad.align.rewards import Aligner
from text2grad.align.trajectory import Trajectory, read_policy_tokens
from text2grad.feedback import Critique, Span, turns_of


def check_paid(data: st.DataObject, table: TokenTable, trajectory: Trajectory) -> None:
    """A token of a turn is paid where its turn, aligned alone, says that it is."""
    ids, mask = list(trajectory.ids), np.array(trajectory.mask, dtype=bool)
    own = read_policy_tokens(table, trajectory)
    text = str(own.response)
    place = (
        data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2, unique=True).map(sorted))
        if text
        else []
    )
    spans = (Span(start=place[0], end=place[1], label=-1, text=text[slice(*place)]),) if place else ()
    rewards = Aligner(table).rewards(Critique(text="", spans=spans, score=0.5), ids, mask=mask)
    assert len(rewards) == len(ids)
    assert not rewards[~mask].any(), "what others wrote is paid exactly nothing"
    verdict_at = max(np.flatnonzero(mask), default=None)
    if verdict_at is None:
        return
    words = rewards.copy()
    words[verdict_at] -= 0.5
    expected = np.zeros(len(ids))
    for turn, run in zip(turns_of(own.response), runs(mask), strict=True):
        aligned = table.align([ids[index] for index in run])
        assert aligned.text == text[turn.start : turn.end]
        for span in spans:
            inside = text[max(span.start, turn.start) : min(span.end, turn.end)]
            start, end = span.start - turn.start, span.end - turn.start
            if solid := span.text.strip():  # white space at the edges of a span is not of it
                start += span.text.index(solid)
                end = start + len(solid)
            for index, first, last in zip(run, aligned.starts, aligned.ends, strict=True):
                if inside and first < end and last > start and last > first:
                    expected[index] = -1.0
    assert words.tolist() == expected.tolist()


def runs(mask: Any) -> list[list[int]]:
    """The maximal runs of a mask."""
    found: list[list[int]] = []
    for index in np.flatnonzero(mask).tolist():
        if found and found[-1][-1] == index - 1:
            found[-1].append(index)
        else:
            found.append([index])
    return found
