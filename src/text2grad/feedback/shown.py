"""How judged text is shown to a critic: as data, which can close no tag of the prompt and end no
turn of the chat.

A mark is put into what could: a backslash into a tag of the prompt (`<\\/response>`), a space into
a control token of a chat model (`< |im_end|>`, which needs no escape in a critic's JSON). Both are
found however they are written: in full-width letters, look-alikes, or with unseen characters
between. Everything else stays to the letter, and what a critic quotes with its marks is found again
(`quotes.resolve`).
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
"""Those of the prompts that come with text2grad."""
TURN_TAGS = frozenset({"turn", "message"})
"""Those around the policy's turns, and around what others said between them, where a conversation
is judged."""
_CONTROL = re.compile(
    r"""<(?= \|[^\s<>|]{1,64}\|> )                                                    # <|im_end|>
      | <(?= /?(?:s|pad|unk|bos|eos|(?:start|end)_of_[a-z]{1,20})> )                  # </s>, <start_of_turn>
      | <(?= </?SYS>> )
      | \[(?= /?INST\] )
      | \[(?-i: (?= /?(?:AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|SYSTEM_PROMPT|g?MASK)\] ))
      | \[(?-i: (?= (?:CLS|SEP|PAD|UNK)\] ))""",
    re.VERBOSE | re.IGNORECASE,
)
"""Control tokens of the chat models in common use; a tokenizer's own are for `policy.encode`."""
_ALIKE = str.maketrans(
    "‹〈〈⟨❮❰˂ᐸ›〉〉⟩❯❱˃ᐳ⁄∕⧸╱│∣ǀ▏аеорсѕіԁкѵυοριτκαεԛһɡոօс",
    "<<<<<<<<>>>>>>>>////||||aeopcsidkvuopitkaeqhgnoc",
)
_OPENING = re.compile(r"[<\[＜﹤［﹇‹〈〈⟨❮❰˂ᐸ]")
_UNSEEN = frozenset({"Cf", "Cc", "Mn", "Me"})
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\u17b4\u17b5")


class Shown(NamedTuple):
    """A text as it is shown; `marks[i]` is where, in the text itself, the i-th mark was put in."""

    text: str
    marks: tuple[int, ...]

    def place(self, position: int) -> int:
        """The position in the text itself of one in the text as it is shown."""
        starts = [mark + number for number, mark in enumerate(self.marks)]
        return position - bisect_left(starts, position)


def tags_for(response: str, tags: frozenset[str] = TAGS) -> frozenset[str]:
    """The tags that nothing in a prompt about this response may open or close."""
    return tags | TURN_TAGS if isinstance(response, Transcript) else tags


def as_data(text: str, tags: frozenset[str] = TAGS) -> str:
    """Text that cannot open or close one of these tags, and holds no control token."""
    return shown(text, tags).text


@lru_cache(maxsize=64)
def shown(text: str, tags: frozenset[str] = TAGS) -> Shown:
    """`as_data`, and where its marks are."""
    if not _OPENING.search(text):
        return Shown(text, ())
    plain, origins = _folded(text)
    marks = {match.end(): "\\" for match in _tag(tags).finditer(plain)}
    marks |= {match.end(): " " for match in _CONTROL.finditer(plain) if match.end() not in marks}
    if not marks:
        return Shown(text, ())
    places = sorted((origins[end - 1] + 1 if origins else end, mark) for end, mark in marks.items())
    cuts = [0, *(place for place, _ in places), len(text)]
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    whole = pieces[0] + "".join(mark + piece for (_, mark), piece in zip(places, pieces[1:], strict=True))
    return Shown(whole, tuple(place for place, _ in places))


@lru_cache(maxsize=16)
def _tag(names: frozenset[str]) -> re.Pattern[str]:
    return re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(sorted(map(re.escape, names)))})\b)", re.IGNORECASE)


def _folded(text: str) -> tuple[str, list[int]]:
    """The text as it reads, and of each character which one of the text it comes from (empty: the
    same)."""
    if text.isascii() and not _HIDDEN.search(text):
        return text, []
    folded = [_read_as(character) for character in text]
    return "".join(folded), [index for index, plain in enumerate(folded) for _ in plain]


_HIDDEN = re.compile(r"[\x00-\x08\x0e-\x1b\x7f]")


@lru_cache(maxsize=4096)
def _read_as(character: str) -> str:
    """What a reader takes a character for; nothing where it cannot be seen."""
    if character.isspace():
        return character
    if unicodedata.category(character) in _UNSEEN or character in _BLANK:
        return ""
    return unicodedata.normalize("NFKC", character).translate(_ALIKE)
