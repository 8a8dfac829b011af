"""Samples of a PPO run as the viewer shows them: coloured pieces, the token strip, and automatic checks.

A sample view is plain JSON data; page.js only lays it out. Everything textual in it has gone through `visible`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from text2grad.feedback import Message, Span
from text2grad.report.folder import Method, Numbers, Sample
from text2grad.report.visible import token_label, visible

STRIP_ROWS = ("delta", "kl", "reward", "value", "advantage")
TOKEN_LISTS = ("starts", "ends", *STRIP_ROWS, "logp")
BUDGET = 1_600_000  # characters of JSON: keeps the page under 3 MB beside its curves
LABELS = {1: "good", -1: "poor"}


def sample_views(methods: Sequence[Method], budget: int = BUDGET) -> tuple[list[dict[str, Any]], int]:
    """Views of the samples of all methods, and how many samples were left out to keep to `budget` characters.

    When there are too many, every k-th of each method is kept, so that early and late steps both stay.
    """
    views = [[sample_view(sample, method.name) for sample in method.samples] for method in methods]
    size = sum(len(json.dumps(view)) for group in views for view in group)
    stride = max(1, math.ceil(size / budget))
    kept = [view for group in views for view in group[::stride]]
    return kept, sum(map(len, views)) - len(kept)


def sample_view(sample: Sample, method: str) -> dict[str, Any]:
    """One sample as plain JSON data: texts, pieces, spans, checks, and for each token its label and numbers."""
    intervals = list(zip(sample.starts, sample.ends, strict=False))
    return {
        "method": visible(method),
        "step": sample.step,
        "id": visible(sample.id),
        "prompt": message_views(sample.prompt),
        "critique": visible(sample.critique),
        "failure": visible(f"{sample.failure.kind}: {sample.failure.message}") if sample.failure else None,
        "score": _rounded(sample.score),
        "spans": [span_view(span) for span in sample.spans],
        "pieces": pieces(sample.response, sample.spans, intervals),
        "tokens": [token_label(token) for token in sample.tokens],
        "labels": token_labels(sample),
        "intervals": intervals,
        "rows": {name: [_rounded(x) for x in numbers] for name, numbers in _rows(sample)},
        "checks": list(checks(sample)),
    }


def message_views(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Chat turns for display."""
    return [{"role": message.role, "content": visible(message.content)} for message in messages]


def span_view(span: Span) -> dict[str, Any]:
    """A span for display: its label in words, its quote, why."""
    return {"label": LABELS[span.label], "text": visible(span.text), "reason": visible(span.reason)}


def pieces(
    response: str, spans: Sequence[Span], intervals: Sequence[tuple[int, int]] = ()
) -> list[tuple[str, list[int], list[int]]]:
    """Cut a response wherever a span or a token begins or ends: (visible text, its spans, its tokens).

    Spans and tokens are given by their index; a character may lie in several of either. The texts
    concatenate to `visible(response)`.
    """
    in_spans = _cover(len(response), [(span.start, span.end) for span in spans])
    in_tokens = _cover(len(response), intervals)
    keyed = groupby(range(len(response)), key=lambda i: (in_spans[i], in_tokens[i]))
    return [
        (visible("".join(response[i] for i in positions)), list(of_spans), list(of_tokens))
        for (of_spans, of_tokens), positions in keyed
    ]


def _cover(length: int, intervals: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    cover: list[tuple[int, ...]] = [()] * length
    for index, (start, end) in enumerate(intervals):
        for position in range(max(start, 0), min(end, length)):
            cover[position] += (index,)
    return cover


def token_labels(sample: Sample) -> list[str]:
    """What the spans say of each token: "good", "poor", "both" or "". Read from characters, not from delta."""
    in_spans = _cover(len(sample.response), [(span.start, span.end) for span in sample.spans])
    names = {(): "", (-1,): "poor", (1,): "good", (-1, 1): "both"}
    result = []
    for start, end in zip(sample.starts, sample.ends, strict=False):
        visible_characters = (i for i in range(start, min(end, len(in_spans))) if not sample.response[i].isspace())
        found = {sample.spans[index].label for i in visible_characters for index in in_spans[i]}
        result.append(names[tuple(sorted(found))])
    return result


def checks(sample: Sample) -> Iterator[str]:
    """What looks wrong in a sample, one sentence each: lengths, shifts, padding, signs, a silent value head."""
    count = len(sample.tokens)
    for name in TOKEN_LISTS:
        length = len(getattr(sample, name))
        if length not in (0, count):
            yield f"{name} has {length} entries for {count} tokens."
    yield from _check_texts(sample)
    if sample.failure is None:
        yield from _check_labels(sample)
    yield from _check_rewards(sample)


def _check_texts(sample: Sample) -> Iterator[str]:
    for index, token, start, end in zip(
        range(len(sample.tokens)), sample.tokens, sample.starts, sample.ends, strict=False
    ):
        there = sample.response[start:end]
        if end > start and "\ufffd" not in token and token != there:
            yield visible(
                f"Token {index} is {token!r} but its characters {start}–{end} are {there!r}: offsets shifted?"
            )
            break
    for span in sample.spans:
        there = sample.response[span.start : span.end]
        if there != span.text:
            yield visible(f"Span {span.start}–{span.end} quotes {span.text!r} but the response has {there!r} there.")
    empty = [start == end for start, end in zip(sample.starts, sample.ends, strict=False)]
    trailing = next((n for n, is_empty in enumerate(reversed(empty)) if not is_empty), len(empty))
    if trailing > 1:
        yield f"The last {trailing} tokens have no characters: padding inside the mask?"


def _check_labels(sample: Sample) -> Iterator[str]:
    """Spans against delta, without the last token: the outcome reward may sit there, whatever the spans say."""
    signs = [_LABEL_SIGN[label] for label in token_labels(sample)]
    pairs = list(zip(signs, (x or 0.0 for x in sample.delta), strict=False))[:-1]
    wrong = sum(1 for sign, delta in pairs if sign * delta < 0)
    if wrong:
        yield f"{wrong} tokens have a delta of the other sign than their span."
    missed = sum(1 for sign, delta in pairs if sign and not delta)
    if missed and any(delta for _, delta in pairs):
        yield f"{missed} tokens inside a span have no delta."


_LABEL_SIGN = {"good": 1, "poor": -1, "both": 0, "": 0}


def _check_rewards(sample: Sample) -> Iterator[str]:
    if sample.value and not any(sample.value):
        yield "The value is 0 on every token: the value head has not learned anything yet."
    pairs = [(d, a) for d, a in zip(sample.delta, sample.advantage, strict=False) if d and a is not None]
    wrong = sum(1 for delta, advantage in pairs if delta * advantage < 0)
    if wrong:
        yield f"{wrong} of {len(pairs)} tokens with a delta have an advantage of the other sign."
    triples = zip(sample.delta, sample.kl, sample.reward, strict=False)
    if any((r or 0.0) > (d or 0.0) + 1e-6 for d, kl, r in triples if (kl or 0.0) > 0):
        yield "The reward exceeds delta where KL is positive: sign of the KL penalty?"


def _rows(sample: Sample) -> list[tuple[str, Numbers]]:
    return [(name, getattr(sample, name)) for name in (*STRIP_ROWS, "logp") if getattr(sample, name)]


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None
