"""The quote grammar: which characters of a response a quoted phrase means.

A quote refers to one of its candidates: the places of the response where it occurs as whole words.
Scripts that put no spaces between words (CJK, Thai ...) have no such boundary, so there every place
is a candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from text2grad.feedback.locate import every_place, locate
from text2grad.feedback.shown import shown, tags_for
from text2grad.feedback.spans import Label, Place, QuoteCounts, Span, Tolerance
from text2grad.feedback.transcripts import Turn, is_foreign, turn_at, turns_of
from text2grad.unicode_words import inside_word


class Quote(NamedTuple):
    """One item of a span list: the quoted text, why it is quoted, and which candidate is meant
    (from 1).

    A `part` may begin and end inside a word: all its places in the response are candidates. Where a
    `turn` is named (from 1, of the policy's own), the candidates are those in it.
    """

    text: str
    reason: str = ""
    occurrence: int | None = None
    part: bool = False
    turn: int | None = None


class Resolved(NamedTuple):
    """The spans of each quote, what became of the other quotes, those that are not in the response,
    and those that occur more than once without saying which.
    """

    by_quote: list[list[Span]]
    counts: QuoteCounts
    lost: list[str]
    unclear: list[str]

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order of their quotes."""
        return [span for spans in self.by_quote for span in spans]


def occurrences(quote: str, response: str, part: bool = False, turn: int | None = None) -> list[int]:
    """Where the candidates of `quote` start in `response`, in order; occurrences may overlap.

    `art` is not found inside `start` unless it is a `part`, and nothing across turns.
    """
    if not quote:
        return []
    places = [
        (start, start + len(quote))
        for start in every_place(quote, response)
        if part or not (inside_word(response, start) or inside_word(response, start + len(quote)))
    ]
    return [start for start, _ in in_turn(places, response, turn)]


def in_turn(places: Sequence[Place], response: str, turn: int | None = None) -> list[Place]:
    """Those places that are within one turn of a response; with `turn`, within that one."""
    chosen = _chosen(response, turn)
    return [place for place in places if any(each.start <= place[0] and place[1] <= each.end for each in chosen)]


def _chosen(response: str, turn: int | None) -> tuple[Turn, ...]:
    turns = turns_of(response)
    return turns if turn is None else turns[turn - 1 : turn]


def resolve(quotes: Sequence[Quote], response: str, label: Label, tolerance: Tolerance = "exact") -> Resolved:
    """Turn the quotes of one label's list into spans.

    The k-th repeat of a quote without `occurrence` is its k-th candidate; more repeats than
    candidates are unmatched, and so are quotes of a tool or a user in a `Transcript`, which are
    counted as foreign too. A single quote with several candidates means none of them. A blank quote
    says nothing unless its `occurrence` does, or it is an indentation: longer than one character
    and there once.
    """
    mentions = Counter(_key(quote) for quote in quotes if quote.occurrence is None)
    seen: Counter[Key] = Counter()
    normalised = 0
    by_quote: list[list[Span]] = []
    lost: list[str] = []
    unclear: list[str] = []
    known: dict[Key, tuple[list[Place], bool]] = {}
    for quote in quotes:
        if (key := _key(quote)) not in known:
            known[key] = _candidates(quote, response, tolerance)
        places, exact = known[key]
        if quote.occurrence is not None:
            chosen = places[quote.occurrence - 1 : quote.occurrence]
        elif not quote.text.strip():
            chosen = places if len(places) == 1 < len(quote.text) else []
        elif mentions[key] > 1:
            chosen = places[seen[key] :][:1]
            seen[key] += 1
        elif len(places) > 1:
            unclear.append(quote.text)
            by_quote.append([])
            continue
        else:
            chosen = places
        if chosen:
            normalised += not exact
        else:
            lost.append(quote.text)
        by_quote.append(_spans(chosen, quote, response, label))
    foreign = sum(is_foreign(quote, response) for quote in lost)
    found = QuoteCounts(unmatched=len(lost), foreign=foreign, ambiguous=len(unclear), normalised=normalised)
    return Resolved(by_quote, found, lost, unclear)


def _candidates(quote: Quote, response: str, tolerance: Tolerance) -> tuple[list[Place], bool]:
    """Return the candidates of a quote, and whether they stand there to the letter."""
    exact = _exact(quote, response) or in_turn(_quoted_as_shown(quote, response), response, quote.turn)
    if exact or not quote.text.strip():
        return exact, True
    return locate(quote.text, response, _chosen(response, quote.turn), tolerance), False


def _exact(quote: Quote, response: str) -> list[Place]:
    starts = occurrences(quote.text, response, quote.part, quote.turn)
    return [(start, start + len(quote.text)) for start in starts]


def _quoted_as_shown(quote: Quote, response: str) -> list[Place]:
    """Where a quote stands that a critic copied with the marks of `feedback.shown` in it."""
    seen = shown(response, tags_for(response))
    if not seen.marks:
        return []
    places = [(seen.place(start), seen.place(end)) for start, end in _exact(quote._replace(turn=None), seen.text)]
    return [(start, end) for start, end in places if start < end]


Key = tuple[str, bool, int | None]
"""What says of a quote which its candidates are: its text, whether it is a part, and its turn."""


def _key(quote: Quote) -> Key:
    return quote.text, quote.part, quote.turn


def _spans(places: Sequence[Place], quote: Quote, response: str, label: Label) -> list[Span]:
    return [
        Span(start=start, end=end, label=label, text=response[start:end], reason=quote.reason)
        for start, end in places
    ]


def in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans sorted by (start, end, good before poor), each once."""
    return tuple(dict.fromkeys(sorted(spans, key=lambda span: (span.start, span.end, -span.label))))


def to_quotes(spans: Sequence[Span], response: str) -> list[Quote]:
    """Quotes that `resolve` turns back into exactly these spans.

    Raises:
        ValueError: a span does not quote the response.
    """
    turns = [turn_at(response, span.start) for span in spans]
    mentions = Counter((span.text, turn) for span, turn in zip(spans, turns, strict=True))
    return [
        _to_quote(span, response, turn, mentions[span.text, turn] > 1)
        for span, turn in zip(spans, turns, strict=True)
    ]


def _to_quote(span: Span, response: str, turn: int, repeated: bool) -> Quote:
    if response[span.start : span.end] != span.text:
        raise ValueError(f"the response does not read {span.text!r} at [{span.start}, {span.end})")
    starts = occurrences(span.text, response)
    part = span.start not in starts
    if part:
        starts = occurrences(span.text, response, part=True)
    single = not repeated and bool(span.text.strip())
    if single and len(starts) == 1:
        return Quote(span.text, span.reason, None, part)
    if len(turns_of(response)) == 1:
        return Quote(span.text, span.reason, starts.index(span.start) + 1, part)
    there = occurrences(span.text, response, part, turn)
    which = None if single and len(there) == 1 else there.index(span.start) + 1
    return Quote(span.text, span.reason, which, part, turn)
