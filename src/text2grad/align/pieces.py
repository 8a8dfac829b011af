"""The bytes of every token of a vocabulary, for the families of tokenizers that have such bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    AnyTokenizer = PreTrainedTokenizerBase | Tokenizer

_SPACE_MARK = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}

ToBytes = Callable[[str], bytes]


def byte_pieces(tokenizer: AnyTokenizer) -> list[bytes] | None:
    """The bytes of each id, b"" for special tokens; None where a token has no bytes of its own.

    Byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece style with or without byte fallback
    (Llama 2, Mistral, Gemma) have them. Which one it is comes from the tokenizer's own decoder, and
    the whole vocabulary is then compared with what `tokenizer.decode` says of it.
    """
    to_bytes = _family(tokenizer)
    if to_bytes is None:
        return None
    special = special_ids(tokenizer)
    vocabulary = {int(index): token for token, index in tokenizer.get_vocab().items()}
    pieces = [b""] * (max(vocabulary, default=-1) + 1)
    for index, token in vocabulary.items():
        if index not in special:
            pieces[index] = to_bytes(token)
    plain = (
        n for n in sorted(vocabulary) if pieces[n].strip().isalnum() and not _BYTE_TOKEN.fullmatch(vocabulary[n])
    )
    anchor = next(plain, None)
    return pieces if anchor is not None and _decodes_alike(tokenizer, pieces, anchor) else None


class SpacedPieces(NamedTuple):
    """The bytes of each id, `first` at the start of a text and `later` after another token.

    `is_text` is False for special tokens and ids without a token; their bytes are b"".
    """

    later: list[bytes]
    first: list[bytes]
    is_text: list[bool]


def spaced_pieces(tokenizer: AnyTokenizer) -> SpacedPieces | None:
    """Return the bytes of each id where the decoder puts spaces between tokens: WordPiece (BERT),
    or no decoder.

    Such a decoder looks at one token and at whether it is the first, so each token is decoded in
    both places. The bytes of the whole vocabulary are compared with `tokenizer.decode`. Returns
    None for other tokenizers.
    """
    backend: Any = _backend(tokenizer)
    if backend is None or [step["type"] for step in _decoder_steps(backend)] not in ([], ["WordPiece"]):
        return None
    special, vocabulary = special_ids(tokenizer), tokenizer.get_vocab()
    count = max(map(int, vocabulary.values()), default=-1) + 1
    anchor = next((n for token, n in sorted(vocabulary.items()) if token.isalnum() and n not in special), None)
    if anchor is None:
        return None
    first = backend.decode_batch([[index] for index in range(count)], skip_special_tokens=True)
    behind = backend.decode_batch([[anchor, index] for index in range(count)], skip_special_tokens=True)
    if not all(text.startswith(first[anchor]) for text in behind):
        return None
    later = [text.removeprefix(first[anchor]).encode() for text in behind]
    known = set(map(int, vocabulary.values())) - special
    if not _decodes_alike(tokenizer, later, anchor):
        return None
    return SpacedPieces(later, [text.encode() for text in first], [index in known for index in range(count)])


def special_ids(tokenizer: Any) -> set[int]:
    """Ids that are not text: those that `skip_special_tokens` skips."""
    added = tokenizer.get_added_tokens_decoder() if is_plain(tokenizer) else tokenizer.added_tokens_decoder
    marked = {int(index) for index, token in added.items() if token.special}
    return marked | {int(index) for index in getattr(tokenizer, "all_special_ids", ())}


def is_plain(tokenizer: AnyTokenizer) -> bool:
    """Whether it is a tokenizer of the package tokenizers, and not one of transformers around
    it."""
    return hasattr(tokenizer, "to_str")


def _backend(tokenizer: Any) -> Tokenizer | None:
    return tokenizer if is_plain(tokenizer) else getattr(tokenizer, "backend_tokenizer", None)


def _decoder_steps(backend: Tokenizer) -> list[dict[str, Any]]:
    return _steps(json.loads(backend.to_str())["decoder"])


def _family(tokenizer: Any) -> ToBytes | None:
    backend = _backend(tokenizer)
    if backend is None:
        return None
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        return _byte_level
    marks = [s for s in steps if s["type"] == "Metaspace" or s.get("pattern") == {"String": _SPACE_MARK}]
    if marks and kinds <= _SENTENCEPIECE:
        return _sentencepiece if "ByteFallback" in kinds else _metaspace
    return None


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a decoder, those of nested sequences in order."""
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: itself if printable, else the next code from 256
    on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    """Tokens added by hand may hold characters outside the alphabet; they stand for themselves."""
    if all(char in _ALPHABET for char in token):
        return bytes(_ALPHABET[char] for char in token)
    return token.encode()


def _metaspace(token: str) -> bytes:
    return token.replace(_SPACE_MARK, " ").encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else _metaspace(token)


def _decodes_alike(tokenizer: AnyTokenizer, pieces: list[bytes], anchor: int) -> bool:
    """Whether the pieces of the whole vocabulary spell what the tokenizer decodes.

    Between any two tokens stands `anchor`, a plain one: it keeps the bytes of neighbours from
    joining to a character, and takes the leading space that some decoders strip.
    """
    ids = [each for index in range(len(pieces)) for each in (anchor, index)]
    text = b"".join(pieces[index] for index in ids).decode("utf-8", errors="replace")
    return plain_decode(tokenizer, ids) in (text, text.removeprefix(" "))


def plain_decode(tokenizer: AnyTokenizer, ids: list[int]) -> str:
    """What the tokenizer makes of `ids`, without special tokens and without clean-up."""
    options = {} if is_plain(tokenizer) else {"clean_up_tokenization_spaces": False}
    return str(tokenizer.decode(ids, skip_special_tokens=True, **options))
