"""The quote grammar: resolve quoted phrases to characters of a response.

The candidates of a quote are its whole-word occurrences in the response. Scripts without spaces
between words (CJK, Thai ...) have no word boundaries, so every occurrence is a candidate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from text2grad.feedback.escaping import escape, reserved_tags
from text2grad.feedback.locate import find_all, locate
from text2grad.feedback.spans import Label, Place, QuoteCounts, Span, Tolerance, sort_by_place
from text2grad.feedback.transcripts import Turn, is_foreign, turn_at, turns_of
from text2grad.unicode_words import inside_word


class Quote(NamedTuple):
    """One item of a span list: the quoted text, the reason, and the candidate it means.

    `occurrence` and `turn` count from 1. A `part` may start and end inside a word, so all its
    occurrences are candidates. With `turn`, only that turn of the policy is searched.
    """

    text: str
    reason: str = ""
    occurrence: int | None = None
    part: bool = False
    turn: int | None = None


class Resolved(NamedTuple):
    """The spans of each quote, counts of the quotes without a span, and the texts of those quotes.

    `unmatched` quotes are not in the response. `ambiguous` quotes occur more than once and do not
    name an occurrence.
    """

    by_quote: list[list[Span]]
    counts: QuoteCounts
    unmatched: list[str]
    ambiguous: list[str]

    @property
    def spans(self) -> list[Span]:
        """All spans, in the order of their quotes."""
        return [span for spans in self.by_quote for span in spans]


def occurrences(quote: str, response: str, part: bool = False, turn: int | None = None) -> list[int]:
    """Return the start of every candidate of `quote` in `response`, in order; they may overlap.

    `art` does not match inside `start` unless it is a `part`. No match crosses turns.
    """
    if not quote:
        return []
    places = [
        (start, start + len(quote))
        for start in find_all(quote, response)
        if part or not (inside_word(response, start) or inside_word(response, start + len(quote)))
    ]
    return [start for start, _ in within_turn(places, response, turn)]


def within_turn(places: Sequence[Place], response: str, turn: int | None) -> list[Place]:
    """Return the places that lie within a single turn; with `turn`, within that turn."""
    turns = _search_turns(response, turn)
    return [(start, end) for start, end in places if any(turn.start <= start and end <= turn.end for turn in turns)]


def _search_turns(response: str, turn: int | None) -> tuple[Turn, ...]:
    turns = turns_of(response)
    return turns if turn is None else turns[turn - 1 : turn]


def resolve(quotes: Sequence[Quote], response: str, label: Label, tolerance: Tolerance = "exact") -> Resolved:
    """Resolve the quotes of one label to spans.

    The k-th repeat of a quote without `occurrence` means its k-th candidate; surplus repeats are
    unmatched. Quotes of a tool or a user in a `Transcript` are unmatched and counted as foreign. A
    quote that is listed once but has several candidates is ambiguous. A blank quote is unmatched
    unless it names its `occurrence` or is an indentation: several characters that occur once.
    """
    mentions = Counter(_key(quote) for quote in quotes if quote.occurrence is None)
    repeats: Counter[Key] = Counter()
    normalised = 0
    by_quote: list[list[Span]] = []
    unmatched: list[str] = []
    ambiguous: list[str] = []
    candidates: dict[Key, tuple[list[Place], bool]] = {}
    for quote in quotes:
        if (key := _key(quote)) not in candidates:
            candidates[key] = _candidates(quote, response, tolerance)
        places, is_exact = candidates[key]
        if quote.occurrence is not None:
            places = places[quote.occurrence - 1 : quote.occurrence]
        elif not quote.text.strip():
            places = places if len(places) == 1 < len(quote.text) else []
        elif mentions[key] > 1:
            places = places[repeats[key] :][:1]
            repeats[key] += 1
        elif len(places) > 1:
            ambiguous.append(quote.text)
            by_quote.append([])
            continue
        if places:
            normalised += not is_exact
        else:
            unmatched.append(quote.text)
        by_quote.append(
            [
                Span(start=start, end=end, label=label, text=response[start:end], reason=quote.reason)
                for start, end in places
            ]
        )
    counts = QuoteCounts(
        unmatched=len(unmatched),
        foreign=sum(is_foreign(quote, response) for quote in unmatched),
        ambiguous=len(ambiguous),
        normalised=normalised,
    )
    return Resolved(by_quote, counts, unmatched, ambiguous)


def _candidates(quote: Quote, response: str, tolerance: Tolerance) -> tuple[list[Place], bool]:
    """Return the candidates of a quote, and whether they match it to the letter."""
    exact = _exact_places(quote, response)
    exact = exact or within_turn(_escaped_places(quote, response), response, quote.turn)
    if exact or not quote.text.strip():
        return exact, True
    return locate(quote.text, response, _search_turns(response, quote.turn), tolerance), False


def _exact_places(quote: Quote, response: str) -> list[Place]:
    starts = occurrences(quote.text, response, quote.part, quote.turn)
    return [(start, start + len(quote.text)) for start in starts]


def _escaped_places(quote: Quote, response: str) -> list[Place]:
    """Return the matches of a quote that a critic copied with escape marks (`escaping`)."""
    escaped = escape(response, reserved_tags(response))
    if not escaped.marks:
        return []
    matches = _exact_places(quote._replace(turn=None), escaped.text)
    places = [(escaped.source_index(start), escaped.source_index(end)) for start, end in matches]
    return [(start, end) for start, end in places if start < end]


Key = tuple[str, bool, int | None]
"""The fields of a quote that decide its candidates: text, part and turn."""


def _key(quote: Quote) -> Key:
    return quote.text, quote.part, quote.turn


def sort_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the distinct spans, sorted by place."""
    return tuple(dict.fromkeys(sort_by_place(spans)))


def to_quotes(spans: Sequence[Span], response: str) -> list[Quote]:
    """Return quotes that `resolve` turns back into exactly these spans.

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
    starts = occurrences(span.text, response, part, turn)
    occurrence = None if single and len(starts) == 1 else starts.index(span.start) + 1
    return Quote(span.text, span.reason, occurrence, part, turn)
