"""What may be quoted of one response, so that every quote resolves: the phrases, and the grammar of z around them.

A plain quote must occur in the response exactly once as whole words; any other quote goes into an
object that says which occurrence is meant. That is what `render` writes and `resolve` reads without a loss.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from text2grad.feedback import turns_of
from text2grad.wire.locate import every_place
from text2grad.wire.quotes import Key, boundaries, occurrences

NUMBER = r"-?(0(\.[0-9]{1,20})?|1(\.0)?|[1-9](\.[0-9]{1,20})?e-(0[5-9]|[1-9][0-9]{1,2}))"
"""A verdict as Python prints a number from -1 to 1: small ones with an exponent, from e-05 on."""

# The shapes `render` writes: its separators, its order of keys, its escapes; numbers as Python prints them.
_GRAMMAR = r"""
start: LEAD "{\"critique\": " STRING ", \"good_spans\": [" items "], \"poor_spans\": [" items "]" better? score? "}"
better: ", \"improvable_spans\": [" items "]"
score: ", \"score\": " NUMBER
LEAD: /%s/
NUMBER: /%s/
STRING: "\"" CHAR* "\""
CHAR: /[^"\\\x00-\x1F]/ | /\\["\\bfnrt]/ | /\\u00[01][0-9a-f]/
"""
_NO_ITEMS = 'items: ""\n'
_ITEMS = r"""
items: (item (", " item)*)?
item: PLAIN | quoted %soccurrence? PART? reason? "}"
quoted: "{\"quote\": " QUOTED
occurrence: ", \"occurrence\": " COUNT
reason: ", \"reason\": " STRING
PLAIN: "\"" PHRASE "\""
QUOTED: "\"" PIECE "\""
COUNT: /[1-9][0-9]*/
PART: ", \"part\": true"
"""
_TURN = r"""turn: ", \"turn\": " COUNT
"""


PLACES = 4  # of a piece that was begun, where its shortest end is looked for


@lru_cache(maxsize=65_536)
def escaped(text: str) -> str:
    """Text as it is written inside a string of z."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class Quotable:
    """A response as z quotes it: its phrases of whole words, and where each first becomes unambiguous.

    Offsets are bytes of `body`, the response as it would stand, escaped, inside a JSON string. Of a response
    with half a surrogate pair, which no answer can hold, nothing can be quoted, and nothing across turns.
    """

    def __init__(self, response: str) -> None:
        self.response = response
        usable = not any("\ud800" <= char <= "\udfff" for char in response)
        self._chars = [escaped(char) for char in response] if usable else []
        self.body = "".join(self._chars).encode()
        self.char_starts = [0, *accumulate(len(char.encode()) for char in self._chars)]
        edges = boundaries(response) if usable else [0]
        self._words = [response[a:b] for a, b in pairwise(edges)]
        self.word_starts = [self.char_starts[edge] for edge in edges]
        self._word_at = {start: index for index, start in enumerate(self.word_starts)}
        self._char_at = {start: index for index, start in enumerate(self.char_starts)}
        self._endings: dict[tuple[str, frozenset[Key]], str | None] = {}
        self._turns = [(turn.start, turn.end) for turn in turns_of(response) if usable and turn.start < turn.end]

    def __bool__(self) -> bool:
        return bool(self._turns)

    def _end(self, start: int) -> int:
        """Where the turn that a byte is in ends; 0 of one between turns."""
        index = bisect_right(self._turn_starts, start) - 1
        end = self.char_starts[self._turns[index][1]] if index >= 0 else 0
        return end if start < end else 0

    @cached_property
    def _turn_starts(self) -> list[int]:
        return [self.char_starts[start] for start, _ in self._turns]

    @cached_property
    def _repeated(self) -> NDArray[np.int64]:
        """For each word, how many words from it on stand elsewhere in the response too."""
        starts = zip(self._words, self.word_starts, strict=False)
        # What stands between turns is in no quote: it is made unlike every word, so that no run holds it.
        return longest_repeats([word if self._end(start) else f"\n{start}" for word, start in starts])

    @cached_property
    def _first_clear(self) -> list[int | None]:
        """For each word, the word before which the shortest clear quote from it on ends; None: there is none."""
        count = len(self._words)
        solid = count
        clear: list[int | None] = [None] * count
        for index in reversed(range(count)):
            solid = index if self._words[index].strip() else solid
            end = max(index + int(self._repeated[index]), solid) + 1
            if end <= count and self.word_starts[end] <= self._end(self.word_starts[index]):
                clear[index] = end
        return clear

    @cached_property
    def _shortest_first(self) -> list[int]:
        """Where a clear quote can begin, the shortest first."""
        ends = zip(self.word_starts, self._first_clear, strict=False)
        return [start for _, start in sorted((self.word_starts[end] - start, start) for start, end in ends if end)]

    def longest_detour(self, cost: Callable[[bytes], int]) -> int:
        """The most it can cost to write on until a quote that was begun can end, where a word has a `cost`.

        A word that was begun may cost as much as it has bytes.
        """
        before = [0, *accumulate(cost(escaped(word).encode()) for word in self._words)]
        detours = [before[end] - before[start] for start, end in enumerate(self._first_clear) if end is not None]
        word = max((end - start for start, end in pairwise(self.word_starts)), default=0)
        return max(detours, default=0) + word

    def _unclear(self) -> Iterator[tuple[str, ...]]:
        """Runs of words all of whose parts are ambiguous or blank, none inside another of its kind."""
        reach = 0
        for index, length in enumerate(self._repeated.tolist()):
            if length and index + length > reach:
                reach = index + length
                yield tuple(self._words[index:reach])
        blank: list[str] = []
        for word in [*self._words, "."]:
            if not word.strip():
                blank.append(word)
            elif blank:
                yield tuple(blank)
                blank = []

    def grammar(self, lead: str = "") -> str:
        """The Lark grammar (llguidance's dialect) of every z about this response.

        A little wider than what resolves: that a plain quote is not repeated in its list, and that an
        occurrence exists, is known only while z is written; see `draft.Draft`. `lead` may stand before z.
        """
        head = _GRAMMAR % (f"({lead})?" if lead else "", NUMBER)
        if not self:
            return head + _NO_ITEMS
        items = _ITEMS % "turn? " + _TURN if len(turns_of(self.response)) > 1 else _ITEMS % ""
        words = [
            [word for word, start in zip(self._words, self.word_starts, strict=False) if first <= start < last]
            for first, last in ((self.char_starts[a], self.char_starts[b]) for a, b in self._turns)
        ]
        unclear = sorted(set(self._unclear()))
        names = [f"UNCLEAR_{index}" for index in range(len(unclear))]
        without = f" & ~({' | '.join(names)})" if names else " & /(?s:.)+/"
        return "\n".join(
            [
                head + items,
                f"PHRASE: WORDS{without}",
                "PIECE: CHARS & /(?s:.)+/",
                f"WORDS: {' | '.join(map(_chunks, words))}",
                f"CHARS: {' | '.join(_chunks(self.response[start:end]) for start, end in self._turns)}",
                *(f"{name}: {_chunks(run)}" for name, run in zip(names, unclear, strict=True)),
            ]
        )

    def finish_phrase(self, begun: bytes, barred: Callable[[str], bool]) -> bytes | None:
        """The fewest bytes that make `begun` a plain quote that is clear and not `barred`; None: nothing does."""
        best: bytes | None = None
        for start in self._places(begun, self._word_at) if begun else self._shortest_first:
            first = self._first_clear[self._word_at[start]]
            if first is None:
                continue
            first = max(first, bisect_left(self.word_starts, start + len(begun)))
            if not begun and best is not None and self.word_starts[first] - start >= len(best):
                break
            for end in self._ends(self.word_starts, first, start):
                rest = self.body[start + len(begun) : end]
                if best is not None and len(rest) >= len(best):
                    break
                if not barred(self._text(start, end)):
                    best = rest
                    break
            if best == b"":
                break
        return best

    def finish_piece(self, begun: bytes, mentioned: Collection[Key]) -> bytes | None:
        """Few bytes that make `begun` a piece of the response, and say all it needs to resolve; None: none do."""
        best: bytes | None = None
        for start in islice(self._places(begun, self._char_at), PLACES):
            first = bisect_left(self.char_starts, start + max(1, len(begun)))
            for end in self._ends(self.char_starts, first, start):
                rest = self.body[start + len(begun) : end]
                if best is not None and len(rest) >= len(best):
                    break
                if (ending := self._shortest_ending(self._text(start, end), mentioned)) is not None:
                    whole = rest + b'"' + ending.encode()
                    best = whole if best is None or len(whole) < len(best) else best
        return best

    def readings_after(self, text: str) -> Iterator[bytes]:
        """How the response continues after each `text` in it, escaped."""
        for place in every_place(text, self.response):
            yield self.body[self.char_starts[place + len(text)] :]

    def _places(self, begun: bytes, starts: dict[int, int]) -> Iterator[int]:
        """Where the response reads `begun` from one of `starts` on, but for its very end."""
        for place in every_place(begun, self.body):
            if place in starts and place + max(1, len(begun)) <= self._end(place):
                yield place

    def _ends(self, edges: list[int], first: int, start: int) -> list[int]:
        """The edges from the first on that are in the turn in which `start` is."""
        return edges[first : bisect_right(edges, self._end(start))]

    def _text(self, start: int, end: int) -> str:
        return self.response[self._char_at[start] : self._char_at[end]]

    def object_endings(self, quote: str, mentioned: Collection[Key]) -> list[str]:
        """What may stand between a quote and the end of its object, reason aside, so that it resolves.

        `mentioned` are the quotes that the list holds without an occurrence.
        """
        endings: list[str] = []
        count = len(turns_of(self.response))
        turns = [None, *(range(1, count + 1) if count > 1 else ())]
        for part, turn in ((part, turn) for part in (False, True) for turn in turns):
            count = len(occurrences(quote, self.response, part, turn))
            named = f', "turn": {turn}' if turn else ""
            flag = ', "part": true' if part else ""
            if count == 1 and quote.strip() and (quote, part, turn) not in mentioned:
                endings.append(named + flag)
            endings += [f'{named}, "occurrence": {number}{flag}' for number in range(1, count + 1)]
        return [ending for ending in endings if not self.reads_on(quote, ending.partition('": ')[0])]

    def _shortest_ending(self, quote: str, mentioned: Collection[Key]) -> str | None:
        named = frozenset(key for key in mentioned if key[0] == quote)
        if (quote, named) not in self._endings:
            self._endings[quote, named] = min(self.object_endings(quote, named), key=len, default=None)
        return self._endings[quote, named]

    def reads_on(self, quote: str, following: str) -> bool:
        """Whether the response itself continues the quote as z would: then `parse` sees one unescaped phrase."""
        return bool(following) and f'{quote}"{following}' in self.response


