"""Compare two critics or two policies with a chat model as the judge, in both orders.

The paper compares critics in Table 1 and policies in Figures 3b and 6.
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
"""The criteria that a judge may rate; the overall `score` decides."""
MAX_RATING = 10.0
_PLACEHOLDER = re.compile(r"\{\{([\w.]+)\}\}")
_SIDE_PLACEHOLDER = re.compile(r"\{\{((?:first|second)(?:\.\w+)?)\}\}")
_RATING = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(?:/\s*10(?:\.0+)?\s*)?")
_VERDICT = re.compile(r"\W*(first|second|tie)\W*", re.IGNORECASE)
_SWAPPED = {"first": "second", "second": "first", "tie": "tie"}
_POINTS = {"first": 1, "second": -1, "tie": 0}


Ruling = int | None
"""1 ours, 0 tie, -1 theirs; None if an answer of the judge is unreadable."""
Parts = dict[str, str]
"""The texts of one side by placeholder: "" for the complete text, and its parts by name."""


class Pair(NamedTuple):
    """The judgements of two critics on one response."""

    example: Example
    response: str
    ours: Judgement
    theirs: Judgement

    @property
    def decided(self) -> Ruling:
        """The ruling if it needs no judge: a failure loses against a critique; else None."""
        if isinstance(self.ours, Failure) or isinstance(self.theirs, Failure):
            return isinstance(self.ours, Critique) - isinstance(self.theirs, Critique)
        return None

    @property
    def parts(self) -> tuple[Parts, Parts]:
        """The texts of both sides: the critique as JSON, and its quotes by label."""
        return _critique_parts(self.ours), _critique_parts(self.theirs)


class AnswerPair(NamedTuple):
    """The answers of two policies to one prompt."""

    example: Example
    ours: str
    theirs: str
    response: str = ""

    @property
    def decided(self) -> Ruling:
        """The ruling if it needs no judge: equal answers tie, an empty one loses; else None."""
        ours, theirs = self.ours.strip(), self.theirs.strip()
        if ours == theirs:
            return 0
        return None if ours and theirs else bool(ours) - bool(theirs)

    @property
    def parts(self) -> tuple[Parts, Parts]:
        """The texts of both sides: the answers."""
        return {"": self.ours}, {"": self.theirs}


class Comparison(NamedTuple):
    """The ruling on every pair, the shares of rulings, and mean ratings if requested."""

    rulings: list[Ruling]
    shares: dict[str, float]
    ratings: dict[str, float]


Ratings = tuple[dict[str, float], dict[str, float]]
"""The ratings of the first and of the second text, by criterion."""


def asks_for_ratings(prompt: str) -> bool:
    """True if a prompt asks for ratings in JSON instead of one word."""
    return '"score"' in prompt


def check_judge_prompt(prompt: str, parts: Collection[str]) -> None:
    """Check the placeholders and the answer format of a judge's prompt.

    `parts` are the placeholders of the compared texts, such as `first.good`.

    Raises:
        UsageError: the prompt lacks one of the two texts, has an unknown placeholder, or does not
            define the answer.
    """
    names = set(_PLACEHOLDER.findall(prompt))
    allowed = ("prompt", "reference", *parts)
    if unknown := sorted(name for name in names - set(allowed) if not name.startswith("meta.")):
        problem = f"the judge's prompt has an unknown placeholder {{{{{unknown[0]}}}}}"
        raise UsageError(problem, f"known: {', '.join(allowed)}, meta.<key>")
    for side in ("first", "second"):
        if not any(name.split(".")[0] == side for name in names):
            raise UsageError(f"the judge's prompt has no {{{{{side}}}}}", "add {{first}} and {{second}}")
    text = _PLACEHOLDER.sub("", prompt)
    rated = asks_for_ratings(prompt)
    if not all((f'"{side}"' if rated else side) in text for side in ("first", "second")):
        cure = 'one word (first, second or tie), or {"first": {"score": 0}, "second": {"score": 0}}'
        raise UsageError("the judge's prompt does not define the answer", cure)


def compare_critics(chat: Chat, prompt: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Compare two critics; the judge sees each pair in both orders.

    A critique wins if it is preferred in both orders. A preference that changes with the order is a
    tie. A `Failure` loses against a critique without asking the judge.

    `prompt` is the text of a prompt with {{first}} and {{second}}, such as
    `tasks/prompts/compare_critiques.txt`; or one that asks for ratings from 0 to 10, such as
    `code_e2.txt`, where the higher `score` is preferred.

    Returns:
        `win`, `tie`, `loss`: shares of the judged pairs; `position_bias`: the share of pairs in
        which the judge preferred the first position both times, minus the share for the second, in
        [-1, 1]; `inconsistent`: the share of pairs with two different verdicts; `judged`,
        `judge_failed`: numbers of pairs; with ratings also `score` and `their_score`, averaged over
        both orders.

    Raises:
        ValueError: no pairs.
    """
    if not pairs:
        raise ValueError("no critiques to compare")
    comparison = _compare(chat, prompt, pairs)
    return {**comparison.shares, **comparison.ratings}


