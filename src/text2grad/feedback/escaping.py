"""Escape judged text, so that it cannot close a tag of the prompt or end a chat turn.

An escape mark is inserted: a backslash into a tag of the prompt (`<\\/response>`), a space into a
control token of a chat model (`< |im_end|>`, which needs no escape in a critic's JSON). Tags and
tokens are recognised in full-width letters, in look-alikes, and with invisible characters between
their letters. All other text is unchanged, and `quotes.resolve` matches quotes that contain marks.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from text2grad.feedback.transcripts import Transcript

TAGS = frozenset({"question", "response", "reference", "tests", "feedback"})
"""Tags of the prompts that come with text2grad."""
TURN_TAGS = frozenset({"turn", "message"})
"""Tags around the policy's turns, and around other messages, in a judged conversation."""
_CONTROL = re.compile(
    r"""<(?= \|[^\s<>|]{1,64}\|> )                                                    # <|im_end|>
      | <(?= /?(?:s|pad|unk|bos|eos|(?:start|end)_of_[a-z]{1,20})> )                  # </s>, <start_of_turn>
      | <(?= </?SYS>> )
      | \[(?= /?INST\] )
      | \[(?-i: (?= /?(?:AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|SYSTEM_PROMPT|g?MASK)\] ))
      | \[(?-i: (?= (?:CLS|SEP|PAD|UNK)\] ))""",
    re.VERBOSE | re.IGNORECASE,
)
"""Control tokens of common chat models; `policy.encode` handles those of a given tokenizer."""
_LOOK_ALIKES = str.maketrans(
    "‹〈〈⟨❮❰˂ᐸ›〉〉⟩❯❱˃ᐳ⁄∕⧸╱│∣ǀ▏аеорсѕіԁкѵυοριτκαεԛһɡոօс",
    "<<<<<<<<>>>>>>>>////||||aeopcsidkvuopitkaeqhgnoc",
)
_OPENING = re.compile(r"[<\[＜﹤［﹇‹〈〈⟨❮❰˂ᐸ]")
_INVISIBLE_CATEGORIES = frozenset({"Cf", "Cc", "Mn", "Me"})
_BLANKS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u17b4\u17b5")


class EscapedText(NamedTuple):
    """An escaped text; `marks[i]` is the index in the source before which mark i was inserted."""

    text: str
    marks: tuple[int, ...]

    def source_index(self, index: int) -> int:
        """Return the index in the source that corresponds to an index in the escaped text."""
        starts = [mark + number for number, mark in enumerate(self.marks)]
        return index - bisect_left(starts, index)


def reserved_tags(response: str, tags: frozenset[str] = TAGS) -> frozenset[str]:
    """Return the tags that data in a prompt about this response must not open or close."""
    return tags | TURN_TAGS if isinstance(response, Transcript) else tags


def escape_text(text: str, tags: frozenset[str] = TAGS) -> str:
    """Return the text with these tags and all control tokens escaped."""
    return escape(text, tags).text


@lru_cache(maxsize=64)
def escape(text: str, tags: frozenset[str] = TAGS) -> EscapedText:
    """Escape these tags and all control tokens, and keep track of the marks."""
    if not _OPENING.search(text):
        return EscapedText(text, ())
    plain, origins = _fold(text)
    marks = {match.end(): "\\" for match in _tag_pattern(tags).finditer(plain)}
    marks |= {match.end(): " " for match in _CONTROL.finditer(plain) if match.end() not in marks}
    if not marks:
        return EscapedText(text, ())
    places = sorted((origins[end - 1] + 1 if origins else end, mark) for end, mark in marks.items())
    cuts = [0, *(place for place, _ in places), len(text)]
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    escaped = pieces[0] + "".join(mark + piece for (_, mark), piece in zip(places, pieces[1:], strict=True))
    return EscapedText(escaped, tuple(place for place, _ in places))


@lru_cache(maxsize=16)
def _tag_pattern(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(sorted(map(re.escape, names)))})\b)", re.IGNORECASE)


def _fold(text: str) -> tuple[str, list[int]]:
    """Return the text as it looks, and the source index of each character (empty: unchanged)."""
    if text.isascii() and not _CONTROL_CHARACTER.search(text):
        return text, []
    folded = [_fold_character(character) for character in text]
    return "".join(folded), [index for index, plain in enumerate(folded) for _ in plain]


_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    """Return what a character looks like in plain letters; empty if it is invisible."""
    if character.isspace():
        return character
    if unicodedata.category(character) in _INVISIBLE_CATEGORIES or character in _BLANKS:
        return ""
    return unicodedata.normalize("NFKC", character).translate(_LOOK_ALIKES)
