"""Samples of a PPO run as the viewer shows them: coloured pieces and the token strip.

A sample view is plain JSON data; page.js only lays it out. `all_visible` makes its texts harmless.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from text2grad.feedback import QuoteCounts
from text2grad.report.checks import checks
from text2grad.report.curves import number
from text2grad.report.folder import Method, Sample
from text2grad.report.pieces import pieces, token_labels
from text2grad.report.visible import all_visible, token_label

STRIP_ROWS = ("delta", "kl", "reward", "value", "advantage")
SUMS = {"delta": "delta", "kl": "KL", "reward": "reward"}
LABELS = {1: "good", -1: "poor"}
BUDGET = 1_600_000  # characters of JSON: with the curves, the page stays under 3 MB


def sample_views(methods: Sequence[Method], budget: int = BUDGET) -> tuple[list[dict[str, Any]], int]:
    """Views of the samples of all methods, and how many samples were left out to keep to `budget` characters.

    When there are too many, every k-th of each method is kept, so that early and late steps both stay.
    """
    views = [[all_visible(sample_view(sample, method.name)) for sample in method.samples] for method in methods]
    size = sum(len(json.dumps(view, ensure_ascii=False)) for group in views for view in group)
    stride = max(1, math.ceil(size / budget))
    kept = [view for group in views for view in group[::stride]]
    return kept, sum(map(len, views)) - len(kept)


def sample_view(sample: Sample, method: str) -> dict[str, Any]:
    """One sample as plain JSON data: texts, pieces, spans, checks; per token its label and numbers."""
    intervals = list(zip(sample.starts, sample.ends, strict=False))
    failure, counts = sample.failure, QuoteCounts(unmatched=sample.unmatched, ambiguous=sample.ambiguous)
    return {
        "method": method,
        "step": sample.step,
        "id": sample.id,
        "prompt": [{"role": message.role, "content": message.content} for message in sample.prompt],
        "critique": sample.critique,
        "failure": f"{failure.kind}: {failure.message}" if failure else None,
        "score": _rounded(sample.score),
        "spans": [{"label": LABELS[s.label], "text": s.text, "reason": s.reason} for s in sample.spans],
        "lost": lost_quotes(sample.lost, counts),
        "pieces": pieces(sample.response, sample.spans, intervals),
        "tokens": [token_label(token) for token in sample.tokens],
        "labels": token_labels(sample),
        "intervals": intervals,
        "rows": _rows(sample),
        "checks": list(checks(sample)),
        "facts": facts(sample),
    }


def lost_quotes(lost: Sequence[str], counts: QuoteCounts) -> list[dict[str, str]]:
    """Quotes of a critique that became no span, each with the reason; some are known by their number alone."""
    found = [{"text": quote, "reason": "not in the response, no token is labelled by it"} for quote in lost]
    more = {
        "more quotes that are not in the response": counts.unmatched - len(lost),
        "quotes that occur more than once in the response and do not say which": counts.ambiguous,
    }
    return found + [{"text": "", "reason": f"{reason}: {count}"} for reason, count in more.items() if count > 0]


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
