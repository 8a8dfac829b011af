"""Judged responses as the page shows them: samples of a PPO run with their checks, and records of a feedback file.

A sample view is plain JSON data; the script only lays it out. `all_visible` makes its texts harmless.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple

from text2grad.feedback import Critique, Feedback, Judgement, Message, QuoteCounts, Span, Transcript, turns_of
from text2grad.report.curves import number, without_dust
from text2grad.report.folder import Method, Sample
from text2grad.report.visible import all_visible, token_label, visible

Piece = tuple[str, list[int], list[int]]  # visible text, indices of its spans, indices of its tokens

LABEL_OF_SIGNS = {(): "", (-1,): "poor", (1,): "good", (-1, 1): "both"}
SIGNALS = {
    "delta": "the critique in token rewards (pseudo-reward)",
    "advantage": "what the update is weighted by",
    "reward": "delta − β·KL",
    "kl": "distance from the reference policy, nats",
    "value": "V before the token",
    "logp": "log-probability when it was sampled",
    "logp_change": "log-probability when it was sampled minus that of the policy at its start",
    "ratio": "probability in the last epoch of the step's update over that when it was sampled",
    "entropy": "of the policy before the token, nats",
    "learned": "mask: 1 where the token is in the loss, 0 where it is left out",
}
"""The numbers of a token, and what each is."""
PER_TOKEN = ("starts", "ends", *SIGNALS)
SUMS = {"delta": "delta", "kl": "KL", "reward": "reward"}
LABELS = {1: "good", 0: "improvable", -1: "poor"}
BUDGET = 1_600_000  # characters of JSON: with the curves, the page stays under 3 MB
SIGNS = {"good": 1, "poor": -1, "both": 0, "": 0}


def sample_views(methods: Sequence[Method], budget: int = BUDGET) -> tuple[list[dict[str, Any]], int]:
    """Views of the samples of all methods, and how many samples were left out to keep to `budget` characters.

    When there are too many, every k-th of each method is kept, so that early and late steps both stay.
    """
    views = [
        [all_visible(sample_view(sample, method.name, number)) for number, sample in enumerate(method.samples)]
        for method in methods
    ]
    size = sum(len(json.dumps(view, ensure_ascii=False)) for group in views for view in group)
    stride = max(1, math.ceil(size / budget))
    kept = [view for group in views for view in group[::stride]]
    return kept, sum(map(len, views)) - len(kept)


def entry_of(sample: Sample, method: str, number: int) -> dict[str, Any]:
    """What the list shows of a sample, and is filtered and sorted by; `number` is its line in the method's file."""
    labels = Counter(span.label for span in sample.spans)
    return {
        "key": f"{method}/{number}",
        "method": method,
        "step": sample.step,
        "id": sample.id,
        "probe": sample.probe,
        "score": _rounded(sample.score),
        "failed": sample.failure is not None,
        "good": labels[1],
        "poor": labels[-1],
        "lost_count": max(sample.unmatched, len(sample.lost)),
        "wrong": wrong_signs(sample)[0],
        "length": len(sample.tokens),
        "delta": _rounded(sum(x or 0.0 for x in sample.delta)),
        "words": " ".join(sample.response[:200].split())[:90],
    }


def sample_view(sample: Sample, method: str, number: int = 0) -> dict[str, Any]:
    """One sample as plain JSON data: its entry, texts, pieces, spans, checks; per token its label and numbers."""
    intervals = list(zip(sample.starts, sample.ends, strict=False))
    failure, counts = sample.failure, QuoteCounts(unmatched=sample.unmatched, ambiguous=sample.ambiguous)
    return {
        **entry_of(sample, method, number),
        "prompt": [_turn(message) for message in sample.prompt],
        "critique": clauses(sample.critique, sample.spans),
        "failure": f"{failure.kind}: {failure.message}" if failure else None,
        "spans": [{"label": LABELS[s.label], "text": s.text, "reason": s.reason} for s in sample.spans],
        "lost": lost_quotes(sample.lost, counts),
        "talk": _talk(sample, intervals),
        "tokens": [token_label(token) for token in sample.tokens],
        "ids": sample.ids,
        "labels": token_labels(sample),
        "intervals": intervals,
        "rows": {name: list(map(_rounded, row)) for name in SIGNALS if (row := getattr(sample, name))},
        "checks": list(checks(sample)),
        "facts": facts(sample),
    }


