"""What looks wrong in a written sample, found by rule: lengths, shifts, padding, signs, a silent value head.

Each finding is one sentence. A sound sample has none, so every flagged sample is worth a look.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from text2grad.report.folder import Sample
from text2grad.report.pieces import token_labels
from text2grad.report.visible import visible

PER_TOKEN = ("starts", "ends", "delta", "kl", "reward", "value", "advantage", "logp")
SIGNS = {"good": 1, "poor": -1, "both": 0, "": 0}


def checks(sample: Sample) -> Iterator[str]:
    """The findings of one sample."""
    yield from _lengths(sample)
    yield from _token_texts(sample)
    yield from _span_texts(sample)
    yield from _padding(sample)
    if sample.failure is None and sample.as_marked:
        yield from _labels_against_delta(sample)
    yield from _numbers(sample)


def _lengths(sample: Sample) -> Iterator[str]:
    for name in PER_TOKEN:
        length = len(getattr(sample, name))
        if length not in (0, len(sample.tokens)):
            yield f"{name} has {length} entries for {len(sample.tokens)} tokens."


def _token_texts(sample: Sample) -> Iterator[str]:
    """The first token whose text is not the text at its offsets; split characters (U+FFFD) are ignored."""
    for index, (token, start, end) in enumerate(zip(sample.tokens, sample.starts, sample.ends, strict=False)):
        there = sample.response[start:end]
        if end > start and "\ufffd" not in token and token != there:
            text = f"Token {index + 1} is {token!r} but characters {start}–{end} are {there!r}: offsets shifted?"
            yield visible(text)
            return


def _span_texts(sample: Sample) -> Iterator[str]:
    for span in sample.spans:
        there = sample.response[span.start : span.end]
        if there != span.text:
            where = f"Span {span.start}–{span.end}"
            yield visible(f"{where} quotes {span.text!r} but the response has {there!r} there.")


def _padding(sample: Sample) -> Iterator[str]:
    trailing = 0
    for start, end in zip(sample.starts, sample.ends, strict=False):
        trailing = trailing + 1 if start == end else 0
    if trailing > 1:
        yield f"The last {trailing} tokens have no characters: padding inside the mask?"


def _labels_against_delta(sample: Sample) -> Iterator[str]:
    """All tokens but the last, where the verdict may be paid.

    No finding when no other token has a delta: then the credit scheme pays the last token only.
    """
    signs = [SIGNS[label] for label in token_labels(sample)]
    pairs = list(zip(signs, (x or 0.0 for x in sample.delta), strict=False))[:-1]
    wrong = sum(sign * delta < 0 for sign, delta in pairs)
    if wrong:
        yield f"Tokens with a delta of the other sign than their span: {wrong}."
    missed = sum(bool(sign) and not delta for sign, delta in pairs)
    if missed and any(delta for _, delta in pairs):
        yield f"Tokens inside a span without a delta: {missed}."


def _numbers(sample: Sample) -> Iterator[str]:
    if sample.value and not any(sample.value):
        yield "The value is 0 on every token: the value head has learned nothing yet."
    triples = zip(sample.delta, sample.kl, sample.reward, strict=False)
    if any((reward or 0.0) > (delta or 0.0) + 1e-6 for delta, kl, reward in triples if (kl or 0.0) > 0):
        yield "The reward exceeds delta where KL is positive: sign of the KL penalty?"
    if any(x is None or not math.isfinite(x) for name in PER_TOKEN[2:] for x in getattr(sample, name)):
        yield "Some numbers are not finite."
