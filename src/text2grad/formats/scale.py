"""What a rating says: the worst and the best of its scale, and the score from -1 to 1 that a value on it has.

A number says nothing without its scale. The scale is declared: by `--scale`, by the file itself (the settings of a
question, a labelling configuration), or by all values of a question, where one well-known scale alone fits them.
Otherwise there is no score, and a line says so.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from text2grad.errors import UsageError

BY_OPTION, BY_FILE, BY_VALUES = "as --scale says", "as the file says", "every step of that scale occurs"
_GOOD_WORDS = (
    "good, great, very good, excellent, positive, praise, correct, right, helpful, accept, accepted, approve, "
    "approved, pass, passed, like, liked, upvote, upvoted, thumbs up, thumb up, thumbsup, 👍, ✅"
)
_BAD_WORDS = (
    "bad, poor, very bad, very poor, terrible, awful, negative, incorrect, wrong, unhelpful, not helpful, reject, "
    "rejected, disapprove, disapproved, fail, failed, dislike, disliked, downvote, downvoted, thumbs down, "
    "thumb down, thumbsdown, 👎, ❌"
)
VERDICTS: Mapping[str, float] = {
    **dict.fromkeys(_GOOD_WORDS.split(", "), 1.0),
    **dict.fromkeys(_BAD_WORDS.split(", "), -1.0),
    "neutral": 0.0,
}
"""Words that praise or blame whatever was asked, in whatever case. "yes", "4" and "A" do not."""
ORDERS = (
    ("poor", "fair", "good", "excellent"),
    ("poor", "fair", "good", "very good", "excellent"),
    ("very poor", "poor", "fair", "good", "very good"),
    ("very bad", "bad", "neutral", "good", "very good"),
    ("very bad", "bad", "ok", "good", "very good"),
    ("bad", "ok", "good"),
)
"""Graded words, worst first; read as such where a question has exactly these."""
STEPPED = ((0, 1), (1, 5), (0, 5), (1, 7), (1, 10), (0, 10))
"""Scales of whole steps that values alone can show: where each step occurs and nothing lies outside."""
DEGREES = frozenset({"excellent", "great", "very good", "very bad", "very poor", "terrible", "awful"})
"""Words of a longer scale than good and bad: beside another word of their side they are no verdict."""
OVERALL = ("score", "overall", "overall_rating", "overall_score", "rating", "overall_quality", "quality", "verdict")
"""Names of the one rating that is about the whole response, of several."""
_WORSE = re.compile(
    r"(?:is|has|contains)?(?:toxic\w*|harm(?:ful\w*)?|error\w*|severity|hallucinat\w*|bias\w*|wrong\w*|bad"
    r"|incorrect\w*|risk\w*|offens\w*|unsafe|fault\w*|mistake\w*|redundan\w*|problem\w*|issue\w*|unhelpful\w*"
    r"|violat\w*|poor|negative|dislike\w*|downvote\w*|reject\w*|fail\w*)"
)
_BETTER = re.compile(
    r"(?:is|has)?(?:score|rating|verdict|thumbs?|votes?|feedback|good|correct\w*|helpful\w*|lik(?:e|ed)|quality"
    r"|accept\w*|approv\w*|upvote\w*|pass(?:ed)?|positive|accura\w*|overall)"
)
_OPEN = re.compile(r"difficult\w*|confiden\w*|certain\w*|length|duration|not?|non|without|free")
"""Words in the name of a question of which more is worse or better, and those that leave it open: `no_errors`."""
_NUMBER = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?)(?:\s*(?:stars?|points?|★|⭐|%)|\s*[-:=)]\s+\S.*)?"
)
_SHARE = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*(?:/|of|out of)\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*%")
_THOUSANDS = re.compile(r"(?<!\d)[1-9]\d{0,2},\d{3}(?!\d)")
_FIGURES = re.compile(r"[\W\d]*\d[\W\d]*")
_STARS = re.compile(r"[★⭐]+☆*")
_YES_NO: Mapping[str, bool] = {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}


@dataclass(frozen=True)
class Scale:
    """From the worst value, `low`, to the best, `high` (which is the smaller number where less is better); of
    ordered `words`, their places. `declared`: where it was said.
    """

    low: float
    high: float
    declared: str = BY_FILE
    words: tuple[str, ...] = ()

    def score(self, value: object) -> float | None:
        """A value as a score from -1 to 1; None: it is not on this scale."""
        place = self._place(value)
        if place is None or not min(self.low, self.high) <= place <= max(self.low, self.high):
            return None
        return round(2 * (place - self.low) / (self.high - self.low) - 1, 6)

    def _place(self, value: object) -> float | None:
        if not self.words:
            part, most = share_of(value) or (0.0, None)
            return part if most == self.high else number_of(value)
        word = str(value).strip().casefold()
        return float(self.words.index(word)) if word in self.words else None

    def __str__(self) -> str:
        """`1 to 5`, or the words in their order."""
        return ", ".join(self.words) if self.words else f"{self.low:g} to {self.high:g}"


def ordered(words: Sequence[str], declared: str = BY_FILE) -> Scale:
    """The scale of two or more words, worst first."""
    return Scale(0, len(words) - 1, declared, tuple(word.strip().casefold() for word in words))


def parse_scale(text: str, declared: str = BY_OPTION) -> Scale:
    """`1..5`, `-1..1`, `6..1` (the worst first), or words from the worst to the best: `poor,fair,good`.

    Raises:
        UsageError: it is written otherwise, or has one value alone.
    """
    low, dots, high = text.strip().partition("..")
    ends = (number_of(low), number_of(high))
    words = [word.strip().casefold() for word in text.split(",")]
    if dots and ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
        return Scale(ends[0], ends[1], declared)
    if not dots and len(words) > 1 and all(words) and len(set(words)) == len(words):
        return ordered(words, declared)
    raise UsageError(f"--scale {text!r} is no scale", "write worst..best: --scale 1..5, or --scale poor,fair,good")


def parse_scales(options: Sequence[str]) -> dict[str, Scale]:
    """Every `--scale` by the question or column that it names (`helpful=1..5`); "": that of the score.

    Raises:
        UsageError: see `parse_scale`; or one is given twice.
    """
    found: dict[str, Scale] = {}
    for option in options:
        name, _, text = option.rpartition("=")
        if name.strip() in found:
            raise UsageError(f"--scale is given twice{f' for {name}' if name else ''}", "give it once")
        found[name.strip()] = parse_scale(text)
    return found


def of_options(options: Iterable[object]) -> Scale | None:
    """The scale that the possible answers of a question are: numbers, or words of a known order."""
    shown = [str(option).strip() for option in options]
    numbers = [number for option in shown if (number := number_of(option)) is not None]
    if shown and len(numbers) == len(shown) and min(numbers) < max(numbers):
        return Scale(min(numbers), max(numbers))
    return _order(shown)


def number_of(value: object) -> float | None:
    """A finite number, or a text that is one: `4`, `4.0`, `0,5`, `4 stars`, `4 - good`, `★★★★☆`. None for anything
    else, True and False included.
    """
    if isinstance(value, str):
        text = _plain(value)
        found, stars = _NUMBER.fullmatch(text), _STARS.fullmatch(text)
        return float(found[1]) if found else float(len(text.rstrip("☆"))) if stars else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and isinstance(value, int | float) else None


def share_of(value: object) -> tuple[float, float] | None:
    """The part and the whole of a text that says both: `4/5`, `4 of 5`, `80 %` (of 100)."""
    found = _SHARE.fullmatch(_plain(value)) if isinstance(value, str) else None
    return found and ((float(found[3]), 100.0) if found[3] else (float(found[1]), float(found[2])))


def _plain(text: str) -> str:
    """A number as people write it, in one form: full width, another minus, a decimal comma (not of `1,000`)."""
    text = unicodedata.normalize("NFKC", text).strip().replace("−", "-").replace("–", "-")
    return text if _THOUSANDS.search(text) else re.sub(r"(?<=\d),(?=\d)|(?<![^+-]),(?=\d)", ".", text)


def fitting(numbers: Iterable[float]) -> Scale | None:
    """The one well-known scale that all numbers show. None: none does, or several do.

    From -1 to 1: some are below 0 and none is outside. 0 to 100: both ends occur, none is outside. Of `STEPPED`:
    each step occurs and there is nothing else but halves. So 0 and 1 alone are thumbs, 1, 2, 3, 4, 5 are stars, and
    1, 4, 5 or .5, 1 are nothing that is known: they may be the low end of a longer scale.
    """
    seen = set(numbers)
    if not seen:
        return None
    low, high = min(seen), max(seen)
    if -1 <= low < 0 and high <= 1:
        return Scale(-1, 1, "none is outside and some are below 0")
    if (low, high) == (0, 100):
        return Scale(0, 100, "both ends of that scale occur")
    stepped = (low, high) in STEPPED and set(range(int(low), int(high) + 1)) <= seen
    allowed = {float(step) for step in seen if (2 * step).is_integer()} if high > 1 else {0.0, 1.0}
    return Scale(low, high, BY_VALUES) if stepped and seen <= allowed else None


def verdict(word: object) -> float | None:
    """What an unmistakable word of praise or blame says (`VERDICTS`); None for anything else."""
    return (
        VERDICTS.get(re.sub(r"[\s_-]+", " ", word.strip(" \t\n.!").casefold())) if isinstance(word, str) else None
    )


class Reading:
    """How the values of one question (or column) are read: on a scale, else word by word.

    `scale` is as it was declared, else the one that all values show; `options` are all words that could have been
    chosen. `graded` words are on a scale whose order is not known. `rates`: this is a rating at all.
    """

    def __init__(
        self, name: str, values: Iterable[object], scale: Scale | None = None, options: Sequence[str] = ()
    ) -> None:
        filled = [value for value in values if value is not None and str(value).strip()]
        figures = [value for value in filled if _is_figure(value)]
        words = [part for value in filled for part in _parts(value) if value not in figures]
        by_option = scale is not None and scale.declared == BY_OPTION
        if scale is None:
            scale = fitting(number for value in figures if (number := number_of(value)) is not None) or _order(
                words
            )
        alone = not any(isinstance(value, list) for value in filled)
        self.name, self._sense = name, None if by_option else _sense(name)
        self.graded = scale is None and _is_graded(options or words, alone)
        self.scale = None if self._sense in (0, -1) else scale
        self._scored = {_shown(value): score for value in filled if (score := self.score(value)) is not None}
        self._without = [_shown(value) for value in filled if _shown(value) not in self._scored]
        self._count = len(filled)
        self.rates = bool(figures or self.graded or self._scored)

    def score(self, value: object) -> float | None:
        """The score of a value; None: it has none, and `problem` says so."""
        on_scale = self.scale.score(value) if self.scale else None
        if on_scale is not None or self.graded or (self.scale and self.scale.words):
            return on_scale
        words = value if isinstance(value, list) else [value]
        if verdicts := {score for word in words if (score := verdict(word)) is not None}:
            return verdicts.pop() if len(verdicts) == 1 else None
        answer, sense = _YES_NO.get(str(value).strip().casefold()), _sense(self.name)
        return None if answer is None or not sense else sense if answer else -sense

    @property
    def line(self) -> str:
        """What was read as what, in the user's terms."""
        scale, scored = self.scale, self._scored
        on_scale = {value for value in scored if scale and scale.score(value) is not None}
        pairs = [f"{word!r} read as {score:g}" for word, score in scored.items() if word not in on_scale]
        if scale and on_scale:
            pairs.insert(0, f"{'ratings ' * (not scale.words)}{scale} read as -1 to 1")
        why = f"{self.name}: {scale.declared}" if scale and on_scale else self.name
        return f"{', '.join(pairs)} ({why})" if pairs else ""

    @property
    def problem(self) -> str:
        """What has no score, why, and what would give it one."""
        name, without, shown = self.name, self._without, ", ".join(sorted(set(self._without))[:6])[:80]
        if not without:
            return ""
        if self.scale is not None:
            count = f"{len(without)} of {self._count}"
            return f"{name}: not on the scale {self.scale}, so without a score: {shown} ({count})"
        option = f"--scale {shlex.quote(f'{name}={_example(without, self._sense == -1)}')}"
        if all(map(_is_figure, without)):
            why, they = "nothing says on what scale", " are, so they"
            if self._sense in (0, -1):
                why, they = "more may not be better, so", ""
            ratings = f"ratings such as {shown}{they} give no score"
            return f"{name}: {why} {ratings} (say worst..best, such as {option})"
        why = "steps of a scale whose order is not known" if self.graded else "neither praise nor blame by itself"
        return (
            f"{name}: {why}, so without a score: {shown} (if they rate, name them from the worst, such as {option})"
        )


