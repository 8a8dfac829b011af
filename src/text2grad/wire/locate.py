"""Locate a quote that is not literally in the response: normalised, and fuzzy only on request.

What is found is always an interval of the response as it stands; the quote itself is never put in its place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import AnyStr, NamedTuple

from pydantic import Field

from text2grad.errors import UserError
from text2grad.settings import Settings

MIN_FUZZY_SCORE = 90.0
MIN_FUZZY_CHARACTERS = 4

_ONE_FORM = {
    **dict.fromkeys("‘’‚‛′`´", "'"),
    **dict.fromkeys("“”„‟″«»", '"'),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
    "…": "...",
}
_WORD = frozenset({"Lu", "Ll", "Lt", "Lm", "Nd", "Mn", "Mc", "Me"})

Interval = tuple[int, int]


class LocateSettings(Settings):
    """How far a quote may be from the letter of the response, and still be found."""

    normalised: bool = Field(default=True, description="quotes, dashes and white space in another form")
    ignore_case: bool = Field(default=False, description="capitals do not count either")
    ignore_final_dot: bool = Field(default=False, description="a dot the quote ends with may be missing")
    fuzzy: float | None = Field(
        default=None, ge=MIN_FUZZY_SCORE, le=100, description="similarity (rapidfuzz) that is enough; null: never"
    )


class Found(NamedTuple):
    """The candidates of a quote, first to last, and by which rung they were found."""

    places: list[Interval]
    how: str


def locate(quote: str, response: str, tolerance: LocateSettings) -> Found:
    """Places of a quote without a literal match: normalised, else fuzzy if `tolerance` allows it."""
    if tolerance.normalised:
        places = _normalised(quote, response, tolerance)
        if places:
            return Found(places, "normalised")
    if tolerance.fuzzy is not None and len(quote.strip()) >= MIN_FUZZY_CHARACTERS:
        return Found(_fuzzy(quote.strip(), response, tolerance.fuzzy), "fuzzy")
    return Found([], "")


def every_place(part: AnyStr, text: AnyStr) -> Iterator[int]:
    """Where `part` starts in `text`, in order; its places may overlap."""
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def inside_word(text: str, position: int) -> bool:
    """Whether a cut at `position` would part a word. Scripts without spaces have no such boundaries."""
    return 0 < position < len(text) and in_word(text[position - 1]) and in_word(text[position])


@lru_cache(maxsize=4096)
def in_word(char: str) -> bool:
    """Whether a character can be inside a word that spaces part from others."""
    return char == "_" or unicodedata.category(char) in _WORD


class _Folded(NamedTuple):
    """A text in plain form; `origins[i]` is the character of the text that plain character i comes from."""

    text: str
    origins: list[int]


@lru_cache(maxsize=64)
def _folded(text: str, ignore_case: bool) -> _Folded:
    characters: list[str] = []
    origins: list[int] = []
    for index, char in enumerate(text):
        plain = _ONE_FORM.get(char, char)
        if plain.isspace():
            plain = "" if characters and characters[-1] == " " else " "
        elif ignore_case:
            plain = plain.casefold()
        characters += plain
        origins += [index] * len(plain)
    return _Folded("".join(characters), origins)


def _normalised(quote: str, response: str, tolerance: LocateSettings) -> list[Interval]:
    wanted = _folded(quote, tolerance.ignore_case).text.strip()
    there = _folded(response, tolerance.ignore_case)
    places = _places(wanted, there, response)
    if not places and tolerance.ignore_final_dot:
        places = _places(wanted.removesuffix(".").rstrip(), there, response)
    return places


def _places(wanted: str, there: _Folded, response: str) -> list[Interval]:
    """Whole-word places, each mapped back to the characters of the response."""
    found = []
    for position in every_place(wanted, there.text) if wanted else ():
        last = position + len(wanted) - 1
        start, end = there.origins[position], there.origins[last] + 1
        whole = not (_splits(there, position) or _splits(there, last + 1))
        if whole and not (inside_word(response, start) or inside_word(response, end)):
            found.append((start, end))
    return found


def _splits(there: _Folded, position: int) -> bool:
    """Whether `position` lies within what stands for one character of the text ("..." for an ellipsis)."""
    origins = there.origins
    return 0 < position < len(origins) and origins[position - 1] == origins[position]


def _fuzzy(quote: str, response: str, least: float) -> list[Interval]:
    """The most similar passage, snapped to word edges; others too that are similar enough."""
    best = _best(quote, response, least)
    if best is None:
        return []
    places = [best]
    if before := _best(quote, response[: best[0]], least):
        places.insert(0, before)
    if after := _best(quote, response[best[1] :], least):
        places.append((best[1] + after[0], best[1] + after[1]))
    return places


def _best(quote: str, text: str, least: float) -> Interval | None:
    try:
        from rapidfuzz import fuzz
    except ImportError as error:
        raise UserError("fuzzy search for quotes needs rapidfuzz", "pip install 'text2grad[annotate]'") from error
    if len(text) < MIN_FUZZY_CHARACTERS:
        return None
    found = fuzz.partial_ratio_alignment(quote, text, score_cutoff=least)
    if found is None:
        return None
    # A quote longer than the text is searched in the other direction; the whole text is then the passage.
    start, end = (found.dest_start, found.dest_end) if len(quote) <= len(text) else (0, len(text))
    start, end = _snapped(text, start, end)
    return (start, end) if start < end and fuzz.ratio(quote, text[start:end]) >= least else None


def _snapped(text: str, start: int, end: int) -> Interval:
    """Out to the edges of words, then in over white space."""
    while inside_word(text, start):
        start -= 1
    while inside_word(text, end):
        end += 1
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
