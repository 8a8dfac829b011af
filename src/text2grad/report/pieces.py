"""Cut a response into pieces by its spans and tokens; what the spans say of each token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from text2grad.feedback import Span
from text2grad.report.folder import Sample
from text2grad.report.visible import visible

Interval = tuple[int, int]
Piece = tuple[str, list[int], list[int]]  # visible text, indices of its spans, indices of its tokens

LABEL_OF_SIGNS = {(): "", (-1,): "poor", (1,): "good", (-1, 1): "both"}


def pieces(response: str, spans: Sequence[Span], intervals: Sequence[Interval] = ()) -> list[Piece]:
    """Cut `response` wherever a span or a token begins or ends.

    A character may lie in several spans and, where tokens split it, in several tokens. The texts
    concatenate to `visible(response)`.
    """
    in_spans = _cover(len(response), [(span.start, span.end) for span in spans])
    in_tokens = _cover(len(response), intervals)
    keyed = groupby(range(len(response)), key=lambda i: (in_spans[i], in_tokens[i]))
    return [
        (visible("".join(response[i] for i in positions)), list(of_spans), list(of_tokens))
        for (of_spans, of_tokens), positions in keyed
    ]


def token_labels(sample: Sample) -> list[str]:
    """What the spans say of each token: "good", "poor", "both" or "".

    Computed from the characters alone (without white space), so that it can be checked against `delta`.
    """
    in_spans = _cover(len(sample.response), [(span.start, span.end) for span in sample.spans])
    result = []
    for start, end in zip(sample.starts, sample.ends, strict=False):
        inside = range(max(start, 0), min(end, len(in_spans)))
        found = {
            sample.spans[index].label
            for position in inside
            if not sample.response[position].isspace()
            for index in in_spans[position]
        }
        result.append(LABEL_OF_SIGNS[tuple(sorted(found))])
    return result


def _cover(length: int, intervals: Sequence[Interval]) -> list[tuple[int, ...]]:
    """For each position the indices of the intervals it lies in."""
    cover: list[tuple[int, ...]] = [()] * length
    for index, (start, end) in enumerate(intervals):
        for position in range(max(start, 0), min(end, length)):
            cover[position] += (index,)
    return cover
