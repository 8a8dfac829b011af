"""Two critics or two policies compared by a chat model, each pair in both orders (win, tie, loss).

The paper's Table 1 compares critics so, its Figures 3b and 6 policies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from text2grad.chat import Answer, Chat, Completion
from text2grad.critics.prompted import judge_messages
from text2grad.eval.metrics import mean, mean_with_interval
from text2grad.feedback import Critique, Example, Failure, Judgement, Message

_VERDICT = re.compile(r"\W*(first|second|tie)\W*", re.IGNORECASE)
_SWAPPED = {"first": "second", "second": "first", "tie": "tie"}
_POINTS = {"first": 1, "second": -1, "tie": 0}


class Pair(NamedTuple):
    """What two critics say of one response."""

    example: Example
    response: str
    ours: Judgement
    theirs: Judgement


class AnswerPair(NamedTuple):
    """What two policies answer to one prompt."""

    example: Example
    ours: str
    theirs: str


class Shown(NamedTuple):
    """Two texts that are put before the judge, and the conversation about them in each order."""

    ours_first: list[Message]
    theirs_first: list[Message]


Ruling = int | None
"""1 ours, 0 tie, -1 theirs; None where the judge did not say in one of the orders."""


class Rulings(NamedTuple):
    """What came of pairs that were shown: the ruling on each, and how the judge leans."""

    points: list[Ruling]
    position_bias: float
    inconsistent: float


def compare_critics(chat: Chat, prompt: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Ask the judge twice about each pair, once in each order.

    A critique wins if it is preferred in both orders. A preference that turns with the order is a tie, and counts
    into `position_bias`. A `Failure` loses against a critique without being shown. `prompt` is the text of
    `tasks/prompts/compare_critiques.txt` or one like it, with {{first}} and {{second}}.

    Returns:
        `win`, `tie`, `loss`: shares of the pairs that were judged; `position_bias`: the share of the pairs shown
        in which the judge preferred the first place both times, minus that for the second, in [-1, 1];
        `inconsistent`: the share in which its two verdicts differ at all; `judged`, `judge_failed`: pairs.

    Raises:
        ValueError: there is nothing to compare.
    """
    if not pairs:
        raise ValueError("no critiques to compare")
    decided = [_by_failure(pair) for pair in pairs]
    shown = [_critiques(prompt, pair) for pair, known in zip(pairs, decided, strict=True) if known is None]
    rulings = rule(chat, shown)
    return _shares([each for each in decided if each is not None], rulings)


