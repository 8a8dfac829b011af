"""Read the bytes of every token off a vocabulary, for tokenizers whose tokens have fixed bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

    AnyTokenizer = PreTrainedTokenizerBase | Tokenizer

_SPACE_MARK = "\u2581"  # SentencePiece writes a space as this character
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # byte fallback, for characters it has no token for
_SENTENCEPIECE = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}

ToBytes = Callable[[str], bytes]


def byte_pieces(tokenizer: AnyTokenizer) -> list[bytes] | None:
    """Return the bytes of each id, b"" for special tokens; None if tokens have no fixed bytes.

    Supported are byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece with or without byte
    fallback (Llama 2, Mistral, Gemma). The family is read off the tokenizer's decoder. The bytes of
    the whole vocabulary are compared with the output of `tokenizer.decode`.
    """
    to_bytes = _byte_converter(tokenizer)
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
    return pieces if anchor is not None and _matches_decode(tokenizer, pieces, anchor) else None


class SpacedPieces(NamedTuple):
    """The bytes of each id: `first` at the start of a text, `later` after another token.

    `is_text` is False for special tokens and ids without a token; their bytes are b"".
    """

    later: list[bytes]
    first: list[bytes]
    is_text: list[bool]


def spaced_pieces(tokenizer: AnyTokenizer) -> SpacedPieces | None:
    """Return the bytes of each id if the decoder puts spaces between tokens, else None.

    WordPiece (BERT) and tokenizers without a decoder do so. The text of a token then depends only
    on whether the token is first, so each token is decoded at the start and after another token.
    The bytes of the whole vocabulary are compared with the output of `tokenizer.decode`.
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
    pairs = backend.decode_batch([[anchor, index] for index in range(count)], skip_special_tokens=True)
    if not all(text.startswith(first[anchor]) for text in pairs):
        return None
    later = [text.removeprefix(first[anchor]).encode() for text in pairs]
    text_ids = set(map(int, vocabulary.values())) - special
    if not _matches_decode(tokenizer, later, anchor):
        return None
    return SpacedPieces(later, [text.encode() for text in first], [index in text_ids for index in range(count)])


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids that `skip_special_tokens` skips."""
    added = tokenizer.get_added_tokens_decoder() if is_rust_tokenizer(tokenizer) else tokenizer.added_tokens_decoder
    special = {int(index) for index, token in added.items() if token.special}
    return special | {int(index) for index in getattr(tokenizer, "all_special_ids", ())}


def is_rust_tokenizer(tokenizer: AnyTokenizer) -> bool:
    """True for a tokenizer of the package tokenizers, False for one of transformers."""
    return hasattr(tokenizer, "to_str")


def _backend(tokenizer: Any) -> Tokenizer | None:
    return tokenizer if is_rust_tokenizer(tokenizer) else getattr(tokenizer, "backend_tokenizer", None)


def _decoder_steps(backend: Tokenizer) -> list[dict[str, Any]]:
    return _flatten(json.loads(backend.to_str())["decoder"])


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a decoder, including those of nested sequences, in order."""
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]


def _byte_converter(tokenizer: Any) -> ToBytes | None:
    """Return the function from token to bytes of the tokenizer's family, None if unknown."""
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


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-in for each byte: itself if printable, else from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    """Return the bytes of a byte-level token.

    Tokens added by hand may have characters outside the alphabet; they represent themselves.
    """
    if all(char in _ALPHABET for char in token):
        return bytes(_ALPHABET[char] for char in token)
    return token.encode()


def _metaspace(token: str) -> bytes:
    return token.replace(_SPACE_MARK, " ").encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else _metaspace(token)


def _matches_decode(tokenizer: AnyTokenizer, pieces: list[bytes], anchor: int) -> bool:
    """True if the pieces of the whole vocabulary spell what the tokenizer decodes.

    `anchor`, a plain token, is put before every token: it keeps the bytes of neighbours from
    forming one character, and absorbs the leading space that some decoders strip.
    """
    ids = [token for index in range(len(pieces)) for token in (anchor, index)]
    text = b"".join(pieces[index] for index in ids).decode("utf-8", errors="replace")
    return decode_verbatim(tokenizer, ids) in (text, text.removeprefix(" "))


def decode_verbatim(tokenizer: AnyTokenizer, ids: list[int]) -> str:
    """Decode `ids` without special tokens and without cleaning up spaces."""
    options = {} if is_rust_tokenizer(tokenizer) else {"clean_up_tokenization_spaces": False}
    return str(tokenizer.decode(ids, skip_special_tokens=True, **options))
