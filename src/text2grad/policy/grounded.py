"""Grounded decoding: an answer can only be a z whose every quote resolves in the response it judges.

llguidance masks the vocabulary by the grammar of z (`wire.quotable`); what depends on the quotes written so far and
on the remaining tokens is checked token by token (`wire.draft`). As long as enough tokens remain nothing is forced:
a model whose answer is valid without a mask gives the same answer with it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from text2grad.wire.draft import Draft, string_end
from text2grad.wire.quotable import Quotable

ENGINE = "llguidance"
CANDIDATES = 16  # likeliest tokens that are tried where the room is short
REMEMBERED = 100_000  # endings whose tokens are remembered
LONGEST_OUTLINE = (
    rb'\u0000", "turn": 99999, "occurrence": 99999, "part": true}, {"quote": "\u0000"}], "poor_spans": []}'
)
MARGIN = 8  # tokens, beyond what the longest outline and the longest detour need

Mask = NDArray[np.bool_]


def vocabulary_for(policy: Policy, grounded: Grounding) -> Vocabulary | None:
    """What grounded decoding needs to know of a policy; None where it is off, or `auto` and not possible.

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
    """The tokens of a model as bytes, and the mask engine over them. Built once for a model, within a second.

    `model`: what else may end an answer, in its generation config.

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
        # A response and its critique are each of a size that the engine's own limits do not foresee.
        self._limits = llguidance.LLParserLimits(initial_lexer_fuel=100_000_000, step_lexer_fuel=100_000_000)
        self.pieces = pieces + [b""] * (self.width - len(pieces))
        self.spelled: dict[bytes, list[int]] = {}  # the tokens, often one, that spell the same bytes
        for index, piece in enumerate(self.pieces):
            if piece:
                self.spelled.setdefault(piece, []).append(index)
        self.longest = max(map(len, self.spelled))
        self._shortest: dict[bytes, tuple[int, int]] = {b"": (0, 0)}
        first = encode_target(tokenizer, "{")[0]
        self.lead = " " if self.pieces[first].startswith(b" ") else ""
        quotes = np.array([piece.count(b'"') for piece in self.pieces])
        # Tokens that are text; of these, that hold a quotation mark, or two; that end a string they are written
        # into, or stay inside it, by whether it stands behind a backslash.
        self.written: Mask = np.array([bool(piece) for piece in self.pieces])
        self.with_quote: Mask = quotes > 0
        self.with_quotes: Mask = quotes > 1
        self.closing: dict[bool, Mask] = {
            escaping: np.array([string_end(piece, 0, escaping) < len(piece) for piece in self.pieces])
            for escaping in (False, True)
        }
        self.staying = {escaping: self.written & ~closing for escaping, closing in self.closing.items()}

    def matcher(self, grammar: str) -> Any:
        """The engine's state at the beginning of a text of this grammar."""
        matcher = self._engine.LLMatcher(self._encoder, grammar, limits=self._limits)
        if matcher.is_error():
            raise RuntimeError(f"llguidance: {matcher.get_error()}")
        return matcher

    def masks(self, matchers: Sequence[Any]) -> Mask:
        """What the grammar allows next: (N, width), of all matchers at once, on torch's number of threads."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        bits = allocate_token_bitmask(len(matchers), self.width)
        numbered = [(matcher, index) for index, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, numbered, bits)
        return np.unpackbits(bits.view(np.uint8), axis=1, count=self.width, bitorder="little").view(np.bool_)

    def spell(self, text: bytes) -> list[int]:
        """The fewest tokens that spell these bytes."""
        ids: list[int] = []
        while text:
            self._measure(text)
            length = self._shortest[text][1]
            ids.append(self.spelled[text[:length]][0])
            text = text[length:]
        return ids

    def cost(self, text: bytes) -> int:
        """How many tokens `spell` takes."""
        self._measure(text)
        return self._shortest[text][0]

    def _measure(self, text: bytes) -> None:
        """Note for every ending of `text` its fewest tokens, and the bytes of the first of them."""
        if len(self._shortest) > REMEMBERED:
            self._shortest = {b"": (0, 0)}
        if text in self._shortest:
            return
        for start in range(len(text) - 1, -1, -1):
            rest = text[start:]
            if rest not in self._shortest:
                lengths = range(1, min(self.longest, len(rest)) + 1)
                self._shortest[rest] = min(
                    (1 + self._shortest[rest[length:]][0], length)
                    for length in lengths
                    if rest[:length] in self.spelled
                )


class Row:
    """One answer in the making.

    `taken`: tokens written. `forced`: at some token, too little room was left for what the model would have said.
    """

    def __init__(self, vocabulary: Vocabulary, response: str, greedy: bool) -> None:
        self._vocabulary = vocabulary
        self._greedy = greedy
        quotable = Quotable(response)
        self._draft = Draft(quotable)
        self.matcher = vocabulary.matcher(quotable.grammar(vocabulary.lead))
        detour = quotable.longest_detour(vocabulary.cost)
        self._slack = vocabulary.cost(LONGEST_OUTLINE) + detour + MARGIN
        self._plan: list[int] = []
        self.taken = 0
        self.ended = False
        self.forced = False

    def take(self, token: int) -> None:
        """Write one token."""
        self.taken += 1
        if token in self._vocabulary.stops:
            self.ended = True
            return
        follows = bool(self._plan) and token == self._plan[0]
        self._plan = self._plan[1:] if follows else []
        if not self.matcher.consume_token(token) or not self._draft.feed(self._vocabulary.pieces[token]):
            raise RuntimeError(f"grounded decoding took a token it forbids: {self.matcher.get_error()}")

    def takes(self, token: int, room: int) -> bool:
        """Whether a token may come next: quicker than asking which ones may."""
        return self._valid(token) and self._resolves(token, self._suspects()) and self._has_room(token, room)

    def likeliest(self, mask: Mask, scores: NDArray[np.float32], room: int) -> int:
        """The likeliest token that may come next, of those that the grammar allows; the same as by `allowed`."""
        suspects, short = self._suspects(), room <= self._slack
        left = np.where(mask, scores, -np.inf)
        tries = CANDIDATES if short else len(left)
        while tries and left[token := int(left.argmax())] > -np.inf:
            if self._resolves(token, suspects):
                if self._has_room(token, room):
                    return token
                self.forced, tries = True, tries - 1
            left[token] = -np.inf
        return self._planned()

    def allowed(self, scores: NDArray[np.float32], room: int, mask: Mask | None = None) -> Mask:
        """What may come next where `room` tokens are left, this one and the end of the turn among them.

        `mask` is what the grammar allows, if that is known (it is changed).
        """
        if mask is None:
            mask = self._vocabulary.masks([self.matcher])[0]
        mask = mask[: len(scores)]
        likeliest = int(scores.argmax())
        if not mask[likeliest] and mask.sum() == 1:
            # Where the next bytes are settled the engine allows one spelling of them; the model may prefer another.
            mask[likeliest] = self._valid(likeliest)
        for token in np.flatnonzero(mask & self._suspects()[: len(mask)]).tolist():
            mask[token] = self._lives_after(token)
        if room <= self._slack:
            self._keep_room(mask, scores, room)
        return mask

    def carry(self, scores: NDArray[np.float32], mask: Mask) -> None:
        """Inside a quote, give the likelihood of all words that would continue it to those that may.

        Whether a quote ends here is one question, which word comes next another. A model that cannot copy spreads
        the second answer over words that are not there; masked, to continue would look as unlikely as the right
        word.
        """
        draft = self._draft
        if draft.place not in ("phrase", "piece") or not draft.begun:
            return
        staying = self._vocabulary.staying[draft.escaping][: len(scores)]
        allowed = mask & staying
        if allowed.any():
            scores[allowed] += np.logaddexp.reduce(scores[staying]) - np.logaddexp.reduce(scores[allowed])

    def _valid(self, token: int) -> bool:
        return bool(self.matcher.validate_tokens([token]) == 1)

    def _resolves(self, token: int, suspects: Mask) -> bool:
        return not suspects[token] or self._lives_after(token)

    def _lives_after(self, token: int) -> bool:
        draft = self._draft.copy()
        return draft.feed(self._vocabulary.pieces[token]) and draft.lives()

    def _suspects(self) -> Mask:
        """Tokens that the grammar may allow, and that may still not resolve."""
        draft, vocabulary = self._draft, self._vocabulary
        if draft.after_quote:
            return vocabulary.written
        barred = draft.in_list and next(draft.barred_bodies(), None) is not None
        if draft.place == "outline":
            return vocabulary.with_quote if barred else vocabulary.with_quotes
        if draft.place == "piece":
            return vocabulary.closing[draft.escaping]
        if draft.place == "phrase" and barred:
            suspects = vocabulary.closing[draft.escaping].copy()
            suspects[self._towards_barred()] = True
            return suspects
        return vocabulary.with_quotes

    def _towards_barred(self) -> list[int]:
        """Tokens that keep the phrase the beginning of one that is barred."""
        begun, vocabulary = self._draft.begun, self._vocabulary
        rests = {body[len(begun) :] for body in self._draft.barred_bodies() if body.startswith(begun)}
        starts = {rest[:length] for rest in rests for length in range(1, min(len(rest), vocabulary.longest) + 1)}
        return [token for start in starts for token in vocabulary.spelled.get(start, ())]

    def _planned(self) -> int:
        """The next token of a short way to close the answer and end its turn."""
        if not self._plan:
            closing = self._draft.closing()
            assert closing is not None
            self._plan = self._vocabulary.spell(closing)
        return (self._plan or self._vocabulary.stops)[0]

    def _keep_room(self, mask: Mask, scores: NDArray[np.float32], room: int) -> None:
        """Leave only likely tokens after which the answer can still be closed and its turn ended."""
        planned = self._planned()
        options = np.flatnonzero(mask)
        count = min(CANDIDATES, len(options))
        likely = options[np.argpartition(-scores[options], count - 1)[:count]]
        kept: list[int] = []
        for token in likely[np.argsort(-scores[likely])].tolist():
            if self._has_room(token, room):
                kept.append(token)
                if self._greedy:
                    break
            elif not kept:
                self.forced = True
        mask[:] = False
        mask[kept] = True
        mask[planned] |= not (kept and self._greedy)

    def _has_room(self, token: int, room: int) -> bool:
        """Whether the answer can be closed, and its turn ended, if this token is the next of `room`."""
        if room > self._slack or token in self._vocabulary.stops:
            return True
        draft = self._draft.copy()
        closing = draft.closing() if draft.feed(self._vocabulary.pieces[token]) else None
        return closing is not None and self._vocabulary.cost(closing) + 1 <= room - 1


class GroundedAnswers:
    """What keeps answers to their texts (`generate.Constraint`): answer i may quote `texts[i]`.

    With `whole_quotes` a quote continues as likely as without the mask (see `Row.carry`).
    """

    def __init__(
        self, vocabulary: Vocabulary, texts: Sequence[str], settings: SamplingSettings, whole_quotes: bool = False
    ) -> None:
        self._vocabulary = vocabulary
        self._texts = texts
        self._settings = settings
        self._whole_quotes = whole_quotes
        self._rows: dict[int, Row] = {}

    @property
    def forced(self) -> list[bool]:
        """Of each answer, whether the token limit decided what it says (`Row.forced`)."""
        return [self._rows[answer].forced for answer in range(len(self._texts))]

    def __call__(self, answers: Sequence[int], written: Sequence[int], scores: Tensor) -> Tensor:
        """Scores (N, V) with -inf where a token cannot come next; `written`: the last tokens of these answers."""
        greedy = self._settings.temperature == 0
        for answer in answers:
            if answer not in self._rows:
                self._rows[answer] = Row(self._vocabulary, self._texts[answer], greedy)
        rows = [self._rows[answer] for answer in answers]
        for row, token in zip(rows, written, strict=False):
            if not row.ended:
                row.take(token)
        room = self._settings.max_new_tokens - max(row.taken for row in rows)
        one_is_enough = greedy and not self._whole_quotes
        return self._likeliest(rows, scores, room) if one_is_enough else self._allowed(rows, scores, room)

    def _likeliest(self, rows: Sequence[Row], scores: Tensor, room: int) -> Tensor:
        """For greedy answers: all but one token masked. A mask is made only where the likeliest may not come."""
        tokens = scores.argmax(dim=-1)
        found = zip(rows, tokens.tolist(), strict=True)
        others = [i for i, (row, token) in enumerate(found) if not row.ended and not row.takes(token, room)]
        if others:
            masks = self._vocabulary.masks([rows[i].matcher for i in others])[:, : scores.shape[1]]
            values = scores[others].float().cpu().numpy()
            better = [
                rows[i].likeliest(mask, row_values, room)
                for i, mask, row_values in zip(others, masks, values, strict=True)
            ]
            tokens[others] = torch.tensor(better, device=scores.device)
        column = tokens[:, None]
        return torch.full_like(scores, -torch.inf).scatter_(1, column, scores.gather(1, column))

    def _allowed(self, rows: Sequence[Row], scores: Tensor, room: int) -> Tensor:
        values = scores.float().cpu().numpy().copy()
        masks = np.ones(values.shape, dtype=bool)
        going = [index for index, row in enumerate(rows) if not row.ended]
        for index, mask in zip(going, self._vocabulary.masks([rows[i].matcher for i in going]), strict=True):
            row = rows[index]
            masks[index] = row.allowed(values[index], room, mask)
            if self._whole_quotes:
                row.carry(values[index], masks[index])
        carried = torch.from_numpy(values).to(scores) if self._whole_quotes else scores
        return carried.masked_fill(~torch.from_numpy(masks).to(scores.device), -torch.inf)