def compare_answers(chat: Chat, prompt: str, pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """Ask the judge twice about two answers to each prompt, once in each order.

    An answer wins if it is preferred in both orders; a preference that turns with the order is a tie, and counts
    into `position_bias`. Equal answers tie, and an empty one loses, without being shown. `prompt` is the text of
    `tasks/prompts/compare_answers.txt` (the criteria of the paper's appendix E.1), or one like it.

    Returns:
        As `compare_critics`; and `margin`, win - loss, with the bounds of its 95 % bootstrap interval over pairs
        (`margin_low`, `margin_high`); `length`, `their_length`: mean characters of the answers; `longer_won`: of
        the pairs that one of two unequally long answers won, the share that the longer one won.

    Raises:
        ValueError: there is nothing to compare.
    """
    if not pairs:
        raise ValueError("no answers to compare")
    decided = [_without_judge(pair) for pair in pairs]
    rulings = rule(chat, [_answers(prompt, p) for p, known in zip(pairs, decided, strict=True) if known is None])
    waiting = iter(rulings.points)
    points = [next(waiting) if known is None else known for known in decided]
    return {
        **_shares([each for each in decided if each is not None], rulings),
        **_margin([point for point in points if point is not None]),
        "length": mean([len(pair.ours) for pair in pairs]),
        "their_length": mean([len(pair.theirs) for pair in pairs]),
        "longer_won": _longer_won(pairs, points),
    }


def rule(chat: Chat, shown: Sequence[Shown]) -> Rulings:
    """The judge's ruling on each pair, in both orders."""
    answers = chat.complete([each.ours_first for each in shown] + [each.theirs_first for each in shown])
    verdicts = [_verdict(answer) for answer in answers]
    both = list(zip(verdicts[: len(shown)], verdicts[len(shown) :], strict=True))
    read = [(one, other) for one, other in both if one and other]
    places = [(one == other == "first") - (one == other == "second") for one, other in read]
    return Rulings(
        [_ruling(one, other) for one, other in both],
        mean(places),
        mean([float(one != _SWAPPED[other]) for one, other in read]),
    )


def _ruling(one: str, other: str) -> Ruling:
    """Ours stood first in `one`, second in `other`: a preference counts if it does not turn with the order."""
    if not (one and other):
        return None
    return _POINTS[one] if one == _SWAPPED[other] else 0


def _shares(decided: Sequence[int], rulings: Rulings) -> dict[str, float]:
    points = [*decided, *(point for point in rulings.points if point is not None)]
    return {
        "win": points.count(1) / max(1, len(points)),
        "tie": points.count(0) / max(1, len(points)),
        "loss": points.count(-1) / max(1, len(points)),
        "position_bias": rulings.position_bias,
        "inconsistent": rulings.inconsistent,
        "judged": float(len(points)),
        "judge_failed": float(rulings.points.count(None)),
    }


def _margin(points: Sequence[int]) -> dict[str, float]:
    names = ("margin", "margin_low", "margin_high")
    return dict(zip(names, mean_with_interval(points), strict=True)) if points else {}


def _longer_won(pairs: Sequence[AnswerPair], points: Sequence[Ruling]) -> float:
    longer = [len(pair.ours) - len(pair.theirs) for pair in pairs]
    return mean([float(more * point > 0) for more, point in zip(longer, points, strict=True) if more and point])


def is_verdict(answer: Answer) -> bool:
    """Whether a judge said which of two it prefers."""
    return bool(_verdict(answer))


def _verdict(answer: Answer) -> str:
    """first, second or tie; empty when the judge did not say."""
    said = _VERDICT.fullmatch(answer.text) if isinstance(answer, Completion) else None
    return said[1].lower() if said else ""


def _by_failure(pair: Pair) -> int | None:
    if isinstance(pair.ours, Failure) or isinstance(pair.theirs, Failure):
        return isinstance(pair.ours, Critique) - isinstance(pair.theirs, Critique)
    return None


def _without_judge(pair: AnswerPair) -> int | None:
    ours, theirs = pair.ours.strip(), pair.theirs.strip()
    if ours == theirs:
        return 0
    return None if ours and theirs else bool(ours) - bool(theirs)


def _critiques(prompt: str, pair: Pair) -> Shown:
    ours, theirs = _as_shown(pair.ours), _as_shown(pair.theirs)
    return Shown(*(_messages(prompt, pair.example, pair.response, *order) for order in _orders(ours, theirs)))


def _answers(prompt: str, pair: AnswerPair) -> Shown:
    return Shown(*(_messages(prompt, pair.example, "", *order) for order in _orders(pair.ours, pair.theirs)))


def _orders(ours: str, theirs: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (ours, theirs), (theirs, ours)


def _messages(prompt: str, example: Example, response: str, first: str, second: str) -> list[Message]:
    # The two are filled in by the same single pass as everything else: they are data too.
    filled = example.model_copy(update={"meta": {**example.meta, "first": first, "second": second}})
    asked = re.sub(r"\{\{(first|second)\}\}", r"{{meta.\1}}", prompt)
    return judge_messages(asked, filled, response)


def _as_shown(judgement: Judgement) -> str:
    assert isinstance(judgement, Critique)
    value = {
        "critique": judgement.text,
        "good_spans": [span.text for span in judgement.spans if span.label > 0],
        "poor_spans": [span.text for span in judgement.spans if span.label < 0],
    }
    return json.dumps(value, ensure_ascii=False)
