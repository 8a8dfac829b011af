"""Samples of a PPO run as the page shows them.

A sample view is plain JSON data that the script lays out. `all_visible` makes its texts harmless.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from text2grad.feedback import Message, QuoteCounts, Span, turns_of
from text2grad.page.render import all_visible, number, token_label, visible, without_dust
from text2grad.page.runs import Sample
from text2grad.page.words import prompt_title

Interval = tuple[int, int]
Piece = tuple[str, list[int], list[int]]  # visible text, indices of its spans, indices of its tokens

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
"""The numbers of a token with their descriptions."""
LABELS = {1: "good", 0: "improvable", -1: "poor"}


def sample_views(samples: Mapping[str, Sequence[Sample]]) -> list[dict[str, Any]]:
    """View the samples of all methods as plain data."""
    return [
        all_visible(sample_view(sample, method, line))
        for method, samples_of_method in samples.items()
        for line, sample in enumerate(samples_of_method)
    ]


def thin(views: list[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """Take every k-th view, so that their JSON has at most about `budget` characters."""
    size = sum(len(json.dumps(view, ensure_ascii=False)) for view in views)
    return views[:: max(1, math.ceil(size / budget))]


def list_entry(sample: Sample, method: str, line: int) -> dict[str, Any]:
    """Return the entry of a sample in the list; `line` is its place in the method's file."""
    labels = Counter(span.label for span in sample.spans)
    return {
        "key": f"{method}/{line}",
        "method": method,
        "step": sample.step,
        "id": sample.id,
        "title": prompt_title(sample.prompt, sample.id),
        "answer": " ".join(sample.response[:300].split())[:120],
        "probe": sample.probe,
        "score": _rounded(sample.score),
        "failed": sample.failure is not None,
        "good": labels[1],
        "poor": labels[-1],
        "lost_count": max(sample.unmatched, len(sample.lost)),
        "wrong": count_wrong_signs(sample),
        "length": len(sample.tokens),
        "delta": _rounded(_sum(sample.delta)),
    }


def sample_view(sample: Sample, method: str, line: int = 0) -> dict[str, Any]:
    """Return one sample as plain data: its entry, texts, spans, and the numbers of each token."""
    intervals = list(zip(sample.starts, sample.ends, strict=False))
    failure, counts = sample.failure, QuoteCounts(unmatched=sample.unmatched, ambiguous=sample.ambiguous)
    return {
        **list_entry(sample, method, line),
        "prompt": [_turn(message) for message in sample.prompt],
        "critique": clauses(sample.critique, sample.spans),
        "failure": f"{failure.kind}: {failure.message}" if failure else None,
        "spans": [{"label": LABELS[s.label], "text": s.text, "reason": s.reason} for s in sample.spans],
        "lost": lost_quotes(sample.lost, counts),
        "talk": _conversation(sample, intervals),
        "tokens": [token_label(token) for token in sample.tokens],
        "ids": sample.ids,
        "intervals": intervals,
        "rows": {name: list(map(_rounded, row)) for name in SIGNALS if (row := getattr(sample, name))},
        "facts": _facts(sample),
    }


def _turn(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def _conversation(sample: Sample, intervals: Sequence[Interval]) -> list[dict[str, Any]]:
    """Return the response as a conversation: the policy's turns in pieces, messages of others."""
    turns: list[dict[str, Any]] = []
    for turn in turns_of(sample.response):
        turns += map(_turn, turn.messages)
        words = pieces(sample.response, sample.spans, intervals, (turn.start, turn.end))
        turns.append({"role": "response", "pieces": words})
    return [*turns, *map(_turn, getattr(sample.response, "after", ()))]


def clauses(critique: str, spans: Sequence[Span]) -> list[tuple[str, list[int]]]:
    """Cut the critique into pieces, each with the spans whose reason or quote it contains."""
    places = []
    for span in spans:
        match = next((words for words in (span.reason, span.text) if words.strip() and words in critique), "")
        start = critique.find(match) if match else 0
        places.append((start, start + len(match)))
    return [(text, indices) for text, _, indices in pieces(critique, (), places)]


def lost_quotes(lost: Sequence[str], counts: QuoteCounts) -> list[dict[str, str]]:
    """List the quotes without a span, with the reason; some are only counted."""
    quotes = [{"text": quote, "reason": "not in the response, no token is labelled by it"} for quote in lost]
    more = {
        "more quotes that are not in the response": counts.unmatched - len(lost),
        "quotes that occur more than once in the response and do not say which": counts.ambiguous,
    }
    return quotes + [{"text": "", "reason": f"{reason}: {count}"} for reason, count in more.items() if count > 0]


def _facts(sample: Sample) -> str:
    """Return the sums of the sample in one line, to compare with metrics.jsonl."""
    sums = {"delta": sample.delta, "KL": sample.kl, "reward": sample.reward}
    facts = [
        f"id {sample.id}",
        f"{len(sample.tokens)} tokens",
        *(f"Σ {name} {number(_sum(row))}" for name, row in sums.items()),
    ]
    rewarded = sum(bool(delta) and a is not None for delta, a in zip(sample.delta, sample.advantage, strict=False))
    wrong = f"{count_wrong_signs(sample)} of {rewarded} tokens with a delta have an advantage of the other sign"
    return " · ".join([*facts, wrong if sample.advantage else "nothing is learned"])


def count_wrong_signs(sample: Sample) -> int:
    """Count the tokens whose advantage has another sign than their delta."""
    pairs = zip(sample.delta, sample.advantage, strict=False)
    return sum((delta or 0.0) * (advantage or 0.0) < 0 for delta, advantage in pairs)


def _sum(row: Sequence[float | None]) -> float:
    return sum(value or 0.0 for value in row)


def _rounded(value: float | None) -> float | None:
    return float(f"{without_dust(value):.4g}") if value is not None and math.isfinite(value) else None


def pieces(
    response: str, spans: Sequence[Span], intervals: Sequence[Interval] = (), part: Interval | None = None
) -> list[Piece]:
    """Cut `response`, or a part of it, wherever a span or a token begins or ends.

    A character may belong to several spans and, if tokens split it, to several tokens.
    """
    in_spans = _cover(len(response), [(span.start, span.end) for span in spans])
    in_tokens = _cover(len(response), intervals)
    start, end = part or (0, len(response))
    characters = list(zip(response, in_spans, in_tokens, strict=True))[start:end]
    groups = groupby(characters, key=lambda character: character[1:])
    return [(visible("".join(c[0] for c in group)), list(of[0]), list(of[1])) for of, group in groups]


def _cover(length: int, intervals: Sequence[Interval]) -> list[tuple[int, ...]]:
    """Return for each position the indices of the intervals around it."""
    cover: list[tuple[int, ...]] = [()] * length
    for index, (start, end) in enumerate(intervals):
        for position in range(max(start, 0), min(end, length)):
            cover[position] += (index,)
    return cover
