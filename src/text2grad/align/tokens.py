"""Map sampled tokens to characters by their bytes; the text is never encoded again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from text2grad.align.pieces import byte_pieces, decode_verbatim, is_rust_tokenizer, spaced_pieces, special_ids
from text2grad.feedback import Transcript

if TYPE_CHECKING:
    from text2grad.align.pieces import AnyTokenizer

Offsets = NDArray[np.int64]

_REPLACEMENT = "\ufffd"  # stands for bytes that are not UTF-8
_LAST_SPACE = 0x3000  # the highest code point that is whitespace
_IS_SOLID = np.array([not chr(code).isspace() for code in range(_LAST_SPACE + 1)] + [True])
_WIDE_SPACE = re.compile(
    "[" + "".join(chr(code) for code in range(0x80, _LAST_SPACE + 1) if not _IS_SOLID[code]) + "]"
)


@dataclass(frozen=True)
class Aligned:
    """A response as text and as T tokens.

    All arrays are (T,) character offsets into `text`, ends exclusive.

    Attributes:
        text: the response.
        starts: the first character that each token touches. A token that wrote some bytes of a
            character touches it, so the tokens of a split emoji share it.
        ends: the character after the last one. Special tokens touch nothing (start == end).
        core_starts: as `starts`, without whitespace at the edges of the token.
        core_ends: as `ends`, without whitespace; equal to `core_starts` for blank tokens.
        turn_ends: for a response of several turns, the number of tokens up to the end of each turn.
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
        """Align tokens by the characters they touch (the attributes above); compute the cores.

        Args:
            text: the response.
            starts: (T,) first character of each token.
            ends: (T,) character after the last of each token.
            turn_ends: the character after the end of each turn of the policy.

        Returns:
            The tokens with their characters, and without surrounding whitespace (the cores).
        """
        return cls(text, starts, ends, *_cores(text, starts, ends), turn_ends)


