"""Locate a quote that is not literally in the response: normalised, and fuzzy only on request.

What is found is always an interval of the response as it stands; the quote itself is never put in its place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import AnyStr, NamedTuple

from pydantic import Field

from text2grad.errors import UserError
from text2grad.feedback import Place, Turn
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
_WIDTHS = ("<wide>", "<narrow>", "<compat> 0066")
"""How the decompositions of letters of another width, and of ligatures with f, begin in Unicode's database."""
_WORD = frozenset({"Lu", "Ll", "Lt", "Lm", "Nd", "Mn", "Mc", "Me"})


class LocateSettings(Settings):
    """How far a quote may be from the letter of the response, and still be found."""

    normalised: bool = Field(
        default=True, description="quotes, dashes, white space, accents and full width in another form"
    )
    ignore_case: bool = Field(default=False, description="a quote that is not found may have other capitals")
    ignore_final_dot: bool = Field(default=False, description="a dot the quote ends with may be missing")
    fuzzy: float | None = Field(
        default=None, ge=MIN_FUZZY_SCORE, le=100, description="similarity (rapidfuzz) that is enough; null: never"
    )


class Found(NamedTuple):
    """The candidates of a quote, first to last, and by which rung they were found."""

    places: list[Place]
    how: str


def locate(quote: str, response: str, turns: Sequence[Turn], tolerance: LocateSettings) -> Found:
    """Places of a quote without a literal match, each within one of these turns, by the first rung that has some:
    normalised, in other capitals, fuzzy, as far as `tolerance` allows.
    """
    for ignore_case in (False, True)[: 1 + tolerance.ignore_case]:
        if tolerance.normalised or ignore_case:
            form = Form(tolerance.normalised, ignore_case)
            search = partial(_in_form, quote, form=form, ignore_final_dot=tolerance.ignore_final_dot)
            if places := _in_turns(response, turns, search):
                return Found(places, "normalised")
    if tolerance.fuzzy is not None and len(quote.strip()) >= MIN_FUZZY_CHARACTERS:
        search = partial(_fuzzy, quote.strip(), least=tolerance.fuzzy)
        return Found(_in_turns(response, turns, search), "fuzzy")
    return Found([], "")


def _in_turns(response: str, turns: Sequence[Turn], found: Callable[[str], list[Place]]) -> list[Place]:
    parts = ((turn.start, found(response[turn.start : turn.end])) for turn in turns)
    return [(first + start, first + end) for first, places in parts for start, end in places]


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


class Form(NamedTuple):
    """What does not count when a quote is compared with a response."""

    normalised: bool
    ignore_case: bool


class _Folded(NamedTuple):
    """A text in plain form; `origins[i]` is the character of the text that plain character i comes from."""

    text: str
    origins: list[int]


@lru_cache(maxsize=64)
def _folded(text: str, form: Form) -> _Folded:
    """A text in one form. Accents are apart from their letters, in Unicode's order, so that composed and decomposed
    letters are the same.
    """
    characters: list[str] = []
    origins: list[int] = []
    for index, char in enumerate(text):
        plain = _plain(char, form)
        if form.normalised and plain == " " and characters and characters[-1] == " ":
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
def _plain(char: str, form: Form) -> str:
    if form.normalised:
        char = _ONE_FORM.get(char, char)
        other_width = unicodedata.decomposition(char).startswith(_WIDTHS) if len(char) == 1 else False
        char = unicodedata.normalize("NFKD" if other_width else "NFD", char)
        char = _ONE_FORM.get(char, " " if char.isspace() else char)
    return char.casefold() if form.ignore_case else char


def _in_form(quote: str, response: str, form: Form, ignore_final_dot: bool) -> list[Place]:
    wanted = _folded(quote, form).text.strip()
    there = _folded(response, form)
    places = _places(wanted, there, response)
    if not places and ignore_final_dot:
        places = _places(wanted.removesuffix(".").rstrip(), there, response)
    return places


def _places(wanted: str, there: _Folded, response: str) -> list[Place]:
    """Whole-word places, each mapped back to the characters of the response."""
    found = []
    for position in every_place(wanted, there.text) if wanted else ():
        end_there = position + len(wanted)
        if _splits(there, position) or _splits(there, end_there):
            continue
        start, end = there.origins[position], max(there.origins[position:end_there]) + 1
        if not (inside_word(response, start) or inside_word(response, end)):
            found.append((start, end))
    return found


def _splits(there: _Folded, position: int) -> bool:
    """Whether `position` lies within what is one character to a reader: "..." for an ellipsis, a letter and its
    accent, the parts of a Korean syllable.
    """
    if not 0 < position < len(there.text):
        return False
    before, char, origins = there.text[position - 1], there.text[position], there.origins
    joined = "\u1100" <= before <= "\u11ff" and "\u1160" <= char <= "\u11ff"
    return origins[position - 1] == origins[position] or bool(_rank(char)) or joined


def _fuzzy(quote: str, response: str, least: float) -> list[Place]:
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


def _best(quote: str, text: str, least: float) -> Place | None:
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


def _snapped(text: str, start: int, end: int) -> Place:
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
