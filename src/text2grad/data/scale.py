"""Scales of ratings: the worst and the best value, and the score from -1 to 1 of a value between
them.

A number says nothing without its scale, so a scale is declared: by `--scale`, or by the file (the
settings of a question, a labelling configuration, a maximum written beside the number). Nothing is
guessed from the values: a rating without a scale gives no score, and one line names it. Words that
praise or blame need no scale.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from text2grad.data.spreadsheets.tables import is_filled
from text2grad.errors import UsageError

BY_OPTION, BY_FILE = "as --scale says", "as the file says"
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
NO_RATING = frozenset({"-", "–", "—", "?", "/", "n/a", "na", "none", "k.a.", "k. a.", "s/o", "n.v.t."})
"""Cells of ratings that have none."""
DEGREES = frozenset({"excellent", "great", "very good", "very bad", "very poor", "terrible", "awful"})
"""Words of a longer scale than good and bad: beside another word of their side they are no
verdict."""
OVERALL = ("score", "overall", "overall_rating", "overall_score", "rating", "overall_quality", "quality", "verdict")
"""Names of the one rating that is about the whole response, of several."""
_NOT_BETTER = re.compile(
    r"(?:is|has|contains)?(?:toxic\w*|harm(?:ful\w*)?|error\w*|severity|hallucinat\w*|bias\w*|wrong\w*|bad"
    r"|incorrect\w*|risk\w*|offens\w*|unsafe|fault\w*|mistake\w*|redundan\w*|problem\w*|issue\w*|unhelpful\w*"
    r"|violat\w*|poor|negative|dislike\w*|downvote\w*|reject\w*|fail\w*"
    r"|difficult\w*|confiden\w*|certain\w*|length|duration|not?|non|without|free)"
)
"""Words in the name of a question of which more may not be better; a file does not say which end
is."""
_NUMBER = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?)(?:\s*(?:stars?|points?|★|⭐|%)|\s*[-:=)]\s+\S.*)?"
)
_SHARE = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*(?:/|of|out of)\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*%")
_THOUSANDS = re.compile(r"(?<!\d)[1-9]\d{0,2},\d{3}(?!\d)")
_FIGURES = re.compile(r"[\W\d]*\d[\W\d]*")
_STARS = re.compile(r"[★⭐]+☆*")


@dataclass(frozen=True)
class Scale:
    """A scale from the worst value, `low`, to the best, `high` (the smaller number where less is
    better).

    Of ordered `words` these are their places. `declared` says where the scale was declared.
    """

    low: float
    high: float
    declared: str = BY_FILE
    words: tuple[str, ...] = ()

    def score(self, value: object) -> float | None:
        """The score from -1 to 1 of a value; None: it is not on this scale."""
        place = self._place(value)
        if place is None or not min(self.low, self.high) <= place <= max(self.low, self.high):
            return None
        if (self.low, self.high) == (-1, 1):
            return place
        return round(2 * (place - self.low) / (self.high - self.low) - 1, 6)

    def _place(self, value: object) -> float | None:
        if not self.words:
            part, most = parse_share(value) or (0.0, None)
            return part if most == self.high else parse_number(value)
        word = str(value).strip().casefold()
        return float(self.words.index(word)) if word in self.words else None

    def __str__(self) -> str:
        """`1 to 5`, or the words in their order."""
        return ", ".join(self.words) if self.words else f"{self.low:g} to {self.high:g}"


def parse_scale(text: str) -> Scale:
    """Parse `1..5`, `-1..1`, `6..1` (the worst first), or words from the worst to the best:
    `poor,fair,good`.

    Raises:
        UsageError: it is written otherwise, or has one value alone.
    """
    low, dots, high = text.strip().partition("..")
    ends = (parse_number(low), parse_number(high))
    words = tuple(word.strip().casefold() for word in text.split(","))
    if dots and ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
        return Scale(ends[0], ends[1], BY_OPTION)
    if not dots and len(words) > 1 and all(words) and len(set(words)) == len(words):
        return Scale(0, len(words) - 1, BY_OPTION, words)
    raise UsageError(f"--scale {text!r} is no scale", "write worst..best: --scale 1..5, or --scale poor,fair,good")


def parse_scales(options: Sequence[str]) -> dict[str, Scale]:
    """Parse every `--scale` by the question or column that it names (`helpful=1..5`); "": that of
    the score.

    Raises:
        UsageError: see `parse_scale`; or one is given twice.
    """
    scales: dict[str, Scale] = {}
    for option in options:
        name, _, text = option.rpartition("=")
        if name.strip() in scales:
            raise UsageError(f"--scale is given twice{f' for {name}' if name else ''}", "give it once")
        scales[name.strip()] = parse_scale(text)
    return scales


def scale_of_numbers(options: Iterable[object], declared: str = BY_FILE) -> Scale | None:
    """The scale that the possible answers of a question declare, where all are numbers."""
    numbers = [parse_number(str(option)) for option in options]
    known = [number for number in numbers if number is not None]
    if len(known) < 2 or len(known) < len(numbers) or min(known) == max(known):
        return None
    return Scale(min(known), max(known), declared)


def is_rated(value: object) -> bool:
    """True if a cell has a rating: a dash, or n/a in some language, has none."""
    return is_filled(value) and str(value).strip().casefold() not in NO_RATING


def parse_number(value: object) -> float | None:
    """A finite number, or a text that is one: `4`, `4.0`, `0,5`, `4 stars`, `4 - good`, `★★★★☆`.
    None for anything else, True and False included.
    """
    if isinstance(value, str):
        text = _plain(value)
        number, stars = _NUMBER.fullmatch(text), _STARS.fullmatch(text)
        return float(number[1]) if number else float(len(text.rstrip("☆"))) if stars else None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def parse_share(value: object) -> tuple[float, float] | None:
    """The part and the maximum of a text that says both: `4/5`, `4 of 5`, `80 %` (of 100)."""
    share = _SHARE.fullmatch(_plain(value)) if isinstance(value, str) else None
    return share and ((float(share[3]), 100.0) if share[3] else (float(share[1]), float(share[2])))


def _plain(text: str) -> str:
    """A number as people write it, in one form: full width, another minus, a decimal comma (not of
    `1,000`)."""
    text = unicodedata.normalize("NFKC", text).strip().replace("−", "-").replace("–", "-")
    return text if _THOUSANDS.search(text) else re.sub(r"(?<=\d),(?=\d)|(?<![^+-]),(?=\d)", ".", text)


def score_word(word: object) -> float | None:
    """The score of an unmistakable word of praise or blame (`VERDICTS`); None for anything else."""
    if not isinstance(word, str):
        return None
    return VERDICTS.get(re.sub(r"[\s_-]+", " ", word.strip(" \t\n.!").casefold()))


class RatingReader:
    """The reading of one question's values: on its declared scale, by their own maximum, or word by
    word.

    `options` are all words that could have been chosen. `rates`: this is a rating at all.
    """

    def __init__(
        self, name: str, values: Iterable[object], scale: Scale | None = None, options: Sequence[str] = ()
    ) -> None:
        filled = [value for value in values if value is not None and str(value).strip()]
        figures = [value for value in filled if _is_figure(value)]
        words = [part for value in filled if value not in figures for part in _parts(value)]
        self.name = name
        self.open = _is_open(name) and not (scale and scale.declared == BY_OPTION)
        self.scale = None if self.open else scale
        alone = not any(isinstance(value, list) for value in filled)
        self.graded = self.scale is None and _is_graded(options or words, alone)
        self._scored = {_shown(value): score for value in filled if (score := self.score(value)) is not None}
        self._without = [_shown(value) for value in filled if _shown(value) not in self._scored]
        self._count = len(filled)
        self.rates = bool(figures or self.graded or self._scored)

    def score(self, value: object) -> float | None:
        """The score of a value; None: it has none, and `problem` says so."""
        on_scale = self.scale.score(value) if self.scale else None
        if on_scale is not None or self.graded or (self.scale and self.scale.words):
            return on_scale
        if not self.open and (share := parse_share(value)):
            part, most = share
            return round(2 * part / most - 1, 6) if most and 0 <= part <= most else None
        words = value if isinstance(value, list) else [value]
        verdicts = {score for word in words if (score := self._verdict(word)) is not None}
        return verdicts.pop() if len(verdicts) == 1 else None

    def _verdict(self, word: object) -> float | None:
        """The score of a word, or of one that the question's name makes clear: the "down" of
        "thumbs"."""
        score = score_word(word)
        return score_word(f"{self.name} {word}") if score is None and isinstance(word, str) else score

    @property
    def loses(self) -> bool:
        """True if ratings have no score because nothing says what they are worth."""
        figures = self.scale is None and any(map(_is_figure, self._without))
        return figures or (self.rates and not self._scored)

    @property
    def line(self) -> str:
        """The ratings and their scores, in the user's terms."""
        scale = self.scale
        on_scale = {value for value in self._scored if scale and scale.score(value) is not None}
        others = {value: score for value, score in self._scored.items() if value not in on_scale}
        shares = [value for value in others if parse_share(value)]
        pairs = [f"{word!r} read as {score:g}" for word, score in others.items() if word not in shares]
        pairs += [
            f"{value} read as {others[value]:g}: of 0 to its own maximum (1 is worst: --scale 1..5)"
            for value in shares[:1]
        ]
        declared = scale.declared if scale and on_scale else ""
        if declared:
            pairs.insert(0, f"{'' if scale and scale.words else 'ratings '}{scale} read as -1 to 1")
        return f"{', '.join(pairs)} ({self.name}{declared and f': {declared}'})" if pairs else ""

    @property
    def problem(self) -> str:
        """The values without a score, why, and the option that gives them one."""
        if not self._without:
            return ""
        shown = ", ".join(sorted(set(self._without))[:6])[:80]
        if self.scale is not None:
            count = f"{len(self._without)} of {self._count}"
            return f"{self.name}: not on the scale {self.scale}, so without a score: {shown} ({count})"
        name = shlex.quote(self.name)
        if all(map(_is_figure, self._without)):
            why = "more may not be better" if self.open else "no scale is declared"
            cure = f"say it: --scale {name}=WORST..BEST"
        else:
            why = "steps of a scale whose order is not known" if self.graded else "neither praise nor blame"
            cure = f"if they rate, name all from the worst: --scale {name}=WORST,...,BEST"
        return f"{self.name}: {why}, so without a score: {shown} ({cure})"


