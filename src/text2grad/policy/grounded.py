"""Grounded decoding: constrain an answer to a critique z that quotes the judged response.

llguidance masks the vocabulary by the grammar of z (`wire.quotable`). A valid answer is the same
with and without the mask. When the token limit is near, the answer is closed.
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
"""The longest text that closes an answer after the current word, in pieces of the engine."""
MARGIN = 8
"""Additional tokens in reserve to close an answer."""
QUOTE = 0x22

Mask = NDArray[np.bool_]


def make_vocabulary(policy: Policy, grounded: Grounding) -> Vocabulary | None:
    """Build the vocabulary for grounded decoding; None if `off`, or if `auto` and not possible.

    Raises:
        UserError: grounded decoding is `on` but not possible.
    """
    if grounded == "off":
        return None
    try:
        return Vocabulary(policy.tokenizer, int(policy.model.config.get_text_config().vocab_size), policy.model)
    except UserError as error:
        if grounded == "on":
            raise
        warn_once(f"critiques are not grounded, so their quotes may not occur in the response: {error}")
        return None


class Vocabulary:
    """The tokens of a model as bytes, and the mask engine over them.

    Args:
        width: the number of logits V.
        model: the model whose generation config names further stop tokens.

    Raises:
        UserError: llguidance is missing, or the tokens of the tokenizer are not byte strings.
    """

    def __init__(self, tokenizer: Any, width: int, model: Any = None) -> None:
        pieces = byte_pieces(tokenizer)
        if find_spec(ENGINE) is None:
            raise UserError("grounded decoding needs llguidance", "pip install 'text2grad[grounded]'")
        if pieces is None:
            raise UserError(
                "grounded decoding needs tokens that are byte strings, unlike this tokenizer's",
                "set reward_model.grounded: off",
            )
        import llguidance
        from llguidance.hf import from_tokenizer

        self._engine = llguidance
        self._executor = llguidance.LLExecutor(torch.get_num_threads())
        self.stops = stop_ids(tokenizer, model)
        self.width = max(width, len(tokenizer))
        self._encoder = from_tokenizer(tokenizer, n_vocab=self.width, eos_token=self.stops)
        # The engine's default limits are too low for long responses.
        self._limits = llguidance.LLParserLimits(initial_lexer_fuel=100_000_000, step_lexer_fuel=100_000_000)
        self.pieces = pieces + [b""] * (self.width - len(pieces))
        self.lead = " " if self.pieces[encode_target(tokenizer, "{")[0]].startswith(b" ") else ""
        lengths = np.array([len(piece) or np.iinfo(np.int64).max for piece in self.pieces])
        self.shortest_first = np.argsort(lengths, kind="stable")
        self._token_of_piece = {piece: token for token, piece in enumerate(self.pieces) if piece}
        self.longest = max(map(len, self._token_of_piece))

    def matcher(self, grammar: str) -> Any:
        """Return the engine's state at the start of a text of this grammar."""
        matcher = self._engine.LLMatcher(self._encoder, grammar, limits=self._limits)
        if matcher.is_error():
            raise RuntimeError(f"llguidance: {matcher.get_error()}")
        return matcher

    def masks(self, matchers: Sequence[Any]) -> Mask:
        """Return the mask (N, V) of the tokens that the grammars of N matchers allow next."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        bits = allocate_token_bitmask(len(matchers), self.width)
        fill_next_token_bitmask_par(self._executor, [(m, index) for index, m in enumerate(matchers)], bits)
        return np.unpackbits(bits.view(np.uint8), axis=1, count=self.width, bitorder="little").view(np.bool_)

    def spell(self, text: bytes) -> list[int]:
        """Return tokens that spell these bytes, greedily the longest from the left."""
        ids: list[int] = []
        while text:
            lengths = range(min(self.longest, len(text)), 0, -1)
            length = next(n for n in lengths if text[:n] in self._token_of_piece)
            ids.append(self._token_of_piece[text[:length]])
            text = text[length:]
        return ids


class Row:
    """One unfinished answer.

    Attributes:
        length: the number of its tokens.
        forced: True if the token limit ruled out a token that the model preferred.
        reserve: the number of remaining tokens above which any token leaves room to close.
    """

    def __init__(self, vocabulary: Vocabulary, response: str) -> None:
        self._vocabulary = vocabulary
        self._quotable = QuotableText(response)
        self.matcher = vocabulary.matcher(self._quotable.grammar(vocabulary.lead))
        words = (len(vocabulary.spell(word)) for word in self._quotable.words)
        self.reserve = sum(len(vocabulary.spell(part)) for part in CLOSING) + max(words, default=0) + MARGIN
        self._string: bytes | None = None  # the content of the open string so far
        self.length = 0
        self.ended = self.forced = False

    def advance(self, token: int) -> None:
        """Append one token.

        Raises:
            RuntimeError: the grammar forbids the token.
        """
        self.length += 1
        if token in self._vocabulary.stops:
            self.ended = True
            return
        if not self.matcher.consume_token(token):
            raise RuntimeError(f"grounded decoding sampled a forbidden token: {self.matcher.get_error()}")
        for byte in self._vocabulary.pieces[token]:
            if byte == QUOTE and not _escapes(self._string):
                self._string = b"" if self._string is None else None
            elif self._string is not None:
                self._string += bytes([byte])

    def allows(self, token: int) -> bool:
        """Return True if the grammar allows a token next; faster than a mask."""
        return bool(self.matcher.validate_tokens([token]) == 1)

    def has_room(self, token: int, room: int) -> bool:
        """Return True if the answer can end within `room` tokens that start with this one."""
        if room > self.reserve or token in self._vocabulary.stops:
            return True
        # Tried on a copy: this token, then a short way to the end.
        row = copy.copy(self)
        row.matcher = self.matcher.deep_copy()
        row.advance(token)
        for _ in range(room - 1):
            row.advance(row.closing_token())
            if row.ended:
                return True
        return False

    def closing_token(self) -> int:
        """Return the next token on a short path to the end of the answer and its turn."""
        if self.matcher.is_accepting():
            return self._vocabulary.stops[0]
        if determined := self.matcher.compute_ff_tokens():
            return int(determined[0])
        for token in self._closing_tokens():
            if self.allows(token):
                return token
        mask = self._vocabulary.masks([self.matcher])[0]
        order = self._vocabulary.shortest_first
        return int(order[mask[order]][0])

    def _closing_tokens(self) -> Iterator[int]:
        if self._string is None:
            yield from (self._vocabulary.spell(closer)[0] for closer in (b"}", b"]"))
            return
        yield self._vocabulary.spell(b'"')[0]
        if remainder := self._quotable.complete_word(self._string):
            yield self._vocabulary.spell(remainder)[0]


class GroundedAnswers:
    """A `generate.Constraint`: answer i may quote only `texts[i]`."""

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[str], settings: SamplingSettings) -> None:
        self._vocabulary = vocabulary
        self._texts = texts
        self._settings = settings
        self._rows: dict[int, Row] = {}

    @property
    def forced(self) -> list[bool]:
        """For each answer, True if the token limit changed it (`Row.forced`)."""
        return [self._rows[answer].forced for answer in range(len(self._texts))]

    def __call__(self, answers: Sequence[int], last_tokens: Sequence[int], scores: Tensor) -> Tensor:
        """Return the logits (N, V) of N answers with -inf at forbidden tokens."""
        for answer in answers:
            if answer not in self._rows:
                self._rows[answer] = Row(self._vocabulary, self._texts[answer])
        rows = [self._rows[answer] for answer in answers]
        for row, token in zip(rows, last_tokens, strict=False):  # empty before the first token
            if not row.ended:
                row.advance(token)
        # Rows advance together: the room that remains is that of the longest answer.
        room = self._settings.max_new_tokens - max(row.length for row in rows)
        open_rows = [index for index, row in enumerate(rows) if not row.ended]
        if self._settings.temperature == 0 or any(room <= rows[index].reserve for index in open_rows):
            return self._likeliest(rows, scores, room)
        masks = self._allowed([rows[index] for index in open_rows], scores[open_rows])
        masked = scores.clone()
        masked[open_rows] = masked[open_rows].masked_fill(~torch.from_numpy(masks).to(scores.device), -torch.inf)
        return masked

    def _likeliest(self, rows: Sequence[Row], scores: Tensor, room: int) -> Tensor:
        """Mask all but the likeliest allowed token of each row.

        Masks are computed only for rows whose likeliest token is forbidden.
        """
        tokens = scores.argmax(dim=-1)
        likeliest = tokens.tolist()  # one copy from the device, not one per row
        others = [i for i, row in enumerate(rows) if not row.ended and not row.allows(likeliest[i])]
        if others:
            masks = torch.from_numpy(self._allowed([rows[i] for i in others], scores[others])).to(scores.device)
            tokens[others] = scores[others].masked_fill(~masks, -torch.inf).argmax(dim=-1)
        chosen = tokens.tolist() if others else likeliest
        for index, row in enumerate(rows):
            if not row.ended and not row.has_room(chosen[index], room):
                tokens[index], row.forced = row.closing_token(), True
        column = tokens[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, column, scores.gather(1, column))

    def _allowed(self, rows: Sequence[Row], scores: Tensor) -> Mask:
        masks = self._vocabulary.masks([row.matcher for row in rows])[:, : scores.shape[1]]
        for row, mask, token in zip(rows, masks, scores.argmax(dim=-1).tolist(), strict=True):
            if not mask[token] and mask.sum() == 1:
                # If the next bytes are determined, the engine allows only one of their spellings.
                mask[token] = row.allows(token)
        return masks


def _escapes(text: bytes | None) -> bool:
    """Return True if the content of a string ends in an unfinished escape."""
    return text is not None and (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
