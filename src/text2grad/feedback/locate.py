"""Locate a quote that does not occur literally in the response.

A match is always an interval of the unchanged response.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import AnyStr, NamedTuple

from text2grad.feedback.spans import Place, Tolerance
from text2grad.feedback.transcripts import Turn
from text2grad.unicode_words import inside_word

_CANONICAL = {
    **dict.fromkeys("‘’‚‛′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", ""),
    **dict.fromkeys(map(chr, range(0xFE00, 0xFE10)), ""),
    "…": "...",
}
_WIDTHS = ("<wide>", "<narrow>", "<compat> 0066")
"""Prefixes of the Unicode decompositions of full-width and half-width letters, and f-ligatures."""


def locate(quote: str, response: str, turns: Sequence[Turn], tolerance: Tolerance) -> list[Place]:
    """Return the places of a quote without a literal match, each within one of `turns`.

    The strictest comparison that yields any place wins.
    """
    for ignore_case in {"exact": (), "normalised": (False,), "any_case": (False, True)}[tolerance]:
        places = [
            (turn.start + start, turn.start + end)
            for turn in turns
            for start, end in _folded_places(quote, response[turn.start : turn.end], ignore_case)
        ]
        if places:
            return places
    return []


def find_all(part: AnyStr, text: AnyStr) -> Iterator[int]:
    """Yield every index at which `part` starts in `text`; matches may overlap."""
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + 1)


class _Folded(NamedTuple):
    """A text in canonical form; its character i comes from character `origins[i]` of the source."""

    text: str
    origins: list[int]


@lru_cache(maxsize=64)
def _fold(text: str, ignore_case: bool) -> _Folded:
    """Fold a text into canonical form.

    Combining marks follow their letter in canonical order, so composed and decomposed letters
    compare equal.
    """
    characters: list[str] = []
    origins: list[int] = []
    for index, char in enumerate(text):
        folded = _fold_character(char, ignore_case)
        if folded == " " and characters and characters[-1] == " ":
            continue
        for piece in folded:
            position, order = len(characters), unicodedata.combining(piece)
            while order and position and unicodedata.combining(characters[position - 1]) > order:
                position -= 1
            characters.insert(position, piece)
            origins.insert(position, index)
    return _Folded("".join(characters), origins)


@lru_cache(maxsize=8192)
def _fold_character(char: str, ignore_case: bool) -> str:
    char = _CANONICAL.get(char, char)
    other_width = unicodedata.decomposition(char).startswith(_WIDTHS) if len(char) == 1 else False
    char = unicodedata.normalize("NFKD" if other_width else "NFD", char)
    char = _CANONICAL.get(char, " " if char.isspace() else char)
    return char.casefold() if ignore_case else char


def _folded_places(quote: str, response: str, ignore_case: bool) -> list[Place]:
    """Return the whole-word matches of the folded quote, as characters of the response."""
    needle, haystack = _fold(quote, ignore_case).text.strip(), _fold(response, ignore_case)
    places = []
    for first in find_all(needle, haystack.text) if needle else ():
        last = first + len(needle)
        if _splits_character(haystack, first) or _splits_character(haystack, last):
            continue
        start, end = haystack.origins[first], max(haystack.origins[first:last]) + 1
        while inside_word(response, end) and not _fold_character(response[end], ignore_case):
            end += 1  # a joiner or a variation selector that belongs to the last character
        if not (inside_word(response, start) or inside_word(response, end)):
            places.append((start, end))
    return places


def _splits_character(folded: _Folded, position: int) -> bool:
    """True if `position` is inside what a reader sees as one character.

    That is "..." for an ellipsis, a letter and its accent, or the parts of a Korean syllable.
    """
    if not 0 < position < len(folded.text):
        return False
    before, char, origins = folded.text[position - 1], folded.text[position], folded.origins
    in_syllable = "\u1100" <= before <= "\u11ff" and "\u1160" <= char <= "\u11ff"
    return origins[position - 1] == origins[position] or bool(unicodedata.combining(char)) or in_syllable
