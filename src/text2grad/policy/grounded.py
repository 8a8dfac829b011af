"""Grounded decoding: an answer can only be a z that quotes the response it judges.

llguidance masks the vocabulary by the grammar of z (`wire.quotable`). As long as enough tokens
remain nothing is forced: a model whose answer is valid without a mask gives the same answer with
it. Then the answer is closed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from text2grad.align.pieces import byte_pieces
from text2grad.errors import UserError, warn_once
from text2grad.policy.encode import encode_target, stop_ids
from text2grad.policy.model import Policy
from text2grad.policy.settings import Grounding, SamplingSettings
from text2grad.wire.quotable import QuotableText

ENGINE = "llguidance"
CLOSING = (b'"', b', "occurrence": ', b"1", b', "part": true', b"}", *(bytes([byte]) for byte in b"]]]"))
CLOSING += (b', "good_spans": [', b', "poor_spans": [', b', "improvable_spans": [', b"}")
"""The most that closing an answer takes, beside the rest of a word, in the parts in which the
engine settles it."""
MARGIN = 8
QUOTE = 0x22

Mask = NDArray[np.bool_]


def vocabulary_for(policy: Policy, grounded: Grounding) -> Vocabulary | None:
    """Return what grounded decoding needs of a policy; None where it is off, or `auto` and not
    possible.

    Raises:
        UserError: it is `on`, and not possible.
    """
    if grounded == "off":
        return None
    try:
        return Vocabulary(policy.tokenizer, int(policy.model.config.get_text_config().vocab_size), policy.model)
    except UserError as error:
        if grounded == "on":
            raise
        warn_once(f"critiques are not grounded, so they may quote what is not there: {error}")
        return None


class Vocabulary:
    """The tokens of a model as bytes, and the mask engine over them. Built once for a model, within
    a second.

    `model`: the model whose generation config names further stop tokens.

    Raises:
        UserError: the package is missing, or the tokenizer's tokens have no bytes of their own.
    """

    def __init__(self, tokenizer: Any, width: int, model: Any = None) -> None:
        pieces = byte_pieces(tokenizer)
        if find_spec(ENGINE) is None:
            raise UserError("grounded decoding needs llguidance", "pip install 'text2grad[grounded]'")
        if pieces is None:
            raise UserError("the tokens of this tokenizer have no bytes to ground", "reward_model.grounded: off")
        import llguidance
        from llguidance.hf import from_tokenizer

        self._engine = llguidance
        self._executor = llguidance.LLExecutor(torch.get_num_threads())
        self.stops = stop_ids(tokenizer, model)
        self.width = max(width, len(tokenizer))
        self._encoder = from_tokenizer(tokenizer, n_vocab=self.width, eos_token=self.stops)
        # A response and its critique are each of a size that the engine's own limits do not
        # foresee.
        self._limits = llguidance.LLParserLimits(initial_lexer_fuel=100_000_000, step_lexer_fuel=100_000_000)
        self.pieces = pieces + [b""] * (self.width - len(pieces))
        self.lead = " " if self.pieces[encode_target(tokenizer, "{")[0]].startswith(b" ") else ""
        lengths = np.array([len(piece) or np.iinfo(np.int64).max for piece in self.pieces])
        self.shortest_first = np.argsort(lengths, kind="stable")
        self._of_piece = {piece: token for token, piece in enumerate(self.pieces) if piece}
        self.longest = max(map(len, self._of_piece))

    def matcher(self, grammar: str) -> Any:
        """Return the engine's state at the beginning of a text of this grammar."""
        matcher = self._engine.LLMatcher(self._encoder, grammar, limits=self._limits)
        if matcher.is_error():
            raise RuntimeError(f"llguidance: {matcher.get_error()}")
        return matcher

    def masks(self, matchers: Sequence[Any]) -> Mask:
        """Return what the grammars allow next, (N, width), of all matchers at once."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        bits = allocate_token_bitmask(len(matchers), self.width)
        numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, numbered, bits)
        return np.unpackbits(bits.view(np.uint8), axis=1, count=self.width, bitorder="little").view(np.bool_)

    def spell(self, text: bytes) -> list[int]:
        """Return tokens that spell these bytes, from the left the longest that fits."""
        ids: list[int] = []
        while text:
            lengths = range(min(self.longest, len(text)), 0, -1)
            token, length = next((self._of_piece[text[:n]], n) for n in lengths if text[:n] in self._of_piece)
            ids.append(token)
            text = text[length:]
        return ids


class Row:
    """One answer that is being written.

    `taken`: tokens written. `forced`: too little room was left for a token that the model
    preferred. `reserve`: with more room than this any token leaves room for closing the answer.
    """

    def __init__(self, vocabulary: Vocabulary, response: str) -> None:
        self._vocabulary = vocabulary
        self._quotable = QuotableText(response)
        self.matcher = vocabulary.matcher(self._quotable.grammar(vocabulary.lead))
        words = (len(vocabulary.spell(word)) for word in self._quotable.words)
        self.reserve = sum(len(vocabulary.spell(part)) for part in CLOSING) + max(words, default=0) + MARGIN
        self._string: bytes | None = None  # what is written of the open string
        self.taken = 0
        self.ended = self.forced = False

    def take(self, token: int) -> None:
        """Write one token.

        Raises:
            RuntimeError: the grammar forbids it.
        """
        self.taken += 1
        if token in self._vocabulary.stops:
            self.ended = True
            return
        if not self.matcher.consume_token(token):
            raise RuntimeError(f"grounded decoding took a token it forbids: {self.matcher.get_error()}")
        for byte in self._vocabulary.pieces[token]:
            if byte == QUOTE and not _escapes(self._string):
                self._string = b"" if self._string is None else None
            elif self._string is not None:
                self._string += bytes([byte])

    def allows(self, token: int) -> bool:
        """True if the grammar allows a token next: quicker than a mask."""
        return bool(self.matcher.validate_tokens([token]) == 1)

    def has_room(self, token: int, room: int) -> bool:
        """True if the answer can be closed and its turn ended, with this token as the next of
        `room`."""
        if room > self.reserve or token in self._vocabulary.stops:
            return True
        row = copy.copy(self)
        row.matcher = self.matcher.deep_copy()
        row.take(token)
        for _ in range(room - 1):
            row.take(row.closing())
            if row.ended:
                return True
        return False

    def closing(self) -> int:
        """Return the next token on a short way to the end of the answer and of its turn."""
        if self.matcher.is_accepting():
            return self._vocabulary.stops[0]
        if settled := self.matcher.compute_ff_tokens():
            return int(settled[0])
        for token in self._closers():
            if self.allows(token):
                return token
        mask = self._vocabulary.masks([self.matcher])[0]
        order = self._vocabulary.shortest_first
        return int(order[mask[order]][0])

    def _closers(self) -> Iterator[int]:
        if self._string is None:
            yield from (self._vocabulary.spell(closer)[0] for closer in (b"}", b"]"))
            return
        yield self._vocabulary.spell(b'"')[0]
        if rest := self._quotable.complete_word(self._string):
            yield self._vocabulary.spell(rest)[0]


class GroundedAnswers:
    """The constraint on answers to texts (`generate.Constraint`): answer i may quote `texts[i]`."""

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[str], settings: SamplingSettings) -> None:
        self._vocabulary = vocabulary
        self._texts = texts
        self._settings = settings
        self._rows: dict[int, Row] = {}

    @property
    def forced(self) -> list[bool]:
        """Of each answer, whether the token limit decided what it says (`Row.forced`)."""
        return [self._rows[answer].forced for answer in range(len(self._texts))]

    def __call__(self, answers: Sequence[int], written: Sequence[int], scores: Tensor) -> Tensor:
        """Scores (N, V) with -inf where a token cannot come next; `written`: the last tokens of
        these answers."""
        for answer in answers:
            if answer not in self._rows:
                self._rows[answer] = Row(self._vocabulary, self._texts[answer])
        rows = [self._rows[answer] for answer in answers]
        for row, token in zip(rows, written, strict=False):
            if not row.ended:
                row.take(token)
        room = self._settings.max_new_tokens - max(row.taken for row in rows)
        open_rows = [index for index, row in enumerate(rows) if not row.ended]
        if self._settings.temperature == 0 or any(room <= rows[index].reserve for index in open_rows):
            return self._likeliest(rows, scores, room)
        masks = self._allowed([rows[index] for index in open_rows], scores[open_rows])
        masked = scores.clone()
        masked[open_rows] = masked[open_rows].masked_fill(~torch.from_numpy(masks).to(scores.device), -torch.inf)
        return masked

    def _likeliest(self, rows: Sequence[Row], scores: Tensor, room: int) -> Tensor:
        """Mask all but one token of each row. A mask is made only where the likeliest token is not
        allowed."""
        tokens = scores.argmax(dim=-1)
        others = [i for i, row in enumerate(rows) if not row.ended and not row.allows(int(tokens[i]))]
        if others:
            masks = torch.from_numpy(self._allowed([rows[i] for i in others], scores[others])).to(scores.device)
            tokens[others] = scores[others].masked_fill(~masks, -torch.inf).argmax(dim=-1)
        for index, row in enumerate(rows):
            if not row.ended and not row.has_room(int(tokens[index]), room):
                tokens[index], row.forced = row.closing(), True
        column = tokens[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, column, scores.gather(1, column))

    def _allowed(self, rows: Sequence[Row], scores: Tensor) -> Mask:
        masks = self._vocabulary.masks([row.matcher for row in rows])[:, : scores.shape[1]]
        for row, mask, token in zip(rows, masks, scores.argmax(dim=-1).tolist(), strict=True):
            if not mask[token] and mask.sum() == 1:
                # Where the next bytes are settled the engine allows one spelling; the model may
                # prefer another.
                mask[token] = row.allows(token)
        return masks


def _escapes(text: bytes | None) -> bool:
    """True if text in a string ends in a backslash that waits for its letter."""
    return text is not None and (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