def _is_figure(value: object) -> bool:
    """True if it is a number, or text that has figures and no letters."""
    return parse_number(value) is not None or (isinstance(value, str) and bool(_FIGURES.fullmatch(value.strip())))


def _parts(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else [str(value).strip()]


def _shown(value: object) -> str:
    return ", ".join(_parts(value))


def _is_graded(words: Iterable[str], alone: bool) -> bool:
    """True if words are steps of a scale whose order is not known: one of `DEGREES` beside another
    of its side, or three and more, one to a response, of which only one side is known (of meh,
    good, superb, good is the middle).
    """
    scores = {word.casefold(): score_word(word) for word in words if parse_number(word) is None}
    known = {word: score for word, score in scores.items() if score}
    beside = any(word in DEGREES and list(known.values()).count(score) > 1 for word, score in known.items())
    return beside or (alone and len(scores) > 2 and len(set(known.values())) == 1)


def _is_open(name: str) -> bool:
    """True if more of what a question asks for may not be better, by its name."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).casefold())
    return any(map(_NOT_BETTER.fullmatch, words))


@dataclass(frozen=True)
class Scales:
    """The readings of all questions of a file, and `main`: the question whose answer is the
    verdict."""

    readings: Mapping[str, RatingReader]
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
        """Read all values of a file by question.

        `given` is by `--scale` ("" for the verdict), `declared` by the file, as `options` are;
        `main` is the verdict's name if the user gave it, else the only rating, else one of
        `OVERALL`.

        Raises:
            UsageError: `given` or `main` names no question of the file, or a rating is not on the
                scale given.
        """
        for name in filter(None, [*given, main]):
            if name not in values:
                there = ", ".join(values)[:200] or "none"
                raise UsageError(f"the file has no rating {name!r}", f"ratings there: {there}")
        readings = {
            name: RatingReader(name, answers, given.get(name) or declared.get(name), (options or {}).get(name, ()))
            for name, answers in values.items()
        }
        rated, problem = [name for name, reading in readings.items() if reading.rates], ""
        overall = [name for name in rated if re.sub("[ -]", "_", name.casefold()) in OVERALL]
        if not main and len(verdicts := rated if len(rated) == 1 else overall) == 1:
            main = verdicts[0]
        elif not main and rated:
            cure = f"say which: --map {shlex.quote(f'score={rated[0]}')}"
            problem = f"several ratings and none is the verdict: {', '.join(rated)} ({cure})"
        if not main and "" in given and len(values) == 1:
            main = next(iter(values))
        if main and main not in given and "" in given:
            readings[main] = RatingReader(main, values[main], given[""])
        for reading in (readings[name] for name in (*given, main) if name):
            if reading.scale and reading.scale.declared == BY_OPTION and reading.problem:
                raise UsageError(reading.problem, "give a scale that has them all, or correct these ratings")
        return cls(readings, main, problem)

    def score(self, ratings: Mapping[str, object]) -> float | None:
        """The verdict of one person: the score of the main question's answer."""
        return self.readings[self.main].score(ratings.get(self.main)) if self.main else None

    @property
    def lines(self) -> tuple[str, ...]:
        """How the ratings were read."""
        if not self.main:
            return ()
        others = [name for name, reading in self.readings.items() if reading.rates and name != self.main]
        aside = f"kept in meta.ratings, not in the score: {', '.join(others)} (to take one: --map score=NAME)"
        return tuple(filter(None, [self.readings[self.main].line, aside if others else ""]))

    @property
    def unscored(self) -> tuple[str, ...]:
        """Return the `problems` that lose ratings which a scale, or the name of the verdict, would
        save."""
        main = self.readings.get(self.main)
        return tuple(filter(None, [main.problem if main and main.loses else "", self.problem]))

    @property
    def problems(self) -> tuple[str, ...]:
        """The ratings that give no score, and the options that give them one."""
        names = [name for name, reading in self.readings.items() if name == self.main or not reading.rates]
        return tuple(filter(None, [*(self.readings[name].problem for name in names), self.problem]))
