"""Samples of a PPO run as the viewer shows them: coloured pieces and the token strip.

A sample view is plain JSON data; page.js only lays it out. All text in it has gone through `visible`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from text2grad.feedback import Message, Span
from text2grad.report.checks import checks
from text2grad.report.curves import number
from text2grad.report.folder import Method, Sample
from text2grad.report.pieces import pieces, token_labels
from text2grad.report.visible import token_label, visible

STRIP_ROWS = ("delta", "kl", "reward", "value", "advantage")
SUMS = {"delta": "delta", "kl": "KL", "reward": "reward"}
LABELS = {1: "good", -1: "poor"}
BUDGET = 1_600_000  # characters of JSON: keeps the page under 3 MB beside its curves


def sample_views(methods: Sequence[Method], budget: int = BUDGET) -> tuple[list[dict[str, Any]], int]:
    """Views of the samples of all methods, and how many samples were left out to keep to `budget` characters.

    When there are too many, every k-th of each method is kept, so that early and late steps both stay.
    """
    views = [[sample_view(sample, method.name) for sample in method.samples] for method in methods]
    size = sum(len(json.dumps(view, ensure_ascii=False)) for group in views for view in group)
    stride = max(1, math.ceil(size / budget))
    kept = [view for group in views for view in group[::stride]]
    return kept, sum(map(len, views)) - len(kept)


def sample_view(sample: Sample, method: str) -> dict[str, Any]:
    """One sample as plain JSON data: texts, pieces, spans, checks; per token its label and numbers."""
    intervals = list(zip(sample.starts, sample.ends, strict=False))
    failure = sample.failure
    return {
        "method": visible(method),
        "step": sample.step,
        "id": visible(sample.id),
        "prompt": message_views(sample.prompt),
        "critique": visible(sample.critique),
        "failure": visible(f"{failure.kind}: {failure.message}") if failure else None,
        "score": _rounded(sample.score),
        "spans": [span_view(span) for span in sample.spans],
        "lost": lost_quotes(sample.lost, sample.unmatched, sample.ambiguous),
        "pieces": pieces(sample.response, sample.spans, intervals),
        "tokens": [token_label(token) for token in sample.tokens],
        "labels": token_labels(sample),
        "intervals": intervals,
        "rows": _rows(sample),
        "checks": list(checks(sample)),
        "facts": facts(sample),
    }


def message_views(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Chat turns for display."""
    return [{"role": message.role, "content": visible(message.content)} for message in messages]


def span_view(span: Span) -> dict[str, Any]:
    """A span for display: its label in words, its quote, why."""
    return {"label": LABELS[span.label], "text": visible(span.text), "reason": visible(span.reason)}


def lost_quotes(lost: Sequence[str], unmatched: int, ambiguous: int) -> list[dict[str, str]]:
    """Quotes of a critique that became no span, each with the reason; some are known by their number alone."""
    found = [
        {"text": visible(quote), "reason": "not in the response, no token is labelled by it"} for quote in lost
    ]
    unknown = max(0, unmatched - len(lost))
    if unknown:
        found.append({"text": "", "reason": f"more quotes that are not in the response: {unknown}"})
    if ambiguous:
        reason = f"quotes that occur more than once in the response and do not say which: {ambiguous}"
        found.append({"text": "", "reason": reason})
    return found


def facts(sample: Sample) -> str:
    """The sample's sums in one line, for comparing with metrics.jsonl by eye."""
    sums = [f"Σ {name} {number(sum(x or 0.0 for x in getattr(sample, key)))}" for key, name in SUMS.items()]
    pairs = [(d, a) for d, a in zip(sample.delta, sample.advantage, strict=False) if d and a is not None]
    wrong = sum(delta * advantage < 0 for delta, advantage in pairs)
    signs = f"{wrong} of {len(pairs)} tokens with a delta have an advantage of the other sign"
    return " · ".join([f"{len(sample.tokens)} tokens", *sums, signs])


def _rows(sample: Sample) -> dict[str, list[float | None]]:
    rows = {name: getattr(sample, name) for name in (*STRIP_ROWS, "logp")}
    return {name: [_rounded(x) for x in numbers] for name, numbers in rows.items() if numbers}


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None
