"""Scales of ratings: the worst value, the best value, and the score from -1 to 1 between them.

A number means nothing without its scale, so a scale is declared: by `--scale`, or by the file (the
settings of a question, a labelling configuration, a maximum with the number). Scales are never
inferred from the values: a rating without a scale gives no score, and one line names it. Words of
praise or criticism need no scale.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from text2grad.data.keys import OVERALL_RATINGS
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
"""Words that praise or criticise for any question, in any case. "yes", "4" and "A" do not."""
NOT_RATED = frozenset({"-", "–", "—", "?", "/", "n/a", "na", "none", "k.a.", "k. a.", "s/o", "n.v.t."})
"""Texts of a cell without a rating."""
DEGREES = frozenset({"excellent", "great", "very good", "very bad", "very poor", "terrible", "awful"})
"""Words of scales with more steps than good and bad; see `_is_graded`."""
_NOT_BETTER = re.compile(
    r"(?:is|has|contains)?(?:toxic\w*|harm(?:ful\w*)?|error\w*|severity|hallucinat\w*|bias\w*|wrong\w*|bad"
    r"|incorrect\w*|risk\w*|offens\w*|unsafe|fault\w*|mistake\w*|redundan\w*|problem\w*|issue\w*|unhelpful\w*"
    r"|violat\w*|poor|negative|dislike\w*|downvote\w*|reject\w*|fail\w*"
    r"|difficult\w*|confiden\w*|certain\w*|length|duration|not?|non|without|free)"
)
"""Words in the name of a question whose high values may be bad: its scale needs a direction."""
_NUMBER = re.compile(
    r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?)(?:\s*(?:stars?|points?|★|⭐|%)|\s*[-:=)]\s+\S.*)?"
)
_SHARE = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*(?:/|of|out of)\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*%")
_THOUSANDS = re.compile(r"(?<!\d)[1-9]\d{0,2},\d{3}(?!\d)")
_FIGURES = re.compile(r"[\W\d]*\d[\W\d]*")
_STARS = re.compile(r"[★⭐]+☆*")


@dataclass(frozen=True)
class Scale:
    """A scale from the worst value to the best.

    Attributes:
        low: the worst value; the larger number where less is better.
        high: the best value.
        declared: where the scale was declared, for people.
        words: the steps of a scale of words, worst first; `low` and `high` are then indices.
    """

    low: float
    high: float
    declared: str = BY_FILE
    words: tuple[str, ...] = ()

    def score(self, value: object) -> float | None:
        """Return the score from -1 to 1 of a value, or None if it is not on this scale."""
        if self.words:
            word = str(value).strip().casefold()
            number = float(self.words.index(word)) if word in self.words else None
        else:
            part, maximum = parse_share(value) or (0.0, None)
            number = part if maximum == self.high else parse_number(value)
        if number is None or not min(self.low, self.high) <= number <= max(self.low, self.high):
            return None
        if (self.low, self.high) == (-1, 1):
            return number
        return round(2 * (number - self.low) / (self.high - self.low) - 1, 6)

    def __str__(self) -> str:
        """Return `1 to 5`, or the words in their order."""
        return ", ".join(self.words) if self.words else f"{self.low:g} to {self.high:g}"


def parse_scale(text: str) -> Scale:
    """Parse a scale, worst first: `1..5`, `-1..1`, `6..1`, or words such as `poor,fair,good`.

    Raises:
        UsageError: the text has another form, or a single value.
    """
    low, dots, high = text.strip().partition("..")
    ends = (parse_number(low), parse_number(high))
    words = tuple(word.strip().casefold() for word in text.split(","))
    if dots and ends[0] is not None and ends[1] is not None and ends[0] != ends[1]:
        return Scale(ends[0], ends[1], BY_OPTION)
    if not dots and len(words) > 1 and all(words) and len(set(words)) == len(words):
        return Scale(0, len(words) - 1, BY_OPTION, words)
    raise UsageError(
        f"--scale {text!r} is not a scale", "write worst..best: --scale 1..5, or --scale poor,fair,good"
    )


def parse_scales(options: Sequence[str]) -> dict[str, Scale]:
    """Parse the `--scale` options by question or column (`helpful=1..5`), "" for the score.

    Raises:
        UsageError: see `parse_scale`; or a scale is given twice.
    """
    scales: dict[str, Scale] = {}
    for option in options:
        name, _, text = option.rpartition("=")
        if name.strip() in scales:
            raise UsageError(f"--scale is given twice{f' for {name}' if name else ''}", "give it once")
        scales[name.strip()] = parse_scale(text)
    return scales


def scale_of_numbers(options: Iterable[object], declared: str = BY_FILE) -> Scale | None:
    """Return the scale that the options of a question declare, or None unless all are numbers."""
    parsed = [parse_number(str(option)) for option in options]
    numbers = [number for number in parsed if number is not None]
    if len(numbers) < len(parsed) or len({*numbers}) < 2:
        return None
    return Scale(min(numbers), max(numbers), declared)


def is_rated(value: object) -> bool:
    """True if a cell has a rating; a dash, or n/a in several languages, is none."""
    return is_filled(value) and str(value).strip().casefold() not in NOT_RATED


def parse_number(value: object) -> float | None:
    """Parse a finite number, or text: `4`, `4.0`, `0,5`, `4 stars`, `4 - good`, `★★★★☆`.

    Returns:
        None for anything else, True and False included.
    """
    if isinstance(value, str):
        text = _plain_number(value)
        number, stars = _NUMBER.fullmatch(text), _STARS.fullmatch(text)
        return float(number[1]) if number else float(len(text.rstrip("☆"))) if stars else None
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def parse_share(value: object) -> tuple[float, float] | None:
    """Parse a part and its maximum: `4/5`, `4 of 5`, `80 %` (of 100)."""
    share = _SHARE.fullmatch(_plain_number(value)) if isinstance(value, str) else None
    return share and ((float(share[3]), 100.0) if share[3] else (float(share[1]), float(share[2])))


def _plain_number(text: str) -> str:
    """Normalise full-width digits, minus signs and a decimal comma (not the comma of `1,000`)."""
    text = unicodedata.normalize("NFKC", text).strip().replace("−", "-").replace("–", "-")
    return text if _THOUSANDS.search(text) else re.sub(r"(?<=\d),(?=\d)|(?<![^+-]),(?=\d)", ".", text)


def score_word(word: object) -> float | None:
    """Return the score of a word in `VERDICTS`, or None."""
    if not isinstance(word, str):
        return None
    return VERDICTS.get(re.sub(r"[\s_-]+", " ", word.strip(" \t\n.!").casefold()))


class RatingReader:
    """Scores the answers to one question: on its declared scale, as shares, or word by word.

    Attributes:
        name: the question.
        scale: the scale that applies, None without one.
        is_ambiguous: high values may be bad, by the name of the question.
        is_graded: the answers are steps of a scale whose order is unknown.
        rates: the answers are ratings at all.
    """

    def __init__(
        self, name: str, values: Iterable[object], scale: Scale | None = None, options: Sequence[str] = ()
    ) -> None:
        """Read all `values` of a file; `options` are the words that could have been chosen."""
        filled = [value for value in values if value is not None and str(value).strip()]
        figures = [value for value in filled if _is_figure(value)]
        words = [part for value in filled if not _is_figure(value) for part in _as_words(value)]
        self.name = name
        question = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).casefold())
        has_direction = scale is not None and scale.declared == BY_OPTION
        self.is_ambiguous = any(map(_NOT_BETTER.fullmatch, question)) and not has_direction
        self.scale = None if self.is_ambiguous else scale
        single = not any(isinstance(value, list) for value in filled)
        self.is_graded = self.scale is None and _is_graded(options or words, single)
        self._scored = {_as_text(value): score for value in filled if (score := self.score(value)) is not None}
        self._unscored = [_as_text(value) for value in filled if _as_text(value) not in self._scored]
        self._count = len(filled)
        self.rates = bool(figures or self.is_graded or self._scored)

    def score(self, value: object) -> float | None:
        """Return the score of a value, or None; `problem` says why a value has none."""
        on_scale = self.scale.score(value) if self.scale else None
        if on_scale is not None or self.is_graded or (self.scale and self.scale.words):
            return on_scale
        if not self.is_ambiguous and (share := parse_share(value)):
            part, maximum = share
            return round(2 * part / maximum - 1, 6) if maximum and 0 <= part <= maximum else None
        scores: set[float] = set()
        for word in value if isinstance(value, list) else [value]:
            score = score_word(word)
            if score is None and isinstance(word, str):  # clear with the question: "down" of "thumbs"
                score = score_word(f"{self.name} {word}")
            if score is not None:
                scores.add(score)
        return scores.pop() if len(scores) == 1 else None

    @property
    def loses(self) -> bool:
        """True if ratings have no score because no scale is declared."""
        has_figures = self.scale is None and any(map(_is_figure, self._unscored))
        return has_figures or (self.rates and not self._scored)

    @property
    def line(self) -> str:
        """The ratings and their scores, for the user."""
        scale = self.scale
        on_scale = {value for value in self._scored if scale and scale.score(value) is not None}
        others = {value: score for value, score in self._scored.items() if value not in on_scale}
        shares = [value for value in others if parse_share(value)]
        pairs = [f"{word!r} read as {score:g}" for word, score in others.items() if word not in shares]
        pairs += [
            f"{value} read as {others[value]:g}: on a scale from 0 to its maximum (if 1 is worst: --scale 1..5)"
            for value in shares[:1]
        ]
        declared = scale.declared if scale and on_scale else ""
        if declared:
            pairs.insert(0, f"{'' if scale and scale.words else 'ratings '}{scale} read as -1 to 1")
        return f"{', '.join(pairs)} ({self.name}{declared and f': {declared}'})" if pairs else ""

    @property
    def problem(self) -> str:
        """The values without a score, the reason, and the option that gives them one."""
        if not self._unscored:
            return ""
        values = ", ".join(sorted({*self._unscored})[:6])[:80]
        if self.scale is not None:
            count = f"{len(self._unscored)} of {self._count}"
            return f"{self.name}: not on the scale {self.scale}, so without a score: {values} ({count})"
        name = shlex.quote(self.name)
        if all(map(_is_figure, self._unscored)):
            reason = "higher may be worse" if self.is_ambiguous else "no scale is declared"
            cure = f"declare it: --scale {name}=WORST..BEST"
        else:
            reason = "steps of a scale whose order is unknown" if self.is_graded else "neither praise nor criticism"
            cure = f"if they are ratings, list all, worst first: --scale {name}=WORST,...,BEST"
        return f"{self.name}: {reason}, so without a score: {values} ({cure})"


def _is_figure(value: object) -> bool:
    """True for a number, or text that has figures and no letters."""
    return parse_number(value) is not None or (isinstance(value, str) and bool(_FIGURES.fullmatch(value.strip())))


def _as_words(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list) else [str(value).strip()]


def _as_text(value: object) -> str:
    return ", ".join(_as_words(value))


def _is_graded(words: Iterable[str], single: bool) -> bool:
    """True if words are steps of a scale whose order is unknown.

    That is one of `DEGREES` together with another word of its side, or, with a `single` word to a
    response, three or more words with verdicts on one side only: of meh, good and superb, good is
    the middle.
    """
    scores = {word.casefold(): score_word(word) for word in words if parse_number(word) is None}
    verdicts = {word: score for word, score in scores.items() if score}
    sides = list(verdicts.values())
    has_degrees = any(word in DEGREES and sides.count(score) > 1 for word, score in verdicts.items())
    return has_degrees or (single and len(scores) > 2 and len({*sides}) == 1)


@dataclass(frozen=True)
class Scales:
    """The readers of all questions of a file.

    Attributes:
        readers: by question.
        main: the question whose answer is the verdict, "" without one.
        problem: why no question is the verdict.
    """

    readers: Mapping[str, RatingReader]
    main: str = ""
    problem: str = ""

    @classmethod
    def of(
        cls,
        values: Mapping[str, Sequence[object]],
        by_option: Mapping[str, Scale],
        by_file: Mapping[str, Scale],
        main: str = "",
        options: Mapping[str, Sequence[str]] | None = None,
    ) -> Scales:
        """Read all ratings of a file.

        Args:
            values: the answers by question.
            by_option: the scales of `--scale`, "" for the verdict's.
            by_file: the scales that the file declares.
            main: the verdict, if the user named it; else it is the only rating, or the only one
                in `OVERALL_RATINGS`.
            options: the possible answers that the file declares.

        Raises:
            UsageError: `by_option` or `main` names an unknown question, or a rating is not on the
                scale of its option.
        """
        for name in filter(None, [*by_option, main]):
            if name not in values:
                ratings = ", ".join(values)[:200] or "none"
                raise UsageError(f"the file has no rating {name!r}", f"its ratings: {ratings}")
        readers = {
            name: RatingReader(
                name, answers, by_option.get(name) or by_file.get(name), (options or {}).get(name, ())
            )
            for name, answers in values.items()
        }
        rated, problem = [name for name, reader in readers.items() if reader.rates], ""
        overall = [name for name in rated if re.sub("[ -]", "_", name.casefold()) in OVERALL_RATINGS]
        if not main and len(verdicts := rated if len(rated) == 1 else overall) == 1:
            main = verdicts[0]
        elif not main and rated:
            cure = f"choose one: --map {shlex.quote(f'score={rated[0]}')}"
            problem = f"several ratings, and none is clearly the verdict: {', '.join(rated)} ({cure})"
        if not main and "" in by_option and len(values) == 1:
            main = next(iter(values))
        if main and main not in by_option and "" in by_option:
            readers[main] = RatingReader(main, values[main], by_option[""])
        for reader in (readers[name] for name in (*by_option, main) if name):
            if reader.scale and reader.scale.declared == BY_OPTION and reader.problem:
                raise UsageError(reader.problem, "give a scale that covers them, or correct these ratings")
        return cls(readers, main, problem)

    def score(self, ratings: Mapping[str, object]) -> float | None:
        """Return the verdict of one person: the score of the main question's answer."""
        return self.readers[self.main].score(ratings.get(self.main)) if self.main else None

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines on how the ratings were read."""
        if not self.main:
            return ()
        others = [name for name, reader in self.readers.items() if reader.rates and name != self.main]
        aside = f"kept in meta.ratings, not in the score: {', '.join(others)} (to use one: --map score=NAME)"
        return tuple(filter(None, [self.readers[self.main].line, aside if others else ""]))

    @property
    def unscored(self) -> tuple[str, ...]:
        """The `problems` that a scale, or the name of the verdict, would solve."""
        main = self.readers.get(self.main)
        return tuple(filter(None, [main.problem if main and main.loses else "", self.problem]))

    @property
    def problems(self) -> tuple[str, ...]:
        """Lines on ratings without a score, with the options that give them one."""
        names = [name for name, reader in self.readers.items() if name == self.main or not reader.rates]
        return tuple(filter(None, [*(self.readers[name].problem for name in names), self.problem]))
