"""Nouns and verbs of English text, by TextBlob's tagger: a lexicon and rules that come in its wheel."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from text2grad.errors import optional_packages
from text2grad.unicode_words import units

_TAGS = ("NN", "VB")  # how the Penn Treebank's tags of nouns and verbs begin


def noun_and_verb_characters(text: str) -> NDArray[np.bool_]:
    """Which characters belong to a noun or a verb, one flag each; a word that the tagger does not know is a noun.

    Raises:
        MissingPackageError: textblob is not installed.
    """
    flags = np.zeros(len(text), dtype=np.bool_)
    for line_start, line in _lines(text):
        places = list(units(line))
        tags = _tagger().tag(" ".join(line[start:end] for start, end in places), tokenize=False)
        for (start, end), (_, tag) in zip(places, tags, strict=True):
            word = any(map(str.isalnum, line[start:end]))
            flags[line_start + start : line_start + end] = word and tag.startswith(_TAGS)
    return flags


def _lines(text: str) -> list[tuple[int, str]]:
    """The lines that are not blank, each with where it starts: a word is tagged by its neighbours in the line."""
    start, found = 0, []
    for line in text.splitlines(keepends=True):
        if line.strip():
            found.append((start, line))
        start += len(line)
    return found


@cache
def _tagger() -> Any:
    with optional_packages():
        from textblob.taggers import PatternTagger
    tagger = PatternTagger()
    with warnings.catch_warnings():  # its lexicon is read by the first call, from a file that it leaves open
        warnings.simplefilter("ignore", ResourceWarning)
        tagger.tag("lexicon", tokenize=False)
    return tagger
