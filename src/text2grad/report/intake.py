"""Counts of a feedback file by source, and a few records worth reading."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from text2grad.feedback import Feedback, QuoteCounts
from text2grad.report.samples import LABEL_OF_SIGNS, lost_quotes, pieces


class Counts(NamedTuple):
    """What one source gave: records, spans by label, counts of its other quotes, and failures by kind in words."""

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
    found = (next(filter(test, records), None) for test in wanted)
    return [
        {**dict(r), "pieces": _labelled(r), "lost": lost_quotes(r.meta.get("lost", ()), r.quotes)}
        for r in found
        if r is not None
    ]


def _labelled(record: Feedback) -> list[tuple[str, str, str]]:
    """The response in pieces: (text, "good" | "poor" | "both" | "", reasons)."""
    result = []
    for text, indices, _ in pieces(record.response, record.spans):
        spans = [record.spans[index] for index in indices]
        label = LABEL_OF_SIGNS[tuple(sorted({span.label for span in spans}))]
        result.append((text, label, "; ".join(span.reason for span in spans if span.reason)))
    return result