def _is_figure(value: object) -> bool:
    """Whether it is a number, or text that has figures and no letters."""
    return number_of(value) is not None or (isinstance(value, str) and bool(_FIGURES.fullmatch(value.strip())))


def _parts(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else [str(value).strip()]


def _shown(value: object) -> str:
    return ", ".join(_parts(value))


def _is_graded(words: Iterable[str], alone: bool) -> bool:
    """Whether words are steps of a scale whose order is not known: one of `DEGREES` beside another of its side, or
    three and more, one to a response, of which only one side is known (of meh, good, superb, good is the middle).
    """
    known = {word.casefold(): verdict(word) for word in words if number_of(word) is None}
    scores = {word: score for word, score in known.items() if score}
    beside = any(word in DEGREES and list(scores.values()).count(score) > 1 for word, score in scores.items())
    return beside or (alone and len(known) > 2 and len(set(scores.values())) == 1)


def _order(words: Sequence[str]) -> Scale | None:
    """The known order of exactly these words."""
    folded = {word.casefold() for word in words}
    return next((ordered(order, "a known order, worst first") for order in ORDERS if set(order) == folded), None)


def _sense(name: str) -> float | None:
    """By the name of a question: 1 if more of it, and yes, is better, -1 if it is worse, 0 if that is open."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).casefold())
    senses = ((0.0, _OPEN), (-1.0, _WORSE), (1.0, _BETTER))
    return next((sense for sense, known in senses if any(map(known.fullmatch, words))), None)


def _example(values: Sequence[str], is_bad: bool) -> str:
    """A scale that has all these values, as an option has it."""
    if not all(map(_is_figure, values)):
        pairs, answers = ("false,true", "no,yes"), {value.casefold() for value in values}
        return next((pair for pair in pairs if answers <= set(pair.split(","))), "poor,fair,good")
    numbers = [number for value in values if (number := number_of(value)) is not None]
    low, high = min(numbers, default=1), max(numbers, default=5)
    known = [ends for ends in (*STEPPED, (0, 100)) if ends[0] <= low and high <= ends[1]]
    worst, best = next((ends for ends in known if ends != (0, 1) or low < 1), (-max(-low, high), max(-low, high)))
    return f"{best:g}..{worst:g}" if is_bad else f"{worst:g}..{best:g}"


@dataclass(frozen=True)
class Scales:
    """How every question of a file is read, and `main`: the one whose answer is the verdict on the response."""

    readings: Mapping[str, Reading]
    main: str = ""
    problem: str = ""

    @classmethod
    def of(
        cls,
        values: Mapping[str, Sequence[object]],
        given: Mapping[str, Scale],
        declared: Mapping[str, Scale],
        main: str = "",
        options: Mapping[str, Sequence[str]] | None = None,
    ) -> Scales:
        """From all values of a file by question. `given` is by `--scale` ("" for the verdict), `declared` by the
        file, as `options` are; `main` is the verdict's name if the user said it, else it is the only rating, else
        one of `OVERALL`.

        Raises:
            UsageError: `given` or `main` names no question of the file, or a rating is not on the scale given.
        """
        for name in filter(None, [*given, main]):
            if name not in values:
                there = ", ".join(values)[:200] or "none"
                raise UsageError(f"the file has no rating {name!r}", f"ratings there: {there}")
        readings = {
            name: Reading(name, found, given.get(name) or declared.get(name), (options or {}).get(name, ()))
            for name, found in values.items()
        }
        rated, problem = [name for name, each in readings.items() if each.rates], ""
        overall = [name for name in rated if re.sub("[ -]", "_", name.casefold()) in OVERALL]
        if not main and len(verdicts := rated if len(rated) == 1 else overall) == 1:
            main = verdicts[0]
        elif not main and rated:
            cure = f"say which: --map {shlex.quote(f'score={rated[0]}')}"
            problem = f"several ratings and none is the verdict: {', '.join(rated)} ({cure})"
        if not main and "" in given and len(values) == 1:
            main = next(iter(values))
        if main and main not in given and "" in given:
            readings[main] = Reading(main, values[main], given[""])
        for each in (readings[name] for name in (*given, main) if name):
            if each.scale and each.scale.declared == BY_OPTION and each.problem:
                raise UsageError(each.problem, "give a scale that has them all, or correct these ratings")
        return cls(readings, main, problem)

    def score(self, ratings: Mapping[str, object]) -> float | None:
        """The verdict of one person: the score of the main question's answer."""
        return self.readings[self.main].score(ratings.get(self.main)) if self.main else None

    @property
    def lines(self) -> tuple[str, ...]:
        """What of the ratings was read, and as what."""
        if not self.main:
            return ()
        others = [name for name, each in self.readings.items() if each.rates and name != self.main]
        kept = f"kept in meta.ratings, not in the score: {', '.join(others)} (to take one: --map score=NAME)"
        return tuple(filter(None, [self.readings[self.main].line, kept * bool(others)]))

    @property
    def problems(self) -> tuple[str, ...]:
        """What of the ratings gives no score, and what would."""
        names = [name for name, each in self.readings.items() if name == self.main or not each.rates]
        return tuple(filter(None, [*(self.readings[name].problem for name in names), self.problem]))
