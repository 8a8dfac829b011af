"""Which characters each sampled token wrote: byte offsets of the ids as sampled, never of a re-encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from text2grad.align.pieces import byte_pieces, plain_decode, special_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Offsets = NDArray[np.int64]

_LAST_SPACE = 0x3000  # the highest code point that is white space
_IS_SOLID = np.array([not chr(code).isspace() for code in range(_LAST_SPACE + 1)] + [True])


@dataclass(frozen=True)
class Aligned:
    """A response as text and as tokens. All arrays are (T,) character offsets into `text`, ends exclusive.

    `starts`, `ends`: the characters a token touches; a token that wrote some bytes of a character touches
    all of it, so the tokens of a split emoji share it. Special tokens touch nothing (start == end).
    `core_starts`, `core_ends`: the same without white space at the edges; empty for blank tokens.
    """

    text: str
    starts: Offsets
    ends: Offsets
    core_starts: Offsets
    core_ends: Offsets

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, text: str, starts: Offsets, ends: Offsets) -> Aligned:
        """From the characters each token touches."""
        return cls(text, starts, ends, *_cores(text, starts, ends))


class TokenTable:
    """The bytes of every token of a vocabulary, built once and used for every response.

    `exact_bytes` is False for tokenizers whose tokens have no bytes of their own (WordPiece, for one):
    their ids are decoded prefix by prefix, which is slow, and right.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        pieces = byte_pieces(tokenizer)
        self.exact_bytes = pieces is not None
        # The last entry stands for ids beyond the vocabulary: models pad their output layer.
        self._pieces = np.array([*(pieces or []), b""], dtype=object)
        self._lengths = np.array([len(piece) for piece in self._pieces], dtype=np.int64)

    def align(self, ids: Sequence[int]) -> Aligned:
        """The text of sampled `ids` and the characters of each of them.

        The text is what the tokens' bytes say: nothing is cleaned up, a leading space stays, and bytes
        that are cut off inside a character become U+FFFD.
        """
        if not self.exact_bytes:
            return align_by_prefixes(self._tokenizer, list(ids))
        rows = np.minimum(np.asarray(ids, dtype=np.int64), len(self._pieces) - 1)
        blob = b"".join(self._pieces[rows])
        last = np.cumsum(self._lengths[rows])
        text, starts, ends = _characters(blob, last - self._lengths[rows], last)
        return Aligned.of(text, starts, ends)

    def align_text(self, text: str) -> Aligned:
        """Align a text nobody sampled, such as a person's answer; the tokens are the tokenizer's own choice.

        Offsets refer to `text` as given, also where the tokenizer puts a space in front of it or normalises.
        """
        encoded = self._tokenizer(text, add_special_tokens=False)
        aligned = self.align(encoded["input_ids"])
        if aligned.text == text:
            return aligned
        if aligned.text == " " + text:
            shifted = (np.maximum(edges - 1, 0) for edges in (aligned.starts, aligned.ends))
            return Aligned.of(text, *shifted)
        mapping = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = np.array(mapping["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return Aligned.of(text, offsets[:, 0], offsets[:, 1])


def _characters(blob: bytes, first: Offsets, last: Offsets) -> tuple[str, Offsets, Offsets]:
    """Decode `blob` and turn byte intervals [first, last) into the character intervals they touch."""
    if blob.isascii():
        return blob.decode("ascii"), first, last
    begins = (np.frombuffer(blob, dtype=np.uint8) & 0xC0) != 0x80
    text = blob.decode("utf-8", errors="replace")
    if "\ufffd" in text:
        _mark_replaced(blob, begins)
    # begun[p]: how many characters begin before byte p.
    begun = np.concatenate(([0], np.cumsum(begins)))
    ends = begun[last]
    starts = np.where(last > first, begun[np.minimum(first + 1, len(blob))] - 1, ends)
    return text, starts, ends


def _mark_replaced(blob: bytes, begins: NDArray[np.bool_]) -> None:
    """Bytes that are no UTF-8 become one U+FFFD for each run that `decode` reports: one beginning each."""
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
    if text.isascii():
        solid = _IS_SOLID[np.frombuffer(text.encode(), dtype=np.uint8)]
    else:
        solid = _IS_SOLID[np.minimum(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), _LAST_SPACE + 1)]
    places = np.append(np.flatnonzero(solid), 0)
    # before[i]: how many solid characters stand before character i; places[n]: where the n-th of them is.
    before = np.concatenate(([0], np.cumsum(solid)))
    first, last = before[starts], before[ends]
    blank = first == last
    return np.where(blank, starts, places[first]), np.where(blank, starts, places[last - 1] + 1)


def align_by_prefixes(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> Aligned:
    """Align by incremental decoding: a token wrote what its prefix has and the prefix without it has not.

    Needs nothing of the tokenizer but `decode`, and time that grows with the square of the length.
    """
    text = plain_decode(tokenizer, ids)
    special = special_ids(tokenizer)
    starts, ends, written = [], [], 0
    for count, index in enumerate(ids, start=1):
        prefix = plain_decode(tokenizer, ids[:count])
        known = max(written, _common(prefix, text))
        # What a prefix ends with and the whole has not is a character begun and not yet finished.
        begun = index not in special and known < min(len(prefix), len(text))
        starts.append(written)
        ends.append(known + begun)
        written = known
    return Aligned.of(text, np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))


def _common(left: str, right: str) -> int:
    """Length of the common prefix."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
