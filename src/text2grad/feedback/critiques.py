"""Critiques of a response, and failures to obtain one."""

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
    """Feedback on one response: free text, labelled spans, and a verdict in [-1, 1].

    Attributes:
        turn_scores: one verdict per turn of a `Transcript`, or empty.
        quotes: counts of the quotes without a span.
        lost: the quotes that are not in the response, where the critic recorded them.
        forced: 1 if the token limit ended the answer (grounded decoding closes it in time); for a
            vote, the number of such critiques.
        omissions: what the response leaves out, which no span can quote.
        meta: further data of the critic (a program: outcome, tier, evidence); copied to the
            feedback record.
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

        A quote is whole words that occur once. A quote listed k times means its first k
        occurrences. A quote that does not occur gives no span; it is counted in `quotes.unmatched`
        and kept in `lost`. A quote that occurs several times but is listed once gives no span
        either; it is counted in `quotes.ambiguous`.

        Args:
            response: the judged text; in a `Transcript`, only the policy's turns can be quoted.
            good: quotes of what is right.
            poor: quotes of what is wrong.
            score: the verdict, from -1 to 1.
            text: the critique in words.
            tolerance: how closely a quote must match the response.

        Returns:
            The critique, its spans in the order of the text.

        Raises:
            InvalidFields: the score is outside [-1, 1].
            UserError: `good` or `poor` is a string instead of a list.
        """
        from text2grad.feedback.quotes import Quote, resolve, sort_spans  # loads `regex`, unused in training

        if isinstance(good, str) or isinstance(poor, str):
            raise UserError("good and poor must be lists of quotes, not strings", 'poor=["next week"]')
        praised = resolve([*map(Quote, good)], response, 1, tolerance)
        blamed = resolve([*map(Quote, poor)], response, -1, tolerance)
        return cls(
            text=text,
            spans=sort_spans([*praised.spans, *blamed.spans]),
            score=score,
            quotes=praised.counts + blamed.counts,
            lost=(*praised.unmatched, *blamed.unmatched),
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
        """Make a critique from another program's JSON with character offsets.

        The keyword arguments name the keys of that JSON.

        Args:
            values: the JSON object.
            response: the judged text.
            spans: key of the list of spans; optional in the JSON.
            start: key of a span's first character (code points, from 0).
            end: key of the character after a span's last.
            kind: key of a span's kind.
            label: the label of each kind: 1 good, -1 poor, 0 neither; None: the kinds are these
                numbers.
            quote: key of a span's text, checked against the response; optional.
            reason: key of the reason for a span; optional.
            score: key of the verdict, from -1 to 1; optional.
            text: key of the critique in words; optional.

        Returns:
            The critique, its spans in the order of the JSON.

        Raises:
            InvalidCritique: the score is out of range, or an offset, kind or text of a span does
                not fit; names the first such span.
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
        """Number of good and poor quotes, with those that are unmatched or ambiguous."""
        return sum(span.label != 0 for span in self.spans) + self.quotes.unmatched + self.quotes.ambiguous


def _span_of(
    item: Any, response: str, labels: Mapping[Any, Label], keys: tuple[str, str, str, str, str], where: str
) -> Span:
    """Parse a span of another program's JSON; `keys` as in `Critique.from_dict`, in its order."""
    start, end, kind, quote, reason = keys
    if not isinstance(item, Mapping) or not {start, end, kind} <= item.keys():
        raise InvalidCritique(
            f"{where} is not an object with keys {start}, {end} and {kind}", "name its keys: start=, end=, kind="
        )
    first, last = item[start], item[end]
    if type(first) is not int or type(last) is not int or not 0 <= first < last <= len(response):
        raise InvalidCritique(
            f"{where}: [{first}, {last}) is not within the {len(response)} characters of the response",
            "count code points from 0; the end is exclusive",
        )
    words = response[first:last]
    if item.get(quote, words) != words:
        raise InvalidCritique(
            f"{where}: its text is {item[quote]!r}, but the response has {words!r} at these offsets",
            "check that the offsets refer to this response and count code points, not UTF-16 units",
        )
    if not isinstance(item[kind], str | int) or item[kind] not in labels:
        raise InvalidCritique(f"{where}: {kind} {item[kind]!r} has no label", f"label={{{item[kind]!r}: -1, ...}}")
    return Span(start=first, end=last, label=labels[item[kind]], text=words, reason=item.get(reason) or "")


class Failure(Record):
    """A critique that could not be obtained: a record, never a score or an empty critique.

    `kind` says why there is no critique; `message` gives the reason in one line, `raw` the critic's
    output. `meta` is further data of the critic, copied to the feedback record.
    """

    kind: FailureKind
    message: str
    raw: str = ""
    meta: dict[str, Any] = Field(default_factory=dict, exclude=True)


Judgement = Critique | Failure
