"""Find words in any script, and normalise them for comparison.

Scripts written without spaces (Han, Hiragana, Katakana, Bopomofo, Thai, Lao, Khmer, Myanmar ...)
have no word boundary that a rule could find. Each of their graphemes (a character as a reader sees
it) counts as a word, as does an emoji. Offsets always refer to the original text: only words are
normalised, never texts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import regex

from text2grad.feedback.spans import Place

_UNSPACED = (
    r"[[\p{Line_Break=SA}\p{Script=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{Script=Bopomofo}]&&[\p{L}\p{M}\p{N}]]"
)
_BLANK = r"\s\x1c-\x1f"  # as str.isspace has it
_MARKS = r"[\p{M}\u200c\u200d]*"  # with the joiners inside words of Persian and Hindi
_GRAPHEME = rf"(?={_UNSPACED})\X"
_EMOJI = r"(?=\p{Emoji_Presentation}|\p{Extended_Pictographic}\ufe0f)\X"
_RUN = rf"(?:[[\p{{L}}\p{{N}}]--{_UNSPACED}]{_MARKS})+"
_NAME = rf"(?:[[\p{{L}}\p{{N}}_]--{_UNSPACED}]{_MARKS})+"
_WORD = regex.compile(rf"(?V1){_GRAPHEME}|{_RUN}|{_EMOJI}")
_UNIT = regex.compile(rf"(?V1){_GRAPHEME}|{_NAME}|(?![{_BLANK}])\X")
_PIECE = regex.compile(rf"(?V1){_GRAPHEME}|(?:(?!{_UNSPACED})[^{_BLANK}])+")
_IN_WORD = regex.compile(
    r"(?V1)[\p{Lu}\p{Ll}\p{Lt}\p{Lm}\p{Nd}\p{M}_\u200c\u200d]"
    rf"|[\p{{Lo}}--[{_UNSPACED}\p{{Script=Hangul}}\p{{Line_Break=ID}}]]"
)
_SEVERAL = regex.compile(r"(?!\r\n)\X(?<=..)", regex.DOTALL)
_ONE_UNSPACED = regex.compile(rf"(?V1){_UNSPACED}")


def words(text: str) -> Iterator[Place]:
    """Yield the places of the words, which in ASCII text are those of the published ROUGE.

    Words are runs of letters and digits with their marks, graphemes of scripts without spaces, and
    emoji.
    """
    return (match.span() for match in _WORD.finditer(text))


def units(text: str) -> Iterator[Place]:
    """Yield the places of all words and symbols: everything but whitespace; `_` is a letter."""
    return (match.span() for match in _UNIT.finditer(text))


def pieces(text: str) -> Iterator[Place]:
    """Yield the places of the text between whitespace; graphemes in scripts without spaces."""
    return (match.span() for match in _PIECE.finditer(text))


@lru_cache(maxsize=4096)
def in_word(char: str) -> bool:
    """Return True if a character belongs to words that are separated by spaces.

    False for scripts without spaces, and for Korean, where particles are attached to nouns.
    """
    return _IN_WORD.match(char) is not None


def inside_word(text: str, position: int) -> bool:
    """Return True if a cut at `position` would split a word or a grapheme."""
    if not 0 < position < len(text):
        return False
    return (in_word(text[position - 1]) and in_word(text[position])) or position in _inside_graphemes(text)


def boundaries(text: str) -> list[int]:
    """Return the sorted positions, with 0 and the end, that are not inside a word or grapheme."""
    return [position for position in range(len(text) + 1) if not inside_word(text, position)]


@lru_cache(maxsize=64)
def _inside_graphemes(text: str) -> frozenset[int]:
    several = () if text.isascii() else _SEVERAL.finditer(text)
    return frozenset(place for match in several for place in range(match.start() + 1, match.end()))


def unspaced(text: str) -> bool:
    """Return True if a text begins with a letter of a script without spaces."""
    return _ONE_UNSPACED.match(text) is not None


@lru_cache(maxsize=65_536)
def folded(word: str) -> str:
    """Normalise a word for comparison: NFC, case-folded, with the Turkish dotted I as an i."""
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFC", unicodedata.normalize("NFC", word).casefold())
    return plain.replace("i\u0307", "i")


@cache
def stem(word: str) -> str:
    """Return Porter's stem of a folded English word of over three letters, as rouge-score does."""
    return str(_stemmer().stem(word)) if len(word) > 3 and word.isascii() else word


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


class RougeWords:
    """A tokenizer for rouge-score that supports all scripts and equals theirs on ASCII text."""

    def __init__(self, stemmer: bool = True) -> None:
        self.stemmer = stemmer

    def tokenize(self, text: str) -> list[str]:
        """Return the folded words of a text."""
        tokens = [folded(text[start:end]) for start, end in words(text)]
        return [stem(token) for token in tokens] if self.stemmer else tokens


def beyond_rouge(text: str) -> bool:
    """Return True if a text has words that the published ROUGE ignores (not a to z, 0 to 9)."""
    return not text.isascii() and any(not text[start:end].isascii() for start, end in words(text))
