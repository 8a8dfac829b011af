"""Two critics or two policies compared by a chat model, each pair in both orders (win, tie, loss).

The paper's Table 1 compares critics so, its Figures 3b and 6 policies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from text2grad.chat import Answer, Chat, Completion
from text2grad.critics.prompted import judge_messages
from text2grad.errors import UsageError
from text2grad.eval.critics.spans import SPAN_NAMES
from text2grad.eval.metrics import mean, mean_with_interval
from text2grad.feedback import Critique, Example, Failure, Judgement, Message
from text2grad.wire.objects import UnreadableError, read_object

CRITERIA = ("score", "accuracy", "completeness", "conciseness", "coherence")
"""What a judge may rate; `score` is the whole, and decides."""
MOST = 10.0
"""The best rating."""
_PLACEHOLDER = re.compile(r"\{\{([\w.]+)\}\}")
_SHOWN = re.compile(r"\{\{((?:first|second)(?:\.\w+)?)\}\}")
_RATING = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(?:/\s*10(?:\.0+)?\s*)?")
_VERDICT = re.compile(r"\W*(first|second|tie)\W*", re.IGNORECASE)
_SWAPPED = {"first": "second", "second": "first", "tie": "tie"}
_POINTS = {"first": 1, "second": -1, "tie": 0}


Ruling = int | None
"""1 ours, 0 tie, -1 theirs; None where the judge did not say in one of the orders."""
Parts = dict[str, str]
"""What is shown of one of the two: "" the whole, and its parts by name."""


class Pair(NamedTuple):
    """What two critics say of one response."""

    example: Example
    response: str
    ours: Judgement
    theirs: Judgement

    @property
    def decided(self) -> Ruling:
        """The ruling where it needs no judge: a failure loses against a critique. None: ask."""
        if isinstance(self.ours, Failure) or isinstance(self.theirs, Failure):
            return isinstance(self.ours, Critique) - isinstance(self.theirs, Critique)
        return None

    @property
    def parts(self) -> tuple[Parts, Parts]:
        """What is shown of ours and of theirs: the critique as JSON, and its quotes by label."""
        return _critique_parts(self.ours), _critique_parts(self.theirs)


class AnswerPair(NamedTuple):
    """What two policies answer to one prompt."""

    example: Example
    ours: str
    theirs: str
    response: str = ""

    @property
    def decided(self) -> Ruling:
        """The ruling where it needs no judge: equal answers tie, an empty one loses. None: ask."""
        ours, theirs = self.ours.strip(), self.theirs.strip()
        if ours == theirs:
            return 0
        return None if ours and theirs else bool(ours) - bool(theirs)

    @property
    def parts(self) -> tuple[Parts, Parts]:
        """What is shown of ours and of theirs: the whole answer."""
        return {"": self.ours}, {"": self.theirs}


class Comparison(NamedTuple):
    """The ruling on each pair, shares of them, and mean ratings of a prompt that asks for some."""

    points: list[Ruling]
    shares: dict[str, float]
    ratings: dict[str, float]


Ratings = tuple[dict[str, float], dict[str, float]]
"""What the first and the second were rated, by criterion."""


def rates(prompt: str) -> bool:
    """Whether a prompt asks for ratings in JSON, not for one word."""
    return '"score"' in prompt


def refuse_judge_prompt(prompt: str, parts: Collection[str]) -> None:
    """Check a judge's prompt before any request. `parts` are the placeholders of what is compared:
    `first.good`.

    Raises:
        UsageError: the prompt does not show both, asks for something else, or does not say what to
            answer.
    """
    names = set(_PLACEHOLDER.findall(prompt))
    known = ("prompt", "reference", *parts)
    if unknown := sorted(name for name in names - set(known) if not name.startswith("meta.")):
        raise UsageError(
            f"the judge's prompt asks for {{{{{unknown[0]}}}}}", f"known: {', '.join(known)}, meta.<key>"
        )
    for place in ("first", "second"):
        if not any(name.split(".")[0] == place for name in names):
            message, cure = f"the judge's prompt does not show {{{{{place}}}}}", "say where each of the two stands"
            raise UsageError(message, cure)
    words = _PLACEHOLDER.sub("", prompt)
    if not all(f'"{place}"' in words if rates(prompt) else place in words for place in ("first", "second")):
        cure = 'one word (first, second or tie), or {"first": {"score": 0}, "second": {"score": 0}}'
        raise UsageError("the judge's prompt does not say what to answer", cure)


def compare_critics(chat: Chat, prompt: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Ask the judge twice about each pair, once in each order.

    A critique wins if it is preferred in both orders. A preference that turns with the order is a
    tie, and counts into `position_bias`. A `Failure` loses against a critique without being shown.
    `prompt` is the text of `tasks/prompts/compare_critiques.txt` or one like it, with {{first}} and
    {{second}}, or `code_e2.txt`, `qa_e3.txt` and the like, whose judge rates the two from 0 to 10:
    the higher `score` is preferred.

    Returns:
        `win`, `tie`, `loss`: shares of the pairs that were judged; `position_bias`: the share of
        the pairs shown in which the judge preferred the first place both times, minus that for the
        second, in [-1, 1]; `inconsistent`: the share in which its two verdicts differ at all;
        `judged`, `judge_failed`: pairs; and, of a prompt that asks for ratings, `score` and
        `their_score`: the means over both orders.

    Raises:
        ValueError: there is nothing to compare.
    """
    if not pairs:
        raise ValueError("no critiques to compare")
    found = _compare(chat, prompt, pairs)
    return {**found.shares, **found.ratings}


