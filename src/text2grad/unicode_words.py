"""Words in any script, and the form in which two of them are compared.

Scripts that are written without spaces (Han, Hiragana, Katakana, Bopomofo, Thai, Lao, Khmer,
Myanmar ...) have no word boundary that a rule could find: there every grapheme, a character as a
reader sees it, counts as a word, as does an emoji. Places are always those of the text as it
stands: texts are never normalised, only words are.
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
    """Return the places of the words: runs of letters and digits with their marks, graphemes of
    scripts without spaces, and emoji. In ASCII text these are the words of the published ROUGE."""
    return (match.span() for match in _WORD.finditer(text))


def units(text: str) -> Iterator[Place]:
    """Return the places of all words and signs: everything but whitespace; `_` is a letter here."""
    return (match.span() for match in _UNIT.finditer(text))


def pieces(text: str) -> Iterator[Place]:
    """Return the places between whitespace; graphemes in scripts without spaces."""
    return (match.span() for match in _PIECE.finditer(text))


@lru_cache(maxsize=4096)
def in_word(char: str) -> bool:
    """Return True if a character can be inside a word that spaces part from others.

    Not so in scripts without spaces, nor in Korean, whose particles are written onto their nouns.
    """
    return _IN_WORD.match(char) is not None


def inside_word(text: str, position: int) -> bool:
    """Return True if a cut at `position` would part a word, or a grapheme: what a reader sees as
    one character."""
    if not 0 < position < len(text):
        return False
    return (in_word(text[position - 1]) and in_word(text[position])) or position in _inside_graphemes(text)


def boundaries(text: str) -> list[int]:
    """Return the sorted positions, including 0 and the end, that are not inside a word or a
    grapheme."""
    return [position for position in range(len(text) + 1) if not inside_word(text, position)]


@lru_cache(maxsize=64)
def _inside_graphemes(text: str) -> frozenset[int]:
    several = () if text.isascii() else _SEVERAL.finditer(text)
    return frozenset(place for match in several for place in range(match.start() + 1, match.end()))


def unspaced(text: str) -> bool:
    """True if a text begins with a letter of a script without spaces."""
    return _ONE_UNSPACED.match(text) is not None


@lru_cache(maxsize=65_536)
def folded(word: str) -> str:
    """Return the form in which words are compared: composed (NFC), without case; a Turkish dotted I
    is an i."""
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFC", unicodedata.normalize("NFC", word).casefold())
    return plain.replace("i\u0307", "i")


@cache
def stem(word: str) -> str:
    """Return Porter's stem of a folded English word, as rouge-score does: of words of over three
    letters."""
    return str(_stemmer().stem(word)) if len(word) > 3 and word.isascii() else word


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


class RougeWords:
    """A tokenizer for rouge-score that knows the words of all scripts; of ASCII text it gives what
    theirs gives."""

    def __init__(self, stemmer: bool = True) -> None:
        self.stemmer = stemmer

    def tokenize(self, text: str) -> list[str]:
        """Return the folded words of a text."""
        tokens = [folded(text[start:end]) for start, end in words(text)]
        return [stem(token) for token in tokens] if self.stemmer else tokens


def beyond_rouge(text: str) -> bool:
    """True if a text has words that the published ROUGE cannot read: it only counts a to z and 0 to
    9."""
    return not text.isascii() and any(not text[start:end].isascii() for start, end in words(text))
