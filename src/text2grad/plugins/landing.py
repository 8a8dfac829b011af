"""Whether token credit lands: the numbers an engine trains on stand at the tokens that were paid,
and nowhere else.

For the tests of a plug-in. The trajectories are put together from pieces that are blamed or not, so
what each id must get is known without any alignment of ours.
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
BEYOND = 3
"""How far beyond the vocabulary an id stands: models with a padded output layer sample such ids."""


@dataclass(frozen=True)
class Case:
    """One trajectory to land: its prompt's ids, its T ids and mask, and what is known of it.

    `blamed` (T,) is 1 at each token of a blamed word of the policy's own. `verdict` is what its
    critic gives, None where that fails. Cases of one `group` answer one prompt; `GROUP` of them
    stand together.
    """

    name: str
    group: int
    prompt: tuple[int, ...]
    trajectory: Trajectory
    blamed: Numbers
    verdict: float | None

    @property
    def own(self) -> Numbers:
        """(T,), 1 where the policy sampled the id."""
        return np.asarray(self.trajectory.mask, dtype=np.float64)


class Row(NamedTuple):
    """What an engine trains on of one trajectory: ids with whatever padding and prompt the engine
    adds, the numbers beside them, and, where the engine has one, the mask of its loss; equally
    long."""

    ids: Any
    numbers: Any
    mask: Any = None


Land = Callable[[TokenCredit, Sequence[Case]], Sequence[Row | None]]
"""Cases through a plug-in, as its engine would see them: a row for each; None for one that was left
out."""
Outcome = Callable[[Numbers], Numbers]


class LandingCritic:
    """Blames every one of `BLAMED`; the verdict falls with their number; fails where `UNJUDGED` is
    said."""

    source = Source(kind="program", model="landing")

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        return [self._judge(str(text)) for text in responses]

    def _judge(self, text: str) -> Judgement:
        if UNJUDGED in text:
            return Failure(kind="invalid", message="it says nothing")
        found = [(place, word) for word in BLAMED for place in range(len(text)) if text.startswith(word, place)]
        spans = tuple(Span(start=at, end=at + len(word), label=-1, text=word) for at, word in sorted(found))
        return Critique(text="", spans=spans, score=1 / (1 + len(spans)))


def standing(verdicts: Numbers) -> Numbers:
    """The verdicts of a group, centred and divided by their spread."""
    centred = verdicts - verdicts.mean()
    return np.asarray(centred / (centred.std() + 1e-4))


def landing_cases(tokenizer: Any) -> list[Case]:
    """Two groups of trajectories with what goes wrong in engines: prompts of unequal length, tools
    that say what would be paid, also at the end, a turn that is cut inside a character, ids beyond
    the vocabulary, a blamed character of several tokens, a critic that fails."""
    ids_of = _encoder(tokenizer)
    beyond = [1 + max(map(int, tokenizer.get_vocab().values())) + BEYOND]
    end, cut = [tokenizer.eos_token_id], ids_of("🙂")[:-1]
    tool = ids_of("wrong 🙂 " * 12)
    say: dict[str, list[tuple[Any, int]]] = {
        "one turn": [("fine then ", 1), ("wrong", 1), (" and on", 1), (end, 1)],
        "nothing blamed": [("fine then", 1), (end, 1)],
        "a tool between": [("a call ", 1), ("wrong", 1), (end, 1), (tool, 0), ("so it is ", 1), ("wrong", 1)],
        "ends with a tool": [("a call ", 1), ("wrong", 1), (tool, 0), ("then", 1), (tool[:5], 0)],
        "cut in a character": [("wrong", 1), (" at length, and ", 1), (tool[:7], 0), ("then ", 1), (cut, 1)],
        "beyond the vocabulary": [(beyond, 1), ("fine ", 1), (beyond, 1), ("wrong", 1), (beyond, 1)],
        "several tokens": [("so: ", 1), ("🙂", 1), ("! ", 1), ("🙂", 1), (end, 1)],
        "not judged": [("wrong", 1), (tool[:6], 0), (" " + UNJUDGED, 1), (end, 1)],
    }
    prompts = [ids_of("Say it."), ids_of("Say it again, and at some length, please.")]
    return [
        _case(name, number // GROUP, tuple(prompts[number // GROUP]), pieces, tokenizer)
        for number, (name, pieces) in enumerate(say.items())
    ]


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return ids_of


def _case(
    name: str, group: int, prompt: tuple[int, ...], pieces: Sequence[tuple[Any, int]], tokenizer: Any
) -> Case:
    ids_of = _encoder(tokenizer)
    found = [(ids_of(piece) if isinstance(piece, str) else piece, piece, own) for piece, own in pieces]
    ids = [index for each, _, _ in found for index in each]
    mask = [own for each, _, own in found for _ in each]
    blamed = [
        float(bool(own and piece in BLAMED and tokenizer.decode([index]).strip()))
        for each, piece, own in found
        for index in each
    ]
    count = sum(bool(own) and isinstance(piece, str) and piece in BLAMED for _, piece, own in found)
    failed = any(isinstance(piece, str) and UNJUDGED in piece for _, piece, _ in found)
    example = Example(id=name, prompt=(Message(role="user", content=str(group)),))
    verdict = None if failed else 1 / (1 + count)
    return Case(name, group, prompt, Trajectory(example, ids, mask), np.array(blamed), verdict)


def check_landing(land: Land, tokenizer: Any, outcome: Outcome | None = standing, tolerance: float = 2e-6) -> int:
    """Check that a plug-in pays the right tokens; how many were blamed.

    `land` takes a `TokenCredit` and the cases through the plug-in and returns what its engine
    trains on. With `outcome` the numbers are advantages, what the verdicts of a group come to plus
    the words; with None they are rewards, the words with the verdict on the last token of the
    policy's own. The rows are also shifted by one, either way, and must fail then.

    Raises:
        AssertionError: names the first trajectory that is paid wrongly.
    """
    cases = landing_cases(tokenizer)
    credit = TokenCredit(LandingCritic(), tokenizer, CreditSettings())
    rows = land(credit, cases)
    expected = list(_expected(cases, outcome))
    assert len(rows) == len(cases), f"{len(rows)} rows for {len(cases)} trajectories"
    for case, row, numbers in zip(cases, rows, expected, strict=True):
        problem = _problem(case, row, numbers, tolerance)
        assert not problem, f"{case.name}: {problem}"
    for shift in (-1, 1):
        shifted = [row and row._replace(numbers=np.roll(np.asarray(row.numbers), shift)) for row in rows]
        seen = [_problem(*each, tolerance) for each in zip(cases, shifted, expected, strict=True)]
        assert any(seen), f"the rows are as right when they are shifted by {shift}: nothing lands at all"
    return int(sum(case.blamed.sum() for case in cases if case.verdict is not None))


def _expected(cases: Sequence[Case], outcome: Outcome | None) -> Iterator[Numbers]:
    """What each id of each trajectory must get, (T,); 0 where the critic failed."""
    for case in cases:
        if case.verdict is None:
            yield np.zeros(len(case.own))
        elif outcome is None:
            last = np.arange(len(case.own)) == np.flatnonzero(case.own)[-1]
            yield case.verdict * last - case.blamed
        else:
            members = [each for each in cases if each.group == case.group and each.verdict is not None]
            whole = outcome(np.array([each.verdict for each in members]))
            yield case.own * whole[members.index(case)] - case.blamed


def _problem(case: Case, row: Row | None, expected: Numbers, tolerance: float) -> str:
    """What is wrong with a row, "" where nothing is."""
    if row is None:
        return "" if case.verdict is None else "it was judged, and is left out"
    ids, numbers = (np.asarray(each).astype(np.float64) for each in (row.ids, row.numbers))
    if len(ids) != len(numbers):
        return f"{len(numbers)} numbers for {len(ids)} ids"
    wanted = np.asarray(case.trajectory.ids)
    places = [at for at in range(len(ids) - len(wanted) + 1) if (ids[at : at + len(wanted)] == wanted).all()]
    if not places:
        return "the engine's row does not have its ids"
    inside = slice(places[-1], places[-1] + len(wanted))
    outside = np.delete(numbers, np.arange(len(ids))[inside])
    if outside.any():
        return f"{np.count_nonzero(outside)} ids of the prompt or the padding are paid"
    away = np.abs(numbers[inside] - expected)
    if away.max() > tolerance:
        at = int(away.argmax())
        return f"id {at} of {len(wanted)} gets {numbers[inside][at]:.6g}, and should get {expected[at]:.6g}"
    return _loss_problem(case, row, inside)


def _loss_problem(case: Case, row: Row, inside: slice) -> str:
    if row.mask is None:
        return "" if case.verdict is not None else "its critic failed, and nothing leaves it out of the loss"
    mask = np.asarray(row.mask).astype(np.float64)
    wanted = np.zeros(len(mask))
    wanted[inside] = case.own * (case.verdict is not None)
    return "" if (mask == wanted).all() else "the mask of the loss is not that of the policy's own judged ids"
