"""What in a response is most like a quote that is not there.

The trigrams of a response's words are indexed once. Those of the quote that are rarest there vote
for where it would begin, and only the places with the most votes are compared: the time for many
quotes grows with their number, not with their number times the length of the response.
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

LEAST_ALIKE = 0.5
"""Of `difflib`'s ratio, from which on a passage is worth naming."""
SAME_BEGINNING, OTHER_LENGTH = 0.1, 0.05
"""What the most votes for a beginning, and another number of words, are worth beside that ratio."""
MOST_WORDS, MOST_VOTES, MOST_COMPARED = 30, 300, 6
"""Words of a quote that are looked at, places that vote, and places that are compared."""


class _Words(NamedTuple):
    """The words of a text, and in which of them each trigram is."""

    places: Sequence[Place]
    trigrams: Mapping[str, Sequence[int]]


def nearest(quote: str, text: str) -> str:
    """The words of a text that are most like a quote, at least by half; "" if none are."""
    words = list(islice(pieces(quote), MOST_WORDS))
    there = _indexed(text)
    if not (words and there.places):
        return ""
    beginnings = _beginnings([quote[start:end].casefold() for start, end in words], there)
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(quote[words[0][0] : words[-1][1]].casefold())
    best, found = LEAST_ALIKE, ""
    for first, votes in beginnings:
        for count in (len(words), len(words) + 1, len(words) - 1):
            passage = _passage(text, there.places, first, count)
            matcher.set_seq1(passage.casefold())
            for_it = SAME_BEGINNING * votes - OTHER_LENGTH * (count != len(words))
            if matcher.quick_ratio() + for_it > best and (ratio := matcher.ratio()) > LEAST_ALIKE:
                best, found = max((best, found), (ratio + for_it, passage))
    return found


@lru_cache(maxsize=8)
def _indexed(text: str) -> _Words:
    places = list(pieces(text))
    trigrams: dict[str, list[int]] = {}
    for number, (start, end) in enumerate(places):
        for trigram in _trigrams(text[start:end].casefold()):
            trigrams.setdefault(trigram, []).append(number)
    return _Words(places, trigrams)


def _trigrams(word: str) -> set[str]:
    """The pairs and triples of letters of a word, its edges included."""
    padded = f" {word} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)} | {"".join(pair) for pair in pairwise(padded)}


def _beginnings(words: Sequence[str], there: _Words) -> list[tuple[int, float]]:
    """The words of the text at which the quote most likely begins, likeliest first, with their
    votes (most: 1)."""
    known = [
        (there.trigrams[trigram], offset)
        for offset, word in enumerate(words)
        for trigram in _trigrams(word)
        if trigram in there.trigrams
    ]
    votes: Counter[int] = Counter()
    left = MOST_VOTES
    for places, offset in sorted(known, key=lambda pair: len(pair[0])):
        votes.update(max(0, place - offset) for place in places[:left])
        left -= len(places)
        if left <= 0:
            break
    most = sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))[:MOST_COMPARED]
    return [(first, count / most[0][1]) for first, count in most]


def _passage(text: str, places: Sequence[Place], first: int, count: int) -> str:
    """`count` words from the first on; "" where the text has no more so many."""
    last = first + count - 1
    return text[places[first][0] : places[last][1]].strip(".,;:!?") if 0 < count <= len(places) - first else ""
