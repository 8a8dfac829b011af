"""Build the grammar of every z whose quotes are passages of one response (grounded decoding).

A grammar cannot count: it allows a plain quote that occurs twice, and a fifth occurrence that does
not exist. `drop_unresolved` removes such quotes from a finished answer.
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
"""A verdict from -1 to 1 as Python prints it; numbers below 1e-04 have an exponent."""
_LISTS: tuple[tuple[str, Label], ...] = (("good_spans", 1), ("poor_spans", -1), (IMPROVABLE, 0))

# The format of `render`: its separators, its order of keys, its escapes, numbers as Python prints.
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
item: PHRASE | "{\"quote\": " (PHRASE place | PIECE place ", \"part\": true") (", \"reason\": " STRING)? "}"%s
place: %s(", \"occurrence\": " COUNT)?
COUNT: /[1-9][0-9]{0,4}/
PHRASE: "\"" WORDS "\""
PIECE: "\"" CHARS "\""
WORDS: (%s) & /(?s:.)+/
CHARS: (%s) & /(?s:.)+/
"""
_QUOTE_LAST = r""" | (place_first note? | "{\"reason\": " STRING) ", \"quote\": " PHRASE "}"
    | (place_first ", \"part\": true" | "{\"part\": true") note? ", \"quote\": " PIECE "}"
place_first: "{\"turn\": " COUNT (", \"occurrence\": " COUNT)? | "{\"occurrence\": " COUNT
note: ", \"reason\": " STRING"""
"""As `render` writes an item whose quote the response continues like the next key of an object.

The engine's lexer never goes back: each opening brace is one literal with its first key."""
_TURN = r'(", \"turn\": " COUNT)? '


class QuotableText:
    """The passages of a response that can be quoted.

    These are phrases, which are runs of complete words of one turn, and parts of phrases. Nothing
    can be quoted from a response with an unpaired surrogate, which no answer can contain.
    """

    def __init__(self, response: str) -> None:
        usable = not any("\ud800" <= char <= "\udfff" for char in response)
        turns = turns_of(response) if usable else ()
        self._names_turns = len(turns) > 1
        self._turns = [response[turn.start : turn.end] for turn in turns if turn.start < turn.end]
        self._words = [[turn[a:b] for a, b in pairwise(boundaries(turn))] for turn in self._turns]
        escaped = [[escape(word).encode() for word in words] for words in self._words]
        self.words = sorted({word for words in escaped for word in words}, key=len)  # as in a string of z
        self._bodies = [(b"".join(words), [0, *accumulate(map(len, words))]) for words in escaped]

    def grammar(self, lead: str) -> str:
        """Return the Lark grammar (llguidance's dialect) of every z about the response.

        `lead` is a pattern of optional text before z.
        """
        head = _GRAMMAR % (f"({lead})?" if lead else "", NUMBER)
        if not self._turns:
            return head + _NO_ITEMS
        words, chars = (" | ".join(map(_substring_terminal, pieces)) for pieces in (self._words, self._turns))
        keys = ("turn", "occurrence", "part", "reason")
        last = _QUOTE_LAST if any(f'", "{key}' in turn for turn in self._turns for key in keys) else ""
        return head + _ITEMS % (last, _TURN if self._names_turns else "", words, chars)

    def complete_word(self, prefix: bytes) -> bytes:
        """Return the fewest bytes that complete the last word of a phrase, b"" if impossible."""
        if not prefix:
            return self.words[0] if self.words else b""
        endings = [
            body[place + len(prefix) : starts[bisect_left(starts, place + len(prefix))]]
            for body, starts in self._bodies
            for place in find_all(prefix, body)
            if place in starts
        ]
        return min(endings, key=len, default=b"")


def drop_unresolved(z: str, response: str) -> str:
    """Return `z`, which must match the grammar, without quotes that have no unique place."""
    critique = parse(z, response)
    data = json.loads(z)
    spans = [span for name, label in _LISTS for span in _resolve_items(data.get(name, ()), response, label)]
    if (
        isinstance(critique, Critique)
        and not (critique.quotes.unmatched or critique.quotes.ambiguous)
        and set(critique.spans) == set(spans)
    ):
        return z
    return render(Critique(text=data["critique"], spans=tuple(spans), score=data.get("score")), response)


def escape(text: str) -> str:
    """Return text as it appears inside a string of z."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _resolve_items(items: Sequence[str | dict[str, Any]], response: str, label: Label) -> list[Span]:
    objects: list[dict[str, Any]] = [{"quote": item} if isinstance(item, str) else item for item in items]
    names = ("occurrence", "part", "turn")
    quotes = [
        Quote(item["quote"], item.get("reason", ""), **{name: item[name] for name in names if name in item})
        for item in objects
    ]
    return resolve(quotes, response, label).spans


def _substring_terminal(chunks: Sequence[str]) -> str:
    """Return a terminal that matches any run of these texts, escaped as in z."""
    return f'%regex {{"substring_chunks": {json.dumps([escape(chunk) for chunk in chunks], ensure_ascii=False)}}}'
