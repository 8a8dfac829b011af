"""Locate a quote that is not literally in the response.

What is found is always an interval of the response as it stands; the quote itself is never put in
its place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import AnyStr, NamedTuple

from text2grad.feedback.spans import Place, Tolerance
from text2grad.feedback.transcripts import Turn
from text2grad.unicode_words import inside_word

_ONE_FORM = {
    **dict.fromkeys("‘’‚‛′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
    **dict.fromkeys("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", ""),
    **dict.fromkeys(map(chr, range(0xFE00, 0xFE10)), ""),
    "…": "...",
}
_WIDTHS = ("<wide>", "<narrow>", "<compat> 0066")
"""How the decompositions of letters of another width, and of ligatures with f, begin in Unicode's
database."""


def locate(quote: str, response: str, turns: Sequence[Turn], tolerance: Tolerance) -> list[Place]:
    """Return the places, each within one of these turns, of a quote that has no literal match.

    The first form in which there are some counts.
    """
    for ignore_case in {"exact": (), "normalised": (False,), "any_case": (False, True)}[tolerance]:
        places = [
            (turn.start + start, turn.start + end)
            for turn in turns
            for start, end in _in_form(quote, response[turn.start : turn.end], ignore_case)
        ]
        if places:
            return places
    return []


def every_place(part: AnyStr, text: AnyStr) -> Iterator[int]:
    """Where `part` starts in `text`, in order; its places may overlap."""
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


class _Folded(NamedTuple):
    """A text in plain form; `origins[i]` is the character of the text that plain character i comes
    from."""

    text: str
    origins: list[int]


@lru_cache(maxsize=64)
def _folded(text: str, ignore_case: bool) -> _Folded:
    """A text in one form. Accents are apart from their letters, in Unicode's order, so that
    composed and decomposed letters are the same.
    """
    characters: list[str] = []
    origins: list[int] = []
    for index, char in enumerate(text):
        plain = _plain(char, ignore_case)
        if plain == " " and characters and characters[-1] == " ":
            continue
        for piece in plain:
            place = len(characters)
            while (rank := _rank(piece)) and place and _rank(characters[place - 1]) > rank:
                place -= 1
            characters.insert(place, piece)
            origins.insert(place, index)
    return _Folded("".join(characters), origins)


_rank = unicodedata.combining


@lru_cache(maxsize=8192)
def _plain(char: str, ignore_case: bool) -> str:
    char = _ONE_FORM.get(char, char)
    other_width = unicodedata.decomposition(char).startswith(_WIDTHS) if len(char) == 1 else False
    char = unicodedata.normalize("NFKD" if other_width else "NFD", char)
    char = _ONE_FORM.get(char, " " if char.isspace() else char)
    return char.casefold() if ignore_case else char


def _in_form(quote: str, response: str, ignore_case: bool) -> list[Place]:
    """Whole-word places, each mapped back to the characters of the response."""
    plain, there = _folded(quote, ignore_case).text.strip(), _folded(response, ignore_case)
    places = []
    for position in every_place(plain, there.text) if plain else ():
        end_there = position + len(plain)
        if _splits(there, position) or _splits(there, end_there):
            continue
        start, end = there.origins[position], max(there.origins[position:end_there]) + 1
        while inside_word(response, end) and not _plain(response[end], ignore_case):
            end += 1  # a joiner or a variation selector that belongs to the last character
        if not (inside_word(response, start) or inside_word(response, end)):
            places.append((start, end))
    return places


def _splits(there: _Folded, position: int) -> bool:
    """Whether `position` lies within what is one character to a reader: "..." for an ellipsis, a
    letter and its accent, the parts of a Korean syllable.
    """
    if not 0 < position < len(there.text):
        return False
    before, char, origins = there.text[position - 1], there.text[position], there.origins
    joined = "\u1100" <= before <= "\u11ff" and "\u1160" <= char <= "\u11ff"
    return origins[position - 1] == origins[position] or bool(_rank(char)) or joined
