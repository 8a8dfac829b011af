"""Counts of a feedback file by source, and a few records worth reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from text2grad.feedback import Feedback
from text2grad.report.pieces import LABEL_OF_SIGNS, pieces
from text2grad.report.samples import lost_quotes, message_views, span_view
from text2grad.report.visible import visible


@dataclass
class Counts:
    """What one source gave: records, spans by label, quotes that gave none, failures by kind."""

    records: int = 0
    good: int = 0
    poor: int = 0
    unmatched: int = 0
    ambiguous: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, record: Feedback) -> None:
        """Count one record."""
        self.records += 1
        self.good += sum(span.label > 0 for span in record.spans)
        self.poor += sum(span.label < 0 for span in record.spans)
        self.unmatched += int(record.meta.get("unmatched", 0))
        self.ambiguous += int(record.meta.get("ambiguous", 0))
        if record.error is not None:
            self.failures[record.error.kind] += 1

    @property
    def failed(self) -> str:
        """Failures by kind in words, `0` if there are none."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items())) or "0"


def counts_by_source(records: Sequence[Feedback]) -> dict[str, Counts]:
    """Counts per source, named `kind` or `kind · model`."""
    counts: dict[str, Counts] = {}
    for record in records:
        name = " · ".join(filter(None, (record.source.kind, record.source.model)))
        counts.setdefault(name, Counts()).add(record)
    return counts


def examples(records: Sequence[Feedback]) -> list[dict[str, Any]]:
    """Up to four records for reading: with poor spans, with good ones, with none, and a failed one."""
    wanted = (
        lambda r: any(span.label < 0 for span in r.spans),
        lambda r: any(span.label > 0 for span in r.spans) and all(span.label > 0 for span in r.spans),
        lambda r: r.error is None and not r.spans,
        lambda r: r.error is not None,
    )
    found = (next(filter(test, records), None) for test in wanted)
    return [_view(record) for record in found if record is not None]


def _view(record: Feedback) -> dict[str, Any]:
    return {
        "id": record.id,
        "prompt": message_views(record.prompt),
        "pieces": _labelled(record),
        "critique": visible(record.critique),
        "spans": [span_view(span) for span in record.spans],
        "lost": lost_quotes(*_lost(record)),
        "score": record.score,
        "failure": f"{record.error.kind}: {record.error.message}" if record.error else "",
        "source": record.source.kind,
    }


def _lost(record: Feedback) -> tuple[list[str], int, int]:
    meta = record.meta
    return list(meta.get("lost", [])), int(meta.get("unmatched", 0)), int(meta.get("ambiguous", 0))


def _labelled(record: Feedback) -> list[tuple[str, str, str]]:
    """The response in pieces: (text, "good" | "poor" | "both" | "", reasons)."""
    result = []
    for text, indices, _ in pieces(record.response, record.spans):
        spans = [record.spans[index] for index in indices]
        label = LABEL_OF_SIGNS[tuple(sorted({span.label for span in spans}))]
        result.append((text, label, visible("; ".join(span.reason for span in spans if span.reason))))
    return result
