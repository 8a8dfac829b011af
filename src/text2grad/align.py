"""Where text and tokens meet: sampled ids to characters, labelled characters to token rewards.

Only this file knows both. It works from the ids that were *sampled*: each id has its bytes, their running sum
gives every token its place in the response, and a span labels the tokens whose visible characters it touches.
Nothing is ever tokenised again, because decode-then-encode moves token boundaries (METHOD, "span -> token").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from text2grad.feedback import Critique, Label, Span
from text2grad.function_words import is_function_word
from text2grad.settings import Settings

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Labels = NDArray[np.int8]
Scheme = Literal["spans", "last_token", "every_token", "linear_decay", "token_importance"]
Membership = Literal["overlap", "contained"]

FUNCTION_WORD_WEIGHT = 0.2
LAST_WEIGHT = 0.1


class CreditSettings(Settings):
    """How a critique becomes token rewards: the difference between the methods of the paper's tables.

    `spans` is Text2Grad, `last_token` scalar PPO, `every_token` the score on every token; `linear_decay` and
    `token_importance` weight the tokens inside a span (paper, Table 11). `weighting` says what a span is
    worth: +-1 on each token (`token`, the paper), +-1 shared by its tokens (`span`), or equal mass of good
    and poor in a response (`balanced`). `outcome_weight` adds the critique's own verdict on the last token.
    """

    scheme: Scheme = "spans"
    weighting: Literal["token", "span", "balanced"] = "span"
    membership: Membership = "overlap"
    span_weight: float = Field(default=1.0, ge=0, description="factor on all span rewards")
    poor_weight: float = Field(default=1.0, ge=0, description="further factor on poor spans")
    outcome_weight: float = Field(default=0.0, description="factor on the verdict, paid on the last token")
    unlabelled: float = Field(default=0.0, description="reward of a token that no span names (paper: 0)")


@dataclass(frozen=True)
class Aligned:
    """A sampled response as text, and the place of each of its T tokens in it, in characters.

    Token t covers characters [starts[t], ends[t]); a token that holds part of a character's bytes touches
    that whole character. `core_starts`, `core_ends` leave out white space at either end and are equal for a
    token with nothing visible in it (special tokens, indentation).
    """

    text: str
    starts: Ints
    ends: Ints
    core_starts: Ints
    core_ends: Ints

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True)
class Credit:
    """Pseudo-rewards `delta` (T,) of one response, and what was counted on the way.

    `labelled` tokens got a label, `cancelled` ones were called both good and poor, `uncovered` spans touch no
    token, `no_score` is 1 where a verdict was wanted and the critique has none.
    """

    delta: Floats
    labelled: int = 0
    cancelled: int = 0
    uncovered: int = 0
    no_score: int = 0

    @staticmethod
    def nothing(aligned: Aligned) -> Credit:
        """No reward at all: what a failed critique is worth before it is masked out."""
        return Credit(np.zeros(len(aligned), np.float32))


@dataclass
class TokenTable:
    """The bytes of every id of a tokenizer, made once; then aligning is a table look-up.

    Byte-level BPE and sentencepiece-like vocabularies (with byte fallback) are read from the token strings
    and checked against the tokenizer's own decoder, response by response; where they disagree, the sampled
    ids are decoded prefix by prefix instead, which is slow and right.
    """

    tokenizer: Any
    pieces: list[bytes] = field(init=False)
    _ascii: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = token_bytes(self.tokenizer)
        self._strip_first = _strips_first_space(self.tokenizer)
        self._sizes = np.array([len(piece) for piece in self.pieces], np.int64)
        self._left = np.array([len(p) - len(p.lstrip()) for p in self.pieces], np.int64)
        self._right = np.array([len(p.rstrip()) for p in self.pieces], np.int64)
        self._special = set(self.tokenizer.all_special_ids)

    def align(self, ids: Sequence[int]) -> Aligned:
        """Text and token places of a sampled response. Special tokens are no text and cover nothing.

        Bytes that are no UTF-8 (a response cut inside a character) read as U+FFFD, as the tokenizer's own
        decoder has it.
        """
        chosen = np.asarray(ids, np.int64)
        data = b"".join([self.pieces[i] for i in ids])
        if data.isascii() and not self._strip_first:
            return self._align_ascii(chosen, data.decode("ascii"))
        text = self._decode(ids)
        if self._strip_first and data.startswith(b" "):
            chosen_pieces = _without_first_space([self.pieces[i] for i in ids])
            data = b"".join(chosen_pieces)
        else:
            chosen_pieces = [self.pieces[i] for i in ids]
        if data.decode("utf-8", "replace") != text:
            return self._align_by_prefix(ids)
        return _align_bytes(chosen_pieces, text)

    def align_text(self, text: str) -> Aligned:
        """Places of the tokens a text *would* have. For measuring critics on text that was not sampled here.

        Never for rewards: sampled responses have ids, and `align` takes those.
        """
        return self.align(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _align_ascii(self, ids: Ints, text: str) -> Aligned:
        ends = np.cumsum(self._sizes[ids])
        starts = ends - self._sizes[ids]
        core_starts = starts + self._left[ids]
        return Aligned(text, starts, ends, core_starts, np.maximum(core_starts, starts + self._right[ids]))

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def _align_by_prefix(self, ids: Sequence[int]) -> Aligned:
        """Decode every prefix: a token's text is what it adds to what was settled before it."""
        text = self._decode(ids)
        starts, ends, settled = [], [], 0
        for index, token in enumerate(ids):
            prefix = self._decode(ids[: index + 1])
            known = _common_length(prefix.rstrip("\ufffd"), text)
            covers = token not in self._special and index < len(ids)
            start = settled
            end = max(known, min(len(text), settled + 1)) if covers and known <= settled else known
            if not covers:
                start = end = settled
            starts.append(start)
            ends.append(max(start, end))
            settled = max(settled, known)
        return _with_cores(text, np.array(starts, np.int64), np.array(ends, np.int64))