def _chunks(texts: Sequence[str]) -> str:
    """The terminal that matches any run of these texts, escaped as in z."""
    return f'%regex {{"substring_chunks": {json.dumps([escaped(text) for text in texts], ensure_ascii=False)}}}'


def longest_repeats(words: Sequence[str]) -> NDArray[np.int64]:
    """For each position the length of the longest run of words from it on that also stands elsewhere.

    By a suffix array (prefix doubling, O(n log^2 n)) and Kasai's common prefixes.
    """
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)
    count = len(ids)
    if count < 2:
        return np.zeros(count, dtype=np.int64)
    order, rank = _suffix_array(ids)
    common = _common_prefixes(ids.tolist(), order.tolist(), rank.tolist())
    longest = np.zeros(count, dtype=np.int64)
    longest[order] = np.maximum(common, np.append(common[1:], 0))
    return longest


def _suffix_array(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Suffixes in sorted order, and the place of each in it."""
    count, step = len(ids), 1
    rank = ids
    while True:
        ahead = np.append(rank[step:], np.full(min(step, count), -1))
        order = np.lexsort((ahead, rank))
        differs = (np.diff(rank[order]) != 0) | (np.diff(ahead[order]) != 0)
        rank = np.empty(count, dtype=np.int64)
        rank[order] = np.concatenate([[0], np.cumsum(differs)])
        if rank.max() == count - 1:
            return order, rank
        step *= 2


def _common_prefixes(ids: list[int], order: list[int], rank: list[int]) -> NDArray[np.int64]:
    """Length of the common prefix of each suffix in sorted order with the one before it."""
    count = len(ids)
    common = np.zeros(count, dtype=np.int64)
    length = 0
    for start in range(count):
        if rank[start] == 0:
            length = 0
            continue
        other = order[rank[start] - 1]
        while start + length < count and other + length < count and ids[start + length] == ids[other + length]:
            length += 1
        common[rank[start]] = length
        length = max(0, length - 1)
    return common
