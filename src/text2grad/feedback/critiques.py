"""Critiques of a response, and the failures in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from text2grad.errors import InvalidCritique, InvalidFields, UserError
from text2grad.feedback.spans import Label, QuoteCounts, Span, Tolerance
from text2grad.feedback.transcripts import Record

FailureKind = Literal["refused", "invalid", "truncated", "exhausted", "unsupported"]
TurnScore = Annotated[float, Field(strict=True, ge=-1.0, le=1.0)] | None


class Critique(Record):
    """Feedback on one response: free text, the spans that it is about, and a verdict in [-1, 1].

    `score`: None without a verdict. `turn_scores`: the verdicts on the turns of a `Transcript`, or
    empty. `quotes` counts the quotes without a span; `lost` are those not in the response, as far
    as known. `forced`: 1 if the token limit ended the answer (grounded decoding closes it in time);
    of several critiques that voted, their number. `omissions`: what the response leaves out, which
    no span can quote. `meta`: what else the critic knows (a program: outcome, tier, evidence);
    copied to the feedback record.
    """

    text: str
    spans: tuple[Span, ...] = ()
    score: float | None = Field(default=None, ge=-1.0, le=1.0)
    turn_scores: tuple[TurnScore, ...] = ()
    quotes: QuoteCounts = QuoteCounts()
    forced: int = 0
    lost: tuple[str, ...] = ()
    omissions: tuple[str, ...] = ()
    meta: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_quotes(
        cls,
        response: str,
        *,
        good: Sequence[str] = (),
        poor: Sequence[str] = (),
        score: float | None = None,
        text: str = "",
        tolerance: Tolerance = "exact",
    ) -> Self:
        """Make a critique from quotes of the response.

        A quote is whole words that occur once; if it is listed k times, it means the first k
        occurrences. A quote that does not occur gives no span, is counted in `quotes.unmatched` and
        is kept in `lost`. One that occurs several times and is listed once gives no span and is
        counted in `quotes.ambiguous`.

        Args:
            response: the text that is judged; of a `Transcript`, only the policy's own words can be
                quoted.
            good: what is right in it, quoted.
            poor: what is wrong in it, quoted.
            score: the verdict, from -1 to 1.
            text: the critique in words.
            tolerance: how far a quote may be from the letter of the response.

        Returns:
            The critique, its spans in the order of the text.

        Raises:
            InvalidFields: the score is not from -1 to 1.
            UserError: a string stands where a list of quotes should.
        """
        from text2grad.feedback.quotes import Quote, in_order, resolve  # loads `regex`, unused in training

        if isinstance(good, str) or isinstance(poor, str):
            raise UserError("good and poor are lists of quotes, and one is a string", 'poor=["next week"]')
        praised = resolve([*map(Quote, good)], response, 1, tolerance)
        blamed = resolve([*map(Quote, poor)], response, -1, tolerance)
        return cls(
            text=text,
            spans=in_order([*praised.spans, *blamed.spans]),
            score=score,
            quotes=praised.counts + blamed.counts,
            lost=(*praised.lost, *blamed.lost),
        )

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, Any],
        response: str,
        *,
        spans: str = "spans",
        start: str = "start",
        end: str = "end",
        kind: str = "label",
        label: Mapping[Any, Label] | None = None,
        quote: str = "text",
        reason: str = "reason",
        score: str = "score",
        text: str = "text",
    ) -> Self:
        """Make a critique of another program's JSON, whose spans are offsets; the arguments name
        its keys.

        Args:
            values: the JSON object.
            response: the text that is judged.
            spans: the list of spans; without it there are none.
            start: of a span, its first character (code points, from 0).
            end: of a span, the character after its last.
            kind: of a span, what it is.
            label: what each kind is worth: 1 good, -1 poor, 0 neither; without it, kinds are these
                numbers.
            quote: of a span, its text, which is compared with the response where it is given.
            reason: of a span, why it is marked, where it is given.
            score: the verdict, from -1 to 1, where it is given.
            text: the critique in words, where it is given.

        Returns:
            The critique, its spans in the order of the list.

        Raises:
            InvalidCritique: the score, or an offset, kind or text of a span does not fit; names the
                first span.
        """
        labels: Mapping[Any, Label] = {1: 1, 0: 0, -1: -1} if label is None else label
        items = values.get(spans, [])
        if not isinstance(items, list | tuple):
            raise InvalidCritique(f"{spans} is a {type(items).__name__}", "a list of spans")
        try:
            labelled_spans = tuple(
                _span_of(item, response, labels, (start, end, kind, quote, reason), f"{spans}[{number}]")
                for number, item in enumerate(items)
            )
            return cls(text=values.get(text) or "", spans=labelled_spans, score=values.get(score))
        except InvalidFields as error:
            raise InvalidCritique(error.problem, "a score is a number from -1 to 1, a text a string") from error

    @property
    def quote_count(self) -> int:
        """The number of quotes that pay: spans that are good or poor, unmatched and ambiguous
        quotes."""
        return sum(span.label != 0 for span in self.spans) + self.quotes.unmatched + self.quotes.ambiguous


def _span_of(
    item: Any, response: str, labels: Mapping[Any, Label], keys: tuple[str, str, str, str, str], where: str
) -> Span:
    """Read a span of another program's JSON; `keys` are those of `Critique.from_dict`, in its
    order."""
    start, end, kind, quote, reason = keys
    if not isinstance(item, Mapping) or not {start, end, kind} <= item.keys():
        raise InvalidCritique(
            f"{where} is not an object with {start}, {end} and {kind}", "name its keys: start=, end=, kind="
        )
    first, last = item[start], item[end]
    if type(first) is not int or type(last) is not int or not 0 <= first < last <= len(response):
        raise InvalidCritique(
            f"{where}: [{first}, {last}) is not within the {len(response)} characters of the response",
            "offsets count code points from 0, the end is after the last",
        )
    words = response[first:last]
    if item.get(quote, words) != words:
        raise InvalidCritique(
            f"{where}: its text is {item[quote]!r}, the response has {words!r} there",
            "is it of another text, or in UTF-16?",
        )
    if not isinstance(item[kind], str | int) or item[kind] not in labels:
        raise InvalidCritique(f"{where}: {kind} {item[kind]!r} has no label", f"label={{{item[kind]!r}: -1, ...}}")
    return Span(start=first, end=last, label=labels[item[kind]], text=words, reason=item.get(reason) or "")


class Failure(Record):
    """A critique that could not be obtained. It is a record, never a score and never an empty
    critique.

    `kind`: its kind; `message`: the reason, in a line; `raw`: what the critic wrote. `meta`: what
    else the critic knows; copied to the feedback record.
    """

    kind: FailureKind
    message: str
    raw: str = ""
    meta: dict[str, Any] = Field(default_factory=dict, exclude=True)


Judgement = Critique | Failure