def token_bytes(tokenizer: Any) -> list[bytes]:
    """The bytes each id stands for, by the kind of decoder the tokenizer has; special tokens stand for none."""
    size = len(tokenizer)
    names: list[str] = tokenizer.convert_ids_to_tokens(list(range(size)))
    special = set(tokenizer.all_special_ids)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    plain = {index for index in added if index not in special}
    decoder = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder"))
    read = _byte_level if "ByteLevel" in decoder else _metaspace
    return [
        b"" if i in special or name is None else name.encode() if i in plain else read(name)
        for i, name in enumerate(names)
    ]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + n): byte for n, byte in enumerate(moved)}


_ALPHABET = _byte_alphabet()


def _byte_level(name: str) -> bytes:
    if all(character in _ALPHABET for character in name):
        return bytes(_ALPHABET[character] for character in name)
    return name.encode()


def _metaspace(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("\u2581", " ").encode()


def _strips_first_space(tokenizer: Any) -> bool:
    """Whether decoding drops the space in front of the first word, as sentencepiece-like decoders do."""
    decoder = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder"))
    return "ByteLevel" not in decoder and ("Metaspace" in decoder or "Strip" in decoder)


def _without_first_space(pieces: list[bytes]) -> list[bytes]:
    first = next(index for index, piece in enumerate(pieces) if piece)
    return [*pieces[:first], pieces[first][1:], *pieces[first + 1 :]]


def _align_bytes(pieces: Sequence[bytes], text: str) -> Aligned:
    """Places in characters from byte counts; `text` is the pieces' bytes decoded with errors="replace"."""
    owner = _character_of_byte(b"".join(pieces))
    ends_in_bytes = np.cumsum([len(piece) for piece in pieces])
    starts_in_bytes = ends_in_bytes - np.array([len(piece) for piece in pieces])
    padded = np.append(owner, len(text))
    starts = padded[starts_in_bytes]
    last = np.append(owner, len(text) - 1)[np.maximum(ends_in_bytes - 1, 0)]
    ends = np.where(ends_in_bytes > starts_in_bytes, last + 1, starts)
    return _with_cores(text, starts, ends)


def _character_of_byte(data: bytes) -> Ints:
    """For each byte the index of its character after decoding with errors="replace"."""
    owner: list[int] = []
    position = character = 0
    while position < len(data):
        try:
            good = data[position:].decode("utf-8")
            bad = 0
        except UnicodeDecodeError as error:
            good = data[position : position + error.start].decode("utf-8")
            bad = error.end - error.start
        for symbol in good:
            size = len(symbol.encode())
            owner += [character] * size
            character += 1
            position += size
        if bad:  # one maximal broken sequence becomes one U+FFFD
            owner += [character] * bad
            character += 1
            position += bad
    return np.array(owner, np.int64)


def _with_cores(text: str, starts: Ints, ends: Ints) -> Aligned:
    blank = np.array([symbol.isspace() for symbol in text], bool)
    visible = np.flatnonzero(~blank)
    padded = np.append(visible, len(text))
    core_starts = padded[np.searchsorted(visible, starts)]
    before = np.append(-1, visible)[np.searchsorted(visible, ends)]
    empty = core_starts >= ends
    core_starts = np.where(empty, ends, core_starts)
    return Aligned(text, starts, ends, core_starts, np.where(empty, ends, before + 1))


def _common_length(a: str, b: str) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


def tokens_of(span: Span, aligned: Aligned, membership: Membership) -> Ints:
    """Indices of the tokens a span labels: those whose visible characters it touches, or holds entirely."""
    visible = aligned.core_ends > aligned.core_starts
    if membership == "overlap":
        inside = (aligned.core_starts < span.end) & (aligned.core_ends > span.start)
    else:
        inside = (aligned.core_starts >= span.start) & (aligned.core_ends <= span.end)
    return np.flatnonzero(inside & visible)


def token_labels(spans: Iterable[Span], aligned: Aligned, membership: Membership = "overlap") -> Labels:
    """+1, -1 or 0 for each token (T,). Good and poor together cancel to 0, whatever their order."""
    good, poor = _marked(spans, aligned, membership)
    return good.astype(np.int8) - poor.astype(np.int8)


def _marked(
    spans: Iterable[Span], aligned: Aligned, membership: Membership
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    marks = {1: np.zeros(len(aligned), bool), -1: np.zeros(len(aligned), bool)}
    for span in spans:
        marks[span.label][tokens_of(span, aligned, membership)] = True
    return marks[1], marks[-1]


def credit(critique: Critique, aligned: Aligned, settings: CreditSettings) -> Credit:
    """Token rewards of one critique (paper, section 3.3; METHOD for every choice). No token exceeds +-1
    before the weights of `settings`, and a score is paid at the last sampled token."""
    if settings.scheme in ("last_token", "every_token"):
        return _score_credit(critique, len(aligned), settings)
    good, poor = _marked(critique.spans, aligned, settings.membership)
    labels = good.astype(np.int8) - poor.astype(np.int8)
    magnitude = _magnitudes(critique.spans, aligned, settings)
    delta = (labels * magnitude).astype(np.float32)
    if settings.weighting == "balanced":
        delta = _balanced(delta)
    delta *= np.where(labels < 0, settings.poor_weight, 1.0) * settings.span_weight
    delta = np.where(good | poor, delta, np.float32(settings.unlabelled)).astype(np.float32)
    wanted = bool(settings.outcome_weight)
    if wanted and len(delta):
        delta[-1] += settings.outcome_weight * (critique.score or 0.0)
    touched = [len(tokens_of(span, aligned, settings.membership)) for span in critique.spans]
    return Credit(
        delta,
        labelled=int((labels != 0).sum()),
        cancelled=int((good & poor).sum()),
        uncovered=touched.count(0),
        no_score=int(wanted and critique.score is None),
    )


def _score_credit(critique: Critique, length: int, settings: CreditSettings) -> Credit:
    score = critique.score or 0.0
    delta = np.zeros(length, np.float32)
    if settings.scheme == "last_token":
        delta[-1:] = score
    else:
        delta[:] = score if settings.weighting == "token" else score / max(1, length)
    return Credit(delta, no_score=int(critique.score is None))


def _magnitudes(spans: Iterable[Span], aligned: Aligned, settings: CreditSettings) -> Floats:
    """What each token is worth inside its spans; the largest where spans of one label overlap."""
    best: dict[Label, Floats] = {
        1: np.zeros(len(aligned), np.float32),
        -1: np.zeros(len(aligned), np.float32),
    }
    for span in spans:
        tokens = tokens_of(span, aligned, settings.membership)
        if len(tokens):
            share = _within_span(tokens, aligned, settings.scheme)
            if settings.weighting == "span":
                share = share / len(tokens)
            best[span.label][tokens] = np.maximum(best[span.label][tokens], share)
    return np.maximum(best[1], best[-1])


def _within_span(tokens: Ints, aligned: Aligned, scheme: Scheme) -> Floats:
    if scheme == "linear_decay":
        return np.linspace(1.0, LAST_WEIGHT, len(tokens), dtype=np.float32)
    if scheme == "token_importance":
        words = [aligned.text[aligned.core_starts[t] : aligned.core_ends[t]] for t in tokens]
        return np.array([FUNCTION_WORD_WEIGHT if is_function_word(w) else 1.0 for w in words], np.float32)
    return np.ones(len(tokens), np.float32)


def _balanced(delta: Floats) -> Floats:
    """Good tokens share +1, poor tokens -1."""
    good, poor = delta.clip(min=0), delta.clip(max=0)
    return good / max(good.sum(), 1e-9) - poor / min(poor.sum(), -1e-9)