def compare_answers(chat: Chat, prompt: str, pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """Compare the answers of two policies; the judge sees each pair in both orders.

    An answer wins if it is preferred in both orders. A preference that changes with the order is a
    tie. Equal answers tie, and an empty one loses, without asking the judge.

    `prompt` is the text of a prompt such as `tasks/prompts/compare_answers.txt` (the criteria of
    the paper's appendix E.1); or one that asks for ratings, such as `summarization_e1.txt` (the
    ratings of that appendix).

    Returns:
        As `compare_critics`, with all criteria if rated (`accuracy`, `their_accuracy`, ...); and
        `margin`, win - loss, with its 95 % bootstrap interval over pairs (`margin_low`,
        `margin_high`); `length`, `their_length`: mean characters of the answers; `longer_won`: of
        the pairs with a winner and different lengths, the share that the longer answer won.

    Raises:
        ValueError: no pairs.
    """
    if not pairs:
        raise ValueError("no answers to compare")
    comparison = _compare(chat, prompt, pairs)
    rulings = [ruling for ruling in comparison.rulings if ruling is not None]
    margin = mean_with_interval(rulings) if rulings else ()
    longer = [len(pair.ours) - len(pair.theirs) for pair in pairs]
    longer_won = [
        float(difference * ruling > 0)
        for difference, ruling in zip(longer, comparison.rulings, strict=True)
        if difference and ruling
    ]
    return {
        **comparison.shares,
        **dict(zip(("margin", "margin_low", "margin_high"), margin, strict=False)),
        "length": mean([len(pair.ours) for pair in pairs]),
        "their_length": mean([len(pair.theirs) for pair in pairs]),
        "longer_won": mean(longer_won),
        **comparison.ratings,
    }


def _compare(chat: Chat, prompt: str, pairs: Sequence[Pair | AnswerPair]) -> Comparison:
    """Ask the judge about every undecided pair, in both orders."""
    decided = [pair.decided for pair in pairs]
    open_pairs = [pair for pair, ruling in zip(pairs, decided, strict=True) if ruling is None]
    answers = chat.complete([_messages(prompt, pair, swap) for swap in (False, True) for pair in open_pairs])
    if asks_for_ratings(prompt):
        ratings = [parse_ratings(answer) for answer in answers]
        verdicts = [_preferred_by_score(rating) for rating in ratings]
    else:
        ratings = [None] * len(answers)
        verdicts = [_parse_verdict(answer) for answer in answers]
    count = len(open_pairs)
    both_orders = list(zip(verdicts[:count], verdicts[count:], strict=True))
    new_rulings = iter([_ruling(*orders) for orders in both_orders])
    rulings = [next(new_rulings) if ruling is None else ruling for ruling in decided]
    ruling_count = len(rulings) - rulings.count(None)
    readable = [
        (ours_first, theirs_first) for ours_first, theirs_first in both_orders if ours_first and theirs_first
    ]
    shares = {
        **{
            name: rulings.count(point) / max(1, ruling_count)
            for name, point in (("win", 1), ("tie", 0), ("loss", -1))
        },
        "position_bias": mean([(a == b == "first") - (a == b == "second") for a, b in readable]),
        "inconsistent": mean([float(a != _SWAPPED[b]) for a, b in readable]),
        "judged": float(ruling_count),
        "judge_failed": float(rulings.count(None)),
    }
    return Comparison(rulings, shares, _mean_ratings(ratings[:count], ratings[count:]))


def _mean_ratings(ours_first: Sequence[Ratings | None], theirs_first: Sequence[Ratings | None]) -> dict[str, float]:
    """Average the ratings of each criterion and side over both orders."""
    pairs = [ratings for ratings in ours_first if ratings]
    pairs += [ratings[::-1] for ratings in theirs_first if ratings]
    means: dict[str, float] = {}
    for name in CRITERIA:
        for prefix, side in (("", 0), ("their_", 1)):
            if values := [pair[side][name] for pair in pairs if name in pair[side]]:
                means[prefix + name] = mean(values)
    return means


def parse_ratings(answer: Answer) -> Ratings | None:
    """Parse the judge's ratings of both texts, from 0 to 10; None if unreadable.

    Accepts numbers in quotes and `7/10`. Both texts need a `score`; other keys are ignored.
    """
    if not isinstance(answer, Completion) or answer.truncated:
        return None
    try:
        value = read_object(answer.text, "")
    except UnreadableError:
        return None
    first, second = (_parse_side(value.get(side)) for side in ("first", "second"))
    return (first, second) if first and second else None


def _parse_side(value: object) -> dict[str, float] | None:
    """Parse the ratings of one text; None without a score, or if a rating is off the scale."""
    if not isinstance(value, dict):
        return None
    parsed = {name: _parse_rating(value[name]) for name in CRITERIA if value.get(name) is not None}
    ratings = {name: rating for name, rating in parsed.items() if rating is not None}
    return ratings if "score" in ratings and len(ratings) == len(parsed) else None


def _parse_rating(value: object) -> float | None:
    if isinstance(value, str) and (match := _RATING.fullmatch(value)):
        value = float(match[1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_RATING:
        return None
    return float(value)


def _preferred_by_score(ratings: Ratings | None) -> str:
    """Return first, second or tie by the scores; empty without ratings."""
    if ratings is None:
        return ""
    first, second = (side["score"] for side in ratings)
    return "tie" if first == second else "first" if first > second else "second"


def _ruling(ours_first: str, theirs_first: str) -> Ruling:
    """Combine the verdicts of both orders; a preference counts only if both agree."""
    if not (ours_first and theirs_first):
        return None
    return _POINTS[ours_first] if ours_first == _SWAPPED[theirs_first] else 0


def is_verdict(answer: Answer) -> bool:
    """True if an answer is a readable verdict."""
    return bool(_parse_verdict(answer))


def is_rating(answer: Answer) -> bool:
    """True if an answer has readable ratings of both texts."""
    return parse_ratings(answer) is not None


def _parse_verdict(answer: Answer) -> str:
    """Return first, second or tie; empty if the answer is unreadable."""
    match = _VERDICT.fullmatch(answer.text) if isinstance(answer, Completion) else None
    return match[1].lower() if match else ""


def _messages(prompt: str, pair: Pair | AnswerPair, swap: bool) -> list[Message]:
    """Return the judge's conversation about a pair, ours first unless `swap`."""
    first, second = pair.parts[::-1] if swap else pair.parts
    # Passed as meta values, both texts are escaped and filled in the same single pass as all data.
    values = {
        f"{side}.{name}".rstrip("."): text
        for side, parts in (("first", first), ("second", second))
        for name, text in parts.items()
    }
    example = pair.example.model_copy(update={"meta": {**pair.example.meta, **values}})
    return judge_messages(_SIDE_PLACEHOLDER.sub(r"{{meta.\1}}", prompt), example, pair.response)


def _critique_parts(judgement: Judgement) -> Parts:
    assert isinstance(judgement, Critique)
    spans = {
        name: [span.text for span in judgement.spans if span.label == label] for label, name in SPAN_NAMES.items()
    }
    value = {
        "critique": judgement.text,
        **{f"{name}_spans": texts for name, texts in spans.items() if texts or name != SPAN_NAMES[0]},
    }
    parts = {name: json.dumps(texts, ensure_ascii=False) for name, texts in spans.items()}
    return {"": json.dumps(value, ensure_ascii=False), **parts}