class TokenTable:
    """The bytes of every token of a vocabulary, computed once and used for every response.

    `tokenizer` is of the package transformers, or for `align` also of the package tokenizers.

    Attributes:
        vocabulary: number of ids.
        exact_bytes: False for tokenizers whose tokens have no fixed bytes. Their ids are decoded
            prefix by prefix, which is correct but slow.
    """

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self._tokenizer: Any = tokenizer
        self.vocabulary = 1 + max(map(int, tokenizer.get_vocab().values()), default=-1)
        pieces, first = byte_pieces(tokenizer), list[bytes]()
        self._is_text: NDArray[np.bool_] | None = None
        if pieces is None and (spaced := spaced_pieces(tokenizer)):
            pieces, first, self._is_text = spaced.later, spaced.first, np.array([*spaced.is_text, False])
        self.exact_bytes = pieces is not None
        # Rows: the vocabulary, one empty piece for ids beyond it (models pad their output layer),
        # and, where they differ, the pieces of tokens at the start of a text.
        self._beyond = len(pieces or ())
        self._pieces = np.array([*(pieces or ()), b"", *first], dtype=object)
        # (4, rows): start and end of each piece, and the same without whitespace at the edges.
        self._edges = np.array([_piece_edges(piece) for piece in self._pieces], dtype=np.int64).T.copy()

    def matches(self, tokenizer: AnyTokenizer) -> bool:
        """True if the table has the vocabulary of this tokenizer."""
        return self._tokenizer is tokenizer or self._tokenizer.get_vocab() == tokenizer.get_vocab()

    def align(self, ids: Sequence[int]) -> Aligned:
        """Return the text of sampled `ids` and the characters of each id.

        The text is that of the tokens' bytes: leading spaces stay, spaces are not cleaned up, and
        an incomplete character becomes U+FFFD.
        """
        if not self.exact_bytes:
            return align_by_prefixes(self._tokenizer, list(ids))
        rows = np.minimum(np.asarray(ids, dtype=np.int64), self._beyond)
        if self._is_text is not None and (is_text := self._is_text[rows]).any():
            rows[is_text.argmax()] += self._beyond + 1
        blob = b"".join(self._pieces[rows].tolist())
        edges = self._edges.take(rows, axis=1)  # (4, T), bytes
        lengths = edges[1].copy()
        edges += lengths.cumsum() - lengths
        text = blob.decode("utf-8", errors="replace")
        if len(text) < len(blob):  # not ASCII: bytes and characters differ
            edges = _characters(blob, text, edges)
            if _WIDE_SPACE.search(text):
                return Aligned.of(text, edges[0], edges[1])
        return Aligned(text, *edges)

    def align_text(self, text: str) -> Aligned:
        """Align a text that was not sampled, such as a person's answer, after tokenising it.

        Offsets refer to `text` as given, also where the tokenizer prepends a space or normalises.
        """
        aligned = self._align_text(str(text))
        if not isinstance(text, Transcript):
            return aligned
        ends = (int(np.count_nonzero(aligned.starts < turn.end)) for turn in text.turns)
        return replace(aligned, turn_ends=tuple(ends))

    def _align_text(self, text: str) -> Aligned:
        # The name of a special token in a text is text: it must not become that token.
        encode = partial(self._tokenizer, text, add_special_tokens=False, split_special_tokens=True)
        aligned = self.align(encode()["input_ids"])
        if aligned.text == text:
            return aligned
        if aligned.text == " " + text:
            return Aligned.of(text, np.maximum(aligned.starts - 1, 0), np.maximum(aligned.ends - 1, 0))
        mapping = encode(return_offsets_mapping=True)
        offsets = np.array(mapping["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return Aligned.of(text, offsets[:, 0], offsets[:, 1])


def get_table(tokenizer: AnyTokenizer | TokenTable) -> TokenTable:
    """Return the table of a tokenizer, from a cache if no token was added since; pass tables on."""
    if isinstance(tokenizer, TokenTable):
        return tokenizer
    sized: Any = tokenizer
    size = sized.get_vocab_size() if is_rust_tokenizer(tokenizer) else len(sized)
    return _make_table(tokenizer, size)


@lru_cache(maxsize=4)
def _make_table(tokenizer: AnyTokenizer, size: int) -> TokenTable:
    """Make a table; `size` is part of the key because tokens may be added to a tokenizer later."""
    return TokenTable(tokenizer)


def _piece_edges(piece: bytes) -> tuple[int, int, int, int]:
    """Return start and end of a piece, and of the same without ASCII whitespace at its edges.

    The second interval of a blank piece is empty.
    """
    solid = [index for index, byte in enumerate(piece) if _IS_SOLID[byte] or byte >= 0x80]
    return 0, len(piece), *((solid[0], solid[-1] + 1) if solid else (0, 0))


def _characters(blob: bytes, text: str, edges: Offsets) -> Offsets:
    """Convert byte intervals to the intervals of the characters they touch.

    Rows 0 and 2 of `edges` (4, T) are starts, rows 1 and 3 the ends.
    """
    is_start = (np.frombuffer(blob, dtype=np.uint8) & 0xC0) != 0x80  # the first byte of a character
    if _REPLACEMENT in text:
        _merge_invalid_runs(blob, is_start)
    # started_before[p]: number of characters that start before byte p.
    started_before = np.concatenate(([0], is_start.cumsum(), [0]))
    first, last = edges[0::2], edges[1::2]
    ends = started_before[last]
    starts = np.where(last > first, started_before[first + 1] - 1, ends)
    return np.array([starts[0], ends[0], starts[1], ends[1]])


def _merge_invalid_runs(blob: bytes, is_start: NDArray[np.bool_]) -> None:
    """Give each run of invalid bytes one start, because `decode` makes one U+FFFD of it."""
    position = 0
    while True:
        try:
            blob[position:].decode("utf-8")
            return
        except UnicodeDecodeError as error:
            is_start[position + error.start : position + error.end] = False
            is_start[position + error.start] = True
            position += error.end


def _cores(text: str, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
    """Return the intervals without whitespace at their edges; blank ones become empty."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    solid = _IS_SOLID[np.minimum(codes, _LAST_SPACE + 1)]
    positions = np.append(np.flatnonzero(solid), 0)  # positions[n]: index of the n-th solid character
    # solid_before[i]: number of solid characters before character i.
    solid_before = np.concatenate(([0], np.cumsum(solid)))
    first, last = solid_before[starts], solid_before[ends]
    blank = first == last
    return np.where(blank, starts, positions[first]), np.where(blank, starts, positions[last - 1] + 1)


def align_by_prefixes(tokenizer: AnyTokenizer, ids: list[int]) -> Aligned:
    """Align by incremental decoding: a token wrote what its prefix adds to the previous prefix.

    Works with any `decode`; the time grows with the square of the length.
    """
    text = decode_verbatim(tokenizer, ids)
    special = special_ids(tokenizer)
    starts, ends = [], []
    complete = 0  # characters of `text` finished by earlier tokens
    for count, index in enumerate(ids, start=1):
        prefix = decode_verbatim(tokenizer, ids[:count])
        matching = max(complete, _common_length(prefix, text))
        # The prefix may end in an unfinished character, which the full text does not have.
        starts_character = index not in special and matching < min(len(prefix), len(text))
        # An unfinished U+FFFD looks like a finished one: a token that seems to add nothing after it
        # wrote more of its bytes.
        continues_character = (
            index not in special
            and matching == complete
            and not starts_character
            and text[:matching].endswith(_REPLACEMENT)
        )
        starts.append(complete - continues_character)
        ends.append(matching + starts_character)
        complete = matching
    return Aligned.of(text, np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))


def _common_length(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
