"""Find the passage of a response that is most similar to an unmatched quote.

The trigrams of the words of a response are indexed once. The rarest trigrams of the quote vote for
the word at which it would begin, and only the starts with the most votes are compared. The time for
many quotes is therefore proportional to their number, not to their number times the length of the
response.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

from text2grad.feedback import Place
from text2grad.unicode_words import pieces

MIN_RATIO = 0.5
"""Smallest ratio of `difflib` at which a passage is returned."""
VOTE_BONUS, LENGTH_PENALTY = 0.1, 0.05
"""Added to the ratio of the start with the most votes; subtracted if the word count differs."""
MAX_WORDS, MAX_VOTES, MAX_COMPARED = 30, 300, 6
"""Words of a quote that are used, places that vote, and starts that are compared."""


class _Index(NamedTuple):
    """The words of a text as intervals, and the numbers of the words that contain each trigram."""

    words: Sequence[Place]
    trigrams: Mapping[str, Sequence[int]]


def find_nearest(quote: str, text: str) -> str:
    """Return the words of `text` that are most similar to `quote`, "" if the ratio is below 0.5."""
    words = list(islice(pieces(quote), MAX_WORDS))
    index = _build_index(text)
    if not (words and index.words):
        return ""
    starts = _vote_for_starts([quote[start:end].casefold() for start, end in words], index)
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(quote[words[0][0] : words[-1][1]].casefold())
    best_score, best_passage = MIN_RATIO, ""
    for first, votes in starts:
        for count in (len(words), len(words) + 1, len(words) - 1):
            passage = _cut_passage(text, index.words, first, count)
            matcher.set_seq1(passage.casefold())
            bonus = VOTE_BONUS * votes - LENGTH_PENALTY * (count != len(words))
            # quick_ratio is an upper bound of ratio, and much cheaper.
            if matcher.quick_ratio() + bonus > best_score and (ratio := matcher.ratio()) > MIN_RATIO:
                best_score, best_passage = max((best_score, best_passage), (ratio + bonus, passage))
    return best_passage


@lru_cache(maxsize=8)
def _build_index(text: str) -> _Index:
    words = list(pieces(text))
    trigrams: dict[str, list[int]] = {}
    for number, (start, end) in enumerate(words):
        for trigram in _trigrams(text[start:end].casefold()):
            trigrams.setdefault(trigram, []).append(number)
    return _Index(words, trigrams)


def _trigrams(word: str) -> set[str]:
    """Return the pairs and triples of letters of a word, with its edges as spaces."""
    padded = f" {word} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)} | {"".join(pair) for pair in pairwise(padded)}


def _vote_for_starts(words: Sequence[str], index: _Index) -> list[tuple[int, float]]:
    """Return the words of the text at which the quote most likely begins, with their votes.

    Most votes first; votes are relative to the largest number.
    """
    matches = [
        (index.trigrams[trigram], offset)
        for offset, word in enumerate(words)
        for trigram in _trigrams(word)
        if trigram in index.trigrams
    ]
    votes: Counter[int] = Counter()
    remaining = MAX_VOTES
    for numbers, offset in sorted(matches, key=lambda match: len(match[0])):  # rare trigrams first
        votes.update(max(0, number - offset) for number in numbers[:remaining])
        remaining -= len(numbers)
        if remaining <= 0:
            break
    top = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))[:MAX_COMPARED]
    return [(first, count / top[0][1]) for first, count in top]


def _cut_passage(text: str, words: Sequence[Place], first: int, count: int) -> str:
    """Return `count` words from word `first` on, "" if the text has fewer."""
    last = first + count - 1
    return text[words[first][0] : words[last][1]].strip(".,;:!?") if 0 < count <= len(words) - first else ""
