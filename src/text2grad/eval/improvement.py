"""Compare models on held-out questions by people's own feedback, without a judge.

Each measure is from 0 to 1 for every answer: its likeness to people's correction, the absence of
words that people criticised, its likeness to an answer that people rated well, and a predicted
rating. No torch.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from text2grad.eval.metrics import Interval, mean_with_interval
from text2grad.feedback import Feedback
from text2grad.tasks.base import question_text
from text2grad.unicode_words import units

MAX_TERM_ONCE, MAX_TERM = 4, 8
"""Longest criticised passage in words, if criticised once, and if criticised more than once."""
MIN_LENGTH, MAX_LENGTH = 0.4, 2.5
"""Bounds of a clean answer's length, relative to people's answers."""
MIN_QUESTIONS = 3
"""Held-out questions that a decision needs."""
TITLES = {
    "corrections": "likeness to people's corrections",
    "clean": "answers without criticised words",
    "praised": "likeness to answers that people rated well",
    "rating": "predicted rating",
}


@dataclass(frozen=True)
class Expectation:
    """The answer that people want to a question.

    `corrected` and `praised` are answers, or empty. `length` is the usual number of words. `terms`
    are criticised words that the answer must not repeat.
    """

    corrected: str
    praised: str
    length: float
    terms: frozenset[str]


def words_in(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [text[start:end].casefold() for start, end in units(text) if any(map(str.isalnum, text[start:end]))]


def likeness(one: str, other: str) -> float:
    """Return the share of words that two texts have in common, in their order."""
    return difflib.SequenceMatcher(None, words_in(one), words_in(other), autojunk=False).ratio()


def criticised_terms(records: Iterable[Feedback]) -> frozenset[str]:
    """Return the words that people marked as poor and never wrote or praised themselves."""
    poor: Counter[str] = Counter()
    accepted: set[str] = set()
    for record in records:
        corrected = str(record.meta.get("corrected") or "")
        praised = record.response if (record.score or 0) > 0 and not any(s.label < 0 for s in record.spans) else ""
        accepted |= terms_of(corrected) | terms_of(praised)
        for span in record.spans:
            words = words_in(span.text)
            if span.label < 0 and 0 < len(words) <= MAX_TERM:
                poor[" ".join(words)] += 1
    criticised = {term for term, count in poor.items() if count > 1 or len(term.split()) <= MAX_TERM_ONCE}
    return frozenset(criticised - accepted)


def terms_of(text: str) -> set[str]:
    """Return all sequences of at most `MAX_TERM` words of a text."""
    words = words_in(text)
    lengths = range(1, MAX_TERM + 1)
    return {" ".join(words[start : start + length]) for length in lengths for start in range(len(words))}


def expectations(records: Sequence[Feedback], heldout: Iterable[str]) -> dict[str, Expectation]:
    """Return the expectations for each held-out question, by the question."""
    terms = criticised_terms(records)
    by_question: dict[str, list[Feedback]] = {}
    for record in records:
        by_question.setdefault(question_text(record), []).append(record)
    usual_length = fmean([len(words_in(record.response)) for record in records] or [0.0])
    expected = {}
    for question in heldout:
        group = by_question.get(question, [])
        corrected = next((text for record in group if (text := str(record.meta.get("corrected") or ""))), "")
        praised = max(group, key=lambda record: record.score or 0.0, default=None)
        good = praised.response if praised is not None and (praised.score or 0.0) > 0 else ""
        length = len(words_in(corrected or good)) or usual_length
        expected[question] = Expectation(corrected, good, length, terms - terms_of(question))
    return expected


def measure(answer: str, expected: Expectation, has_terms: bool) -> dict[str, float]:
    """Return the measures of one answer that its question allows."""
    figures: dict[str, float] = {}
    if expected.corrected:
        figures["corrections"] = likeness(answer, expected.corrected)
    if has_terms:
        length = len(words_in(answer))
        is_usual = MIN_LENGTH * expected.length <= length <= MAX_LENGTH * expected.length
        figures["clean"] = float(is_usual and not terms_of(answer) & expected.terms)
    if expected.praised and not expected.corrected:
        figures["praised"] = likeness(answer, expected.praised)
    return figures


@dataclass(frozen=True)
class Comparison:
    """Two policies on held-out questions.

    `before` and `after` are the means of each measure. `gain` is the interval of the mean gain; the
    gain on a question is the mean over its measures. It is None if too few questions are measured.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]
    gain: Interval | None
    questions: int

    @property
    def better(self) -> bool:
        """True if chance does not explain the gain."""
        return self.gain is not None and self.gain.low > 0

    @property
    def line(self) -> str:
        """`held out (12 questions): likeness to people's corrections 0.31 -> 0.78`."""
        pairs = [f"{TITLES[name]} {self.before[name]:.2f} -> {self.after[name]:.2f}" for name in self.after]
        return f"held out ({self.questions} questions): {' · '.join(pairs) or 'nothing to measure by'}"


def compare(
    expected: Mapping[str, Expectation],
    before: Mapping[str, str],
    after: Mapping[str, str],
    ratings: Sequence[Mapping[str, float]] | None = None,
) -> Comparison:
    """Compare the answers of the current and the new policy to the same held-out questions.

    Everything is by question; `ratings` are the predicted ratings of both policies, if any.
    """
    has_terms = any(expectation.terms for expectation in expected.values())
    figures = {
        question: tuple(
            measure(answers[question], expectation, has_terms)
            | ({"rating": ratings[side][question]} if ratings else {})
            for side, answers in enumerate((before, after))
        )
        for question, expectation in expected.items()
        if question in before and question in after
    }
    measured = {question: pair for question, pair in figures.items() if pair[0]}
    gains = [fmean(new.values()) - fmean(old.values()) for old, new in measured.values()]
    means: list[dict[str, float]] = []
    for side in zip(*measured.values(), strict=True) if measured else ((), ()):
        values = {name: [answer[name] for answer in side if name in answer] for name in TITLES}
        means.append({name: fmean(listed) for name, listed in values.items() if listed})
    gain = mean_with_interval(gains) if len(gains) >= MIN_QUESTIONS else None
    return Comparison(means[0], means[1], gain, len(measured))