def _turn(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def _talk(sample: Sample, intervals: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The response as a conversation: the policy's turns in pieces, and what others said between them."""
    talk: list[dict[str, Any]] = []
    for turn in turns_of(sample.response):
        talk += map(_turn, turn.messages)
        own = pieces(sample.response, sample.spans, intervals, (turn.start, turn.end))
        talk.append({"role": "response", "pieces": own})
    return [*talk, *map(_turn, getattr(sample.response, "after", ()))]


def clauses(critique: str, spans: Sequence[Span]) -> list[tuple[str, list[int]]]:
    """The critique in pieces, each with the spans it is about: where it gives their reason, or else quotes them."""
    places = []
    for span in spans:
        found = next((words for words in (span.reason, span.text) if words.strip() and words in critique), "")
        start = critique.find(found) if found else 0
        places.append((start, start + len(found)))
    return [(text, of) for text, _, of in pieces(critique, (), places)]


def lost_quotes(lost: Sequence[str], counts: QuoteCounts) -> list[dict[str, str]]:
    """Quotes of a critique that became no span, each with the reason; of some only the number is known."""
    quotes = [{"text": quote, "reason": "not in the response, no token is labelled by it"} for quote in lost]
    more = {
        "more quotes that are not in the response": counts.unmatched - len(lost),
        "quotes that occur more than once in the response and do not say which": counts.ambiguous,
    }
    return quotes + [{"text": "", "reason": f"{reason}: {count}"} for reason, count in more.items() if count > 0]


def facts(sample: Sample) -> str:
    """The sample's sums in one line, for comparing with metrics.jsonl by eye."""
    sums = [f"Σ {name} {number(sum(x or 0.0 for x in getattr(sample, key)))}" for key, name in SUMS.items()]
    wrong, paid = wrong_signs(sample)
    signs = [f"{wrong} of {paid} tokens with a delta have an advantage of the other sign"]
    return " · ".join(
        [f"{len(sample.tokens)} tokens", *sums, *(signs if sample.advantage else ["nothing is learned"])]
    )


def wrong_signs(sample: Sample) -> tuple[int, int]:
    """Tokens whose advantage has another sign than their delta, and tokens with a delta."""
    pairs = [(d, a) for d, a in zip(sample.delta, sample.advantage, strict=False) if d and a is not None]
    return sum(delta * advantage < 0 for delta, advantage in pairs), len(pairs)


def _rounded(value: float | None) -> float | None:
    return float(f"{without_dust(value):.4g}") if value is not None and math.isfinite(value) else None


def pieces(
    response: str,
    spans: Sequence[Span],
    intervals: Sequence[tuple[int, int]] = (),
    part: tuple[int, int] | None = None,
) -> list[Piece]:
    """Cut `response`, or a part of it, wherever a span or a token begins or ends.

    A character may lie in several spans and, where tokens split it, in several tokens.
    """
    in_spans = _cover(len(response), [(span.start, span.end) for span in spans])
    in_tokens = _cover(len(response), intervals)
    start, end = part or (0, len(response))
    characters = list(zip(response, in_spans, in_tokens, strict=True))[start:end]
    keyed = groupby(characters, key=lambda each: each[1:])
    return [(visible("".join(each[0] for each in run)), list(of[0]), list(of[1])) for of, run in keyed]


def token_labels(sample: Sample) -> list[str]:
    """The label of each token by the spans: "good", "poor", "both" or "".

    Computed from the characters alone (white space at the edges of spans aside), to be checked against `delta`.
    """
    in_spans = _cover(len(sample.response), [_solid(span) for span in sample.spans])
    result = []
    for start, end in zip(sample.starts, sample.ends, strict=False):
        covers = in_spans[max(start, 0) : max(end, 0)]
        result.append(_label([sample.spans[index] for cover in covers for index in cover]))
    return result


def _label(spans: Sequence[Span]) -> str:
    """The label of what lies in these spans."""
    return LABEL_OF_SIGNS[tuple(sorted({span.label for span in spans} - {0}))]


def _solid(span: Span) -> tuple[int, int]:
    """A span without the white space at its edges; one of white space alone as it is."""
    solid = [place for place, char in enumerate(span.text, span.start) if not char.isspace()]
    return (solid[0], solid[-1] + 1) if solid else (span.start, span.end)


def _cover(length: int, intervals: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """For each position the indices of the intervals it lies in."""
    cover: list[tuple[int, ...]] = [()] * length
    for index, (start, end) in enumerate(intervals):
        for position in range(max(start, 0), min(end, length)):
            cover[position] += (index,)
    return cover


def checks(sample: Sample) -> Iterator[str]:
    """Problems of one sample, a sentence each; a sound sample has none."""
    for name in PER_TOKEN:
        length = len(getattr(sample, name))
        if length not in (0, len(sample.tokens)):
            yield f"{name} has {length} entries for {len(sample.tokens)} tokens."
    yield from map(visible, _texts(sample))
    empty = takewhile(
        lambda ends: ends[0] == ends[1], reversed(list(zip(sample.starts, sample.ends, strict=False)))
    )
    if (trailing := len(list(empty))) > 1:
        yield f"The last {trailing} tokens have no characters: padding inside the mask?"
    if sample.failure is None and sample.as_marked:
        yield from _labels_against_delta(sample)
    yield from _numbers(sample)


def _texts(sample: Sample) -> Iterator[str]:
    """The first token that is not the text at its offsets (split characters, U+FFFD, aside), and such spans."""
    for index, (token, start, end) in enumerate(zip(sample.tokens, sample.starts, sample.ends, strict=False)):
        there = sample.response[start:end]
        if end > start and "\ufffd" not in token and token != there:
            yield f"Token {index + 1} is {token!r} but characters {start}–{end} are {there!r}: offsets shifted?"
            break
    for span in sample.spans:
        there = sample.response[span.start : span.end]
        if there != span.text:
            yield f"Span {span.start}–{span.end} quotes {span.text!r} but the response has {there!r} there."


def _labels_against_delta(sample: Sample) -> Iterator[str]:
    """All tokens but the last, where the verdict may be paid; nothing if the scheme pays that token alone."""
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


class Counts(NamedTuple):
    """Counts of one source: records, spans by label, other quotes, and failures by kind in words."""

    records: int
    good: int
    poor: int
    quotes: QuoteCounts
    failed: str


def counts_by_source(records: Sequence[Feedback]) -> dict[str, Counts]:
    """Counts per source, named `kind` or `kind · model`."""
    groups: defaultdict[str, list[Feedback]] = defaultdict(list)
    for record in records:
        groups[" · ".join(filter(None, (record.source.kind, record.source.model)))].append(record)
    return {name: _counts(group) for name, group in groups.items()}


def _counts(records: Sequence[Feedback]) -> Counts:
    labels = Counter(span.label for record in records for span in record.spans)
    failures = Counter(record.error.kind for record in records if record.error is not None)
    failed = ", ".join(f"{count} {kind}" for kind, count in sorted(failures.items())) or "0"
    quotes = sum((record.quotes for record in records), QuoteCounts())
    return Counts(len(records), labels[1], labels[-1], quotes, failed)


def examples(records: Sequence[Feedback]) -> list[dict[str, Any]]:
    """Up to four records for reading: with poor spans, with good ones only, with none, and a failed one."""
    wanted = (
        lambda r: any(span.label < 0 for span in r.spans),
        lambda r: r.spans and all(span.label > 0 for span in r.spans),
        lambda r: r.error is None and not r.spans,
        lambda r: r.error is not None,
    )
    picks = (next(filter(test, records), None) for test in wanted)
    return [record_view(record) for record in picks if record is not None]


def record_view(record: Feedback) -> dict[str, Any]:
    """A record as a page shows it: its fields, the response in pieces, and the quotes that gave no span."""
    lost = lost_quotes(record.meta.get("lost", ()), record.quotes)
    return {**dict(record), "said": list(_parts(record)), "lost": lost}


def _parts(record: Feedback) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The response in parts: who speaks, and the pieces; of plain text there is one, and nobody is named."""
    if not isinstance(record.response, Transcript):
        yield "", _labelled(record)
        return
    for place, turn in enumerate(record.response.turns, start=1):
        yield from ((message.role, [(visible(message.content), "", "")]) for message in turn.messages)
        yield named_turn(place, record.judgement()), _labelled(record, turn.start, turn.end)
    yield from ((message.role, [(visible(message.content), "", "")]) for message in record.response.after)


def named_turn(number: int, judgement: Judgement | None) -> str:
    """The name of a turn of the policy, with its verdict if it has one."""
    scores = judgement.turn_scores if isinstance(judgement, Critique) else ()
    score = scores[number - 1] if number <= len(scores) else None
    return f"turn {number}" if score is None else f"turn {number} ({score:+.2f})"


def _labelled(record: Feedback, start: int = 0, end: int | None = None) -> list[tuple[str, str, str]]:
    """The response, or its characters [start, end), in pieces: (text, "good" | "poor" | "both" | "", reasons)."""
    result, part = [], (start, len(record.response) if end is None else end)
    for text, indices, _ in pieces(record.response, record.spans, (), part):
        spans = [record.spans[index] for index in indices]
        result.append((text, _label(spans), "; ".join(span.reason for span in spans if span.reason)))
    return result