def compare_answers(chat: Chat, prompt: str, pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """Ask the judge twice about two answers to each prompt, once in each order.

    An answer wins if it is preferred in both orders; a preference that turns with the order is a
    tie, and counts into `position_bias`. Equal answers tie, and an empty one loses, without being
    shown. `prompt` is the text of `tasks/prompts/compare_answers.txt` (the criteria of the paper's
    appendix E.1), or one like it, or `summarization_e1.txt`, whose judge rates the two as that
    appendix has it.

    Returns:
        As `compare_critics`; and `margin`, win - loss, with the bounds of its 95 % bootstrap
        interval over pairs (`margin_low`, `margin_high`); `length`, `their_length`: mean characters
        of the answers; `longer_won`: of the pairs that one of two unequally long answers won, the
        share that the longer one won. Of a prompt that asks for ratings the mean of each criterion
        too (`accuracy`, `their_accuracy`).

    Raises:
        ValueError: there is nothing to compare.
    """
    if not pairs:
        raise ValueError("no answers to compare")
    found = _compare(chat, prompt, pairs)
    return {
        **found.shares,
        **_margin([point for point in found.points if point is not None]),
        "length": mean([len(pair.ours) for pair in pairs]),
        "their_length": mean([len(pair.theirs) for pair in pairs]),
        "longer_won": _longer_won(pairs, found.points),
        **found.ratings,
    }


def _compare(chat: Chat, prompt: str, pairs: Sequence[Pair | AnswerPair]) -> Comparison:
    """Have the judge rule on each pair that needs one, in both orders: by a word, or by its
    ratings."""
    decided = [pair.decided for pair in pairs]
    shown = [pair for pair, known in zip(pairs, decided, strict=True) if known is None]
    answers = chat.complete([_messages(prompt, pair, turned) for turned in (False, True) for pair in shown])
    rated = rates(prompt)
    ratings = [ratings_of(answer) if rated else None for answer in answers]
    verdicts = [_higher(each) for each in ratings] if rated else [_verdict(answer) for answer in answers]
    both = list(zip(verdicts[: len(shown)], verdicts[len(shown) :], strict=True))
    rulings = (_ruling(*each) for each in both)
    points = [next(rulings) if known is None else known for known in decided]
    counted = max(1, len(points) - points.count(None))
    read = [(one, other) for one, other in both if one and other]
    shares = {
        **{name: points.count(point) / counted for name, point in (("win", 1), ("tie", 0), ("loss", -1))},
        "position_bias": mean([(a == b == "first") - (a == b == "second") for a, b in read]),
        "inconsistent": mean([float(one != _SWAPPED[other]) for one, other in read]),
        "judged": float(len(points) - points.count(None)),
        "judge_failed": float(points.count(None)),
    }
    return Comparison(points, shares, _means(ratings[: len(shown)], ratings[len(shown) :]))


def _means(ours_first: Sequence[Ratings | None], theirs_first: Sequence[Ratings | None]) -> dict[str, float]:
    """Mean rating of each criterion, ours and theirs, over all answers of the judge in either
    order."""
    read = [each for each in ours_first if each] + [each[::-1] for each in theirs_first if each]
    found: dict[str, float] = {}
    for name in CRITERIA:
        for prefix, side in (("", 0), ("their_", 1)):
            if given := [each[side][name] for each in read if name in each[side]]:
                found[prefix + name] = mean(given)
    return found


def ratings_of(answer: Answer) -> Ratings | None:
    """The judge's ratings of first and second, from 0 to 10; None if unreadable.

    A number in quotes is one, and so is `7/10`; both need a score. What else the judge writes is
    for the reader.
    """
    if not isinstance(answer, Completion) or answer.truncated:
        return None
    try:
        value = read_object(answer.text, "")
    except UnreadableError:
        return None
    first, second = (_ratings(value.get(place)) for place in ("first", "second"))
    return (first, second) if first and second else None


def _ratings(value: object) -> dict[str, float] | None:
    """The ratings of one of the two; None where it has no score, or one of them is not on the
    scale."""
    if not isinstance(value, dict):
        return None
    found = {name: _rating(value[name]) for name in CRITERIA if value.get(name) is not None}
    rated = {name: number for name, number in found.items() if number is not None}
    return rated if "score" in rated and len(rated) == len(found) else None


def _rating(value: object) -> float | None:
    if isinstance(value, str) and (found := _RATING.fullmatch(value)):
        value = float(found[1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        return None
    return float(value)


def _higher(ratings: Ratings | None) -> str:
    """first, second or tie by the scores; empty where there are none."""
    if ratings is None:
        return ""
    first, second = (each["score"] for each in ratings)
    return "tie" if first == second else "first" if first > second else "second"


def _ruling(one: str, other: str) -> Ruling:
    """Ours stood first in `one`, second in `other`: a preference counts if it does not turn with
    the order."""
    if not (one and other):
        return None
    return _POINTS[one] if one == _SWAPPED[other] else 0


def _margin(points: Sequence[int]) -> dict[str, float]:
    names = ("margin", "margin_low", "margin_high")
    return dict(zip(names, mean_with_interval(points), strict=True)) if points else {}


def _longer_won(pairs: Sequence[AnswerPair], points: Sequence[Ruling]) -> float:
    longer = [len(pair.ours) - len(pair.theirs) for pair in pairs]
    return mean([float(more * point > 0) for more, point in zip(longer, points, strict=True) if more and point])


def is_verdict(answer: Answer) -> bool:
    """Whether an answer states which of two the judge prefers."""
    return bool(_verdict(answer))


def is_rating(answer: Answer) -> bool:
    """Whether a judge rated both."""
    return ratings_of(answer) is not None


def _verdict(answer: Answer) -> str:
    """first, second or tie; empty when the judge did not say."""
    said = _VERDICT.fullmatch(answer.text) if isinstance(answer, Completion) else None
    return said[1].lower() if said else ""


def _messages(prompt: str, pair: Pair | AnswerPair, turned: bool) -> list[Message]:
    """What the judge is shown of a pair, ours first, or where it is `turned` theirs."""
    first, second = pair.parts[::-1] if turned else pair.parts
    # The two are filled in by the same single pass as everything else: they are data too.
    named = {
        f"{place}.{name}".rstrip("."): text
        for place, parts in (("first", first), ("second", second))
        for name, text in parts.items()
    }
    filled = pair.example.model_copy(update={"meta": {**pair.example.meta, **named}})
    return judge_messages(_SHOWN.sub(r"{{meta.\1}}", prompt), filled, pair.response)


def _critique_parts(judgement: Judgement) -> Parts:
    assert isinstance(judgement, Critique)
    spans = {
        name: [span.text for span in judgement.spans if span.label == label] for label, name in SPAN_NAMES.items()
    }
    value = {
        "critique": judgement.text,
        **{f"{name}_spans": texts for name, texts in spans.items() if texts or name != SPAN_NAMES[0]},
    }
    whole = json.dumps(value, ensure_ascii=False)
    return {"": whole, **{name: json.dumps(texts, ensure_ascii=False) for name, texts in spans.items()}}
