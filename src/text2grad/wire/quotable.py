"""Grounded answers: the grammar of every z whose quotes are pieces of one response.

A grammar cannot count: it allows a plain quote that occurs twice, or its fifth occurrence.
`keep_resolved` drops such quotes from a finished answer, so everything left resolves.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from text2grad.feedback import Critique, Label, Span, turns_of
from text2grad.feedback.locate import find_all
from text2grad.feedback.quotes import Quote, resolve
from text2grad.unicode_words import boundaries
from text2grad.wire.answer import IMPROVABLE, parse, render

NUMBER = r"-?(0(\.[0-9]{1,20})?|1(\.0)?|[1-9](\.[0-9]{1,20})?e-(0[5-9]|[1-9][0-9]{1,2}))"
"""A verdict as Python prints a number from -1 to 1: small ones with an exponent, from e-05 on."""
_LISTS: tuple[tuple[str, Label], ...] = (("good_spans", 1), ("poor_spans", -1), (IMPROVABLE, 0))

# The shapes `render` writes: its separators, its order of keys, its escapes; numbers as Python
# prints them.
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
item: PHRASE | "{\"quote\": " (PHRASE place | PIECE place ", \"part\": true") (", \"reason\": " STRING)? "}"
place: %s(", \"occurrence\": " COUNT)?
COUNT: /[1-9][0-9]{0,4}/
PHRASE: "\"" WORDS "\""
PIECE: "\"" CHARS "\""
WORDS: (%s) & /(?s:.)+/
CHARS: (%s) & /(?s:.)+/
"""
_TURN = r'(", \"turn\": " COUNT)? '


class Quotable:
    """What can be quoted of a response: phrases, which are runs of whole words of one turn, and
    parts of them.

    Of a response with half a surrogate pair, which no answer can hold, nothing can be quoted.
    """

    def __init__(self, response: str) -> None:
        usable = not any("\ud800" <= char <= "\udfff" for char in response)
        turns = turns_of(response) if usable else ()
        self._names_turns = len(turns) > 1
        self._turns = [response[turn.start : turn.end] for turn in turns if turn.start < turn.end]
        self._words = [[turn[a:b] for a, b in pairwise(boundaries(turn))] for turn in self._turns]
        written = [[escaped(word).encode() for word in words] for words in self._words]
        self.words = sorted({word for words in written for word in words}, key=len)  # as in a string of z
        self._bodies = [(b"".join(words), [0, *accumulate(map(len, words))]) for words in written]

    def grammar(self, lead: str = "") -> str:
        """Return the Lark grammar (llguidance's dialect) of every z about the response.

        `lead` may stand before z.
        """
        head = _GRAMMAR % (f"({lead})?" if lead else "", NUMBER)
        if not self._turns:
            return head + _NO_ITEMS
        words, chars = (" | ".join(map(_substrings, pieces)) for pieces in (self._words, self._turns))
        return head + _ITEMS % (_TURN if self._names_turns else "", words, chars)

    def rest_of_word(self, begun: bytes) -> bytes:
        """Return the fewest bytes that complete the last word of a phrase; b"" if nothing does."""
        if not begun:
            return self.words[0] if self.words else b""
        rests = [
            body[place + len(begun) : starts[bisect_left(starts, place + len(begun))]]
            for body, starts in self._bodies
            for place in find_all(begun, body)
            if place in starts
        ]
        return min(rests, key=len, default=b"")


def keep_resolved(z: str, response: str) -> str:
    """Return a z of the grammar without the quotes that do not resolve; z itself if all of them
    do."""
    critique = parse(z, response)
    data = json.loads(z)
    spans = [span for name, label in _LISTS for span in _resolved(data.get(name, ()), response, label)]
    clear = isinstance(critique, Critique) and not (critique.quotes.unmatched or critique.quotes.ambiguous)
    if isinstance(critique, Critique) and clear and set(critique.spans) == set(spans):
        return z
    return render(Critique(text=data["critique"], spans=tuple(spans), score=data.get("score")), response)


def escaped(text: str) -> str:
    """Return text as it is written inside a string of z."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _resolved(items: Sequence[str | dict[str, Any]], response: str, label: Label) -> list[Span]:
    written: list[dict[str, Any]] = [{"quote": item} if isinstance(item, str) else item for item in items]
    names = ("occurrence", "part", "turn")
    quotes = [
        Quote(item["quote"], item.get("reason", ""), **{name: item[name] for name in names if name in item})
        for item in written
    ]
    return resolve(quotes, response, label).spans


def _substrings(chunks: Sequence[str]) -> str:
    """The terminal that matches any run of these texts, escaped as in z."""
    return f'%regex {{"substring_chunks": {json.dumps([escaped(chunk) for chunk in chunks], ensure_ascii=False)}}}'
