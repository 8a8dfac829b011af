"""Test a plug-in: the engine must train on the credit of each token at exactly that token.

The trajectories are assembled from pieces that are blamed or not, so the expected number of each id
is known without any alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from text2grad.align.credit import CreditSettings
from text2grad.align.rewards import TokenCredit
from text2grad.align.trajectory import Trajectory
from text2grad.feedback import Critique, Example, Failure, Judgement, Message, Source, Span

Numbers = NDArray[np.float64]
BLAMED, UNJUDGED = ("wrong", "🙂"), "silence"
GROUP = 4
"""Trajectories per prompt."""
BEYOND = 3
"""Distance of an id beyond the vocabulary; models with a padded output layer sample such ids."""


@dataclass(frozen=True)
class Case:
    """One trajectory of T ids with its expected credit.

    Attributes:
        group: equal for cases that answer one prompt; `GROUP` of them are adjacent.
        blamed: (T,), 1 at each token of a blamed word that the policy sampled.
        verdict: the critic's score, None where it fails.
    """

    name: str
    group: int
    prompt: tuple[int, ...]
    trajectory: Trajectory
    blamed: Numbers
    verdict: float | None

    @property
    def mask(self) -> Numbers:
        """(T,), 1 where the policy sampled the id."""
        return np.asarray(self.trajectory.mask, dtype=np.float64)


class Row(NamedTuple):
    """The data on which an engine trains for one trajectory, all of one length.

    Attributes:
        ids: with the engine's prompt and padding.
        numbers: the advantages or rewards of these ids.
        mask: the mask of its loss, if it has one.
    """

    ids: Any
    numbers: Any
    mask: Any = None


Land = Callable[[TokenCredit, Sequence[Case]], Sequence[Row | None]]
"""A function that runs cases through a plug-in; returns None for a trajectory that was left out."""
Outcome = Callable[[Numbers], Numbers]


class LandingCritic:
    """A critic that blames every word of `BLAMED` and fails on texts with `UNJUDGED`.

    The verdict falls with the number of blamed words.
    """

    source = Source(kind="program", model="landing")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self._judge(str(text)) for text in responses]

    def _judge(self, text: str) -> Judgement:
        if UNJUDGED in text:
            return Failure(kind="invalid", message="it says nothing")
        matches = sorted((at, word) for word in BLAMED for at in range(len(text)) if text.startswith(word, at))
        spans = tuple(Span(start=at, end=at + len(word), label=-1, text=word) for at, word in matches)
        return Critique(text="", spans=spans, score=1 / (1 + len(spans)))


def standardise(verdicts: Numbers) -> Numbers:
    """Return the verdicts of a group, centred and divided by their standard deviation."""
    centred = verdicts - verdicts.mean()
    return np.asarray(centred / (centred.std() + 1e-4))


def landing_cases(tokenizer: Any) -> list[Case]:
    """Return two groups of trajectories with the difficulties of real engines.

    These are prompts of unequal length, tools whose text would be blamed (also at the end), a turn
    cut inside a character, ids beyond the vocabulary, a blamed character of several tokens, and a
    failing critic.
    """
    beyond = [1 + max(map(int, tokenizer.get_vocab().values())) + BEYOND]
    end, part = [tokenizer.eos_token_id], _encode(tokenizer, "🙂")[:-1]
    tool = _encode(tokenizer, "wrong 🙂 " * 12)
    # Each piece is a text or its ids, and 1 if the policy sampled it.
    cases: dict[str, list[tuple[Any, int]]] = {
        "one turn": [("fine then ", 1), ("wrong", 1), (" and on", 1), (end, 1)],
        "nothing blamed": [("fine then", 1), (end, 1)],
        "a tool between": [("a call ", 1), ("wrong", 1), (end, 1), (tool, 0), ("so it is ", 1), ("wrong", 1)],
        "ends with a tool": [("a call ", 1), ("wrong", 1), (tool, 0), ("then", 1), (tool[:5], 0)],
        "cut in a character": [("wrong", 1), (" at length, and ", 1), (tool[:7], 0), ("then ", 1), (part, 1)],
        "beyond the vocabulary": [(beyond, 1), ("fine ", 1), (beyond, 1), ("wrong", 1), (beyond, 1)],
        "several tokens": [("so: ", 1), ("🙂", 1), ("! ", 1), ("🙂", 1), (end, 1)],
        "not judged": [("wrong", 1), (tool[:6], 0), (" " + UNJUDGED, 1), (end, 1)],
    }
    prompts = [
        _encode(tokenizer, "Say it."),
        _encode(tokenizer, "Say it again, and at some length, please."),
    ]
    return [
        _make_case(name, number // GROUP, tuple(prompts[number // GROUP]), pieces, tokenizer)
        for number, (name, pieces) in enumerate(cases.items())
    ]


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _make_case(
    name: str, group: int, prompt: tuple[int, ...], pieces: Sequence[tuple[Any, int]], tokenizer: Any
) -> Case:
    ids: list[int] = []
    mask: list[int] = []
    blamed: list[float] = []
    blamed_words, failed = 0, False
    for piece, sampled in pieces:
        piece_ids = _encode(tokenizer, piece) if isinstance(piece, str) else piece
        is_blamed = bool(sampled) and isinstance(piece, str) and piece in BLAMED
        ids += piece_ids
        mask += [sampled] * len(piece_ids)
        blamed += [float(is_blamed and bool(tokenizer.decode([index]).strip())) for index in piece_ids]
        blamed_words += is_blamed
        failed |= isinstance(piece, str) and UNJUDGED in piece
    example = Example(id=name, prompt=(Message(role="user", content=str(group)),))
    verdict = None if failed else 1 / (1 + blamed_words)
    return Case(name, group, prompt, Trajectory(example, ids, mask), np.array(blamed), verdict)


def check_landing(
    land: Land, tokenizer: Any, outcome: Outcome | None = standardise, tolerance: float = 2e-6
) -> int:
    """Check that a plug-in pays the right tokens; return the number of blamed tokens.

    The check is repeated with the numbers shifted by one id in both directions, and must fail then.

    Args:
        land: runs a `TokenCredit` and the cases through the plug-in, and returns the rows that its
            engine trains on.
        tokenizer: of transformers.
        outcome: for an engine that takes advantages, the function from the verdicts of a group to
            their share of the advantages; the rest are word rewards. None for an engine that takes
            rewards: word rewards, plus the verdict on the policy's last token.
        tolerance: largest accepted difference of a number.

    Raises:
        AssertionError: names the first trajectory with a wrong number.
    """
    cases = landing_cases(tokenizer)
    credit = TokenCredit(LandingCritic(), tokenizer, CreditSettings())
    rows = land(credit, cases)
    expected = list(_expected_numbers(cases, outcome))
    assert len(rows) == len(cases), f"{len(rows)} rows for {len(cases)} trajectories"
    for case, row, numbers in zip(cases, rows, expected, strict=True):
        problem = _find_problem(case, row, numbers, tolerance)
        assert not problem, f"{case.name}: {problem}"
    for shift in (-1, 1):
        shifted = [row and row._replace(numbers=np.roll(np.asarray(row.numbers), shift)) for row in rows]
        problems = [_find_problem(*item, tolerance) for item in zip(cases, shifted, expected, strict=True)]
        assert any(problems), f"rows shifted by {shift} pass as well: the rows hold no credit"
    return int(sum(case.blamed.sum() for case in cases if case.verdict is not None))


def _expected_numbers(cases: Sequence[Case], outcome: Outcome | None) -> Iterator[Numbers]:
    """Yield the expected numbers of each trajectory, (T,); 0 where the critic failed."""
    for case in cases:
        if case.verdict is None:
            yield np.zeros(len(case.mask))
        elif outcome is None:
            last = np.arange(len(case.mask)) == np.flatnonzero(case.mask)[-1]
            yield case.verdict * last - case.blamed
        else:
            members = [member for member in cases if member.group == case.group and member.verdict is not None]
            group_terms = outcome(np.array([member.verdict for member in members]))
            yield case.mask * group_terms[members.index(case)] - case.blamed


def _find_problem(case: Case, row: Row | None, expected: Numbers, tolerance: float) -> str:
    """Describe the first fault of a row, "" if it has none."""
    if row is None:
        return "" if case.verdict is None else "it was judged, but the plug-in left it out"
    ids, numbers = (np.asarray(column).astype(np.float64) for column in (row.ids, row.numbers))
    if len(ids) != len(numbers):
        return f"{len(numbers)} numbers for {len(ids)} ids"
    case_ids = np.asarray(case.trajectory.ids)
    count = len(case_ids)
    starts = [at for at in range(len(ids) - count + 1) if (ids[at : at + count] == case_ids).all()]
    if not starts:
        return "the engine's row does not contain the trajectory's ids"
    inside = slice(starts[-1], starts[-1] + count)
    outside = np.delete(numbers, np.arange(len(ids))[inside])
    if outside.any():
        return f"{np.count_nonzero(outside)} ids of the prompt or the padding have credit"
    differences = np.abs(numbers[inside] - expected)
    if differences.max() > tolerance:
        at = int(differences.argmax())
        return f"id {at} of {count} gets {numbers[inside][at]:.6g}, and should get {expected[at]:.6g}"
    if row.mask is None:
        return "" if case.verdict is not None else "its critic failed, but it is not left out of the loss"
    loss_mask = np.asarray(row.mask).astype(np.float64)
    expected_mask = np.zeros(len(loss_mask))
    expected_mask[inside] = case.mask * (case.verdict is not None)
    if (loss_mask != expected_mask).any():
        return "the loss mask is not 1 at exactly the judged ids of the policy"
    return ""
