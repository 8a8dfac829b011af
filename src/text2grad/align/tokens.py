"""Which characters each sampled token wrote: byte offsets of the ids as sampled, never of a
re-encoding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from text2grad.align.pieces import byte_pieces, plain_decode, spaced_pieces, special_ids
from text2grad.feedback import Transcript

if TYPE_CHECKING:
    from text2grad.align.pieces import AnyTokenizer

Offsets = NDArray[np.int64]

_REPLACEMENT = "\ufffd"  # what bytes that are no character are read as
_LAST_SPACE = 0x3000  # the highest code point that is white space
_IS_SOLID = np.array([not chr(code).isspace() for code in range(_LAST_SPACE + 1)] + [True])
_WIDE_SPACE = re.compile(
    "[" + "".join(chr(code) for code in range(0x80, _LAST_SPACE + 1) if not _IS_SOLID[code]) + "]"
)


@dataclass(frozen=True)
class Aligned:
    """A response as text and as tokens. All arrays are (T,) character offsets into `text`, ends
    exclusive.

    `starts`, `ends`: the characters a token touches; a token that wrote some bytes of a character
    touches all of it, so the tokens of a split emoji share it. Special tokens touch nothing (start
    == end). `core_starts`, `core_ends`: the same without white space at the edges; empty for blank
    tokens. `turn_ends`: of a response of several turns, the number of tokens up to the end of each.
    """

    text: str
    starts: Offsets
    ends: Offsets
    core_starts: Offsets
    core_ends: Offsets
    turn_ends: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, text: str, starts: Offsets, ends: Offsets, turn_ends: tuple[int, ...] = ()) -> Aligned:
        """Align tokens by the characters that each of them touches.

        Args:
            text: the response.
            starts: (T,) the first character that a token touches.
            ends: (T,) the character after its last one.
            turn_ends: of several turns, the number of tokens up to the end of each.

        Returns:
            The tokens, with the characters they touch and the same without whitespace at the edges.
        """
        return cls(text, starts, ends, *_cores(text, starts, ends), turn_ends)


class TokenTable:
    """The bytes of every token of a vocabulary, built once and used for every response.

    `tokenizer` is one of transformers, or of the package tokenizers (for `align`). `vocabulary` is
    how many ids it has. `exact_bytes` is False for tokenizers whose tokens have no bytes that could
    be known beforehand: their ids are decoded prefix by prefix, which is slow, and right.
    """

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self._tokenizer: Any = tokenizer
        self.vocabulary = 1 + max(map(int, tokenizer.get_vocab().values()), default=-1)
        pieces, first = byte_pieces(tokenizer), list[bytes]()
        self._is_text: NDArray[np.bool_] | None = None
        if pieces is None and (spaced := spaced_pieces(tokenizer)):
            pieces, first, self._is_text = spaced.later, spaced.first, np.array([*spaced.is_text, False])
        self.exact_bytes = pieces is not None
        # One row stands for ids beyond the vocabulary: models pad their output layer. Behind it are
        # the pieces of # tokens that begin a text, where these differ.
        self._beyond = len(pieces or ())
        self._pieces = np.array([*(pieces or ()), b"", *first], dtype=object)
        # (4, V + 1): where a piece's bytes and its bytes without white space at the edges start and
        # end.
        self._edges = np.array([_piece_edges(piece) for piece in self._pieces], dtype=np.int64).T.copy()

    def is_of(self, tokenizer: AnyTokenizer) -> bool:
        """Return True if the table reads the ids of this tokenizer."""
        return self._tokenizer is tokenizer or self._tokenizer.get_vocab() == tokenizer.get_vocab()

    def align(self, ids: Sequence[int]) -> Aligned:
        """The text of sampled `ids` and the characters of each of them.

        The text is what the tokens' bytes say: nothing is cleaned up, a leading space stays, and
        bytes that are cut off inside a character become U+FFFD.
        """
        if not self.exact_bytes:
            return align_by_prefixes(self._tokenizer, list(ids))
        rows = np.minimum(np.asarray(ids, dtype=np.int64), self._beyond)
        if self._is_text is not None and (is_text := self._is_text[rows]).any():
            rows[is_text.argmax()] += self._beyond + 1
        blob = b"".join(self._pieces[rows].tolist())
        edges = self._edges.take(rows, axis=1)
        lengths = edges[1].copy()
        edges += lengths.cumsum() - lengths
        text = blob.decode("utf-8", errors="replace")
        if len(text) < len(blob):
            edges = _characters(blob, text, edges)
            if _WIDE_SPACE.search(text):
                return Aligned.of(text, edges[0], edges[1])
        return Aligned(text, *edges)

    def align_text(self, text: str) -> Aligned:
        """Align a text that was not sampled, such as a person's answer, with the tokenizer's own
        tokens.

        Offsets refer to `text` as given, also where the tokenizer puts a space in front of it or
        normalises.
        """
        aligned = self._align_text(str(text))
        if not isinstance(text, Transcript):
            return aligned
        ends = (int(np.count_nonzero(aligned.starts < turn.end)) for turn in text.turns)
        return replace(aligned, turn_ends=tuple(ends))

    def _align_text(self, text: str) -> Aligned:
        # A special token's name in it is text, as everywhere else.
        encode = partial(self._tokenizer, text, add_special_tokens=False, split_special_tokens=True)
        aligned = self.align(encode()["input_ids"])
        if aligned.text == text:
            return aligned
        if aligned.text == " " + text:
            return Aligned.of(text, np.maximum(aligned.starts - 1, 0), np.maximum(aligned.ends - 1, 0))
        mapping = encode(return_offsets_mapping=True)
        offsets = np.array(mapping["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return Aligned.of(text, offsets[:, 0], offsets[:, 1])


def _piece_edges(piece: bytes) -> tuple[int, int, int, int]:
    """Start and end of all its bytes and of those between ASCII white space; blank pieces have none
    of these."""
    solid = [place for place, byte in enumerate(piece) if _IS_SOLID[byte] or byte >= 0x80]
    return 0, len(piece), *((solid[0], solid[-1] + 1) if solid else (0, 0))


def _characters(blob: bytes, text: str, edges: Offsets) -> Offsets:
    """Byte intervals, rows 0 and 2 to rows 1 and 3 of `edges` (4, T), as the character intervals
    they touch."""
    begins = (np.frombuffer(blob, dtype=np.uint8) & 0xC0) != 0x80
    if _REPLACEMENT in text:
        _mark_replaced(blob, begins)
    # begun[p]: how many characters begin before byte p.
    begun = np.concatenate(([0], begins.cumsum(), [0]))
    first, last = edges[0::2], edges[1::2]
    ends = begun[last]
    starts = np.where(last > first, begun[first + 1] - 1, ends)
    return np.array([starts[0], ends[0], starts[1], ends[1]])


def _mark_replaced(blob: bytes, begins: NDArray[np.bool_]) -> None:
    """Bytes that are not UTF-8 become one U+FFFD, with one start, for each run that `decode`
    reports."""
    position = 0
    while True:
        try:
            blob[position:].decode("utf-8")
            return
        except UnicodeDecodeError as error:
            begins[position + error.start : position + error.end] = False
            begins[position + error.start] = True
            position += error.end


def _cores(text: str, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    """The intervals without white space at their edges; empty ones stay where they start."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    solid = _IS_SOLID[np.minimum(codes, _LAST_SPACE + 1)]
    places = np.append(np.flatnonzero(solid), 0)
    # before[i]: how many solid characters stand before character i; places[n]: where the n-th of
    # them is.
    before = np.concatenate(([0], np.cumsum(solid)))
    first, last = before[starts], before[ends]
    blank = first == last
    return np.where(blank, starts, places[first]), np.where(blank, starts, places[last - 1] + 1)


def align_by_prefixes(tokenizer: AnyTokenizer, ids: list[int]) -> Aligned:
    """Align by incremental decoding: a token wrote the text its prefix has and the previous prefix
    lacks.

    Needs nothing of the tokenizer but `decode`, and time that grows with the square of the length.
    """
    text = plain_decode(tokenizer, ids)
    special = special_ids(tokenizer)
    starts, ends, written = [], [], 0
    for count, index in enumerate(ids, start=1):
        prefix = plain_decode(tokenizer, ids[:count])
        known = max(written, _common(prefix, text))
        # A prefix may end with a character that is begun and not yet finished; the whole text lacks
        # that ending.
        begun = index not in special and known < min(len(prefix), len(text))
        # Unfinished, U+FFFD looks like itself: what seems to add nothing to one writes the rest of
        # its bytes.
        rest = index not in special and known == written and not begun and text[:known].endswith(_REPLACEMENT)
        starts.append(written - rest)
        ends.append(known + begun)
        written = known
    return Aligned.of(text, np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))


def _common(left: str, right: str) -> int:
    """Length of the common prefix."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
