"""DeFacto: explanations of errors in summaries of news articles, and corrected summaries.

Errors are not marked: spans come from the difference between the summary and its correction. The
verdict is `span_score` of these spans and the added text, 1 for a summary without error.

    text2grad import train.jsonl --kind text2grad_lab.readers.defacto:DEFACTO --out feedback.jsonl
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from text2grad.data.files import Row, optional_text, required_text
from text2grad.data.opinions import NO_ERROR, Importer, Names, Opinion
from text2grad.data.spans.marks import diff_spans, drop_empty
from text2grad_lab.readers.finegrained import span_score


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield the opinion on a summary."""
    feedback: Mapping[str, Any] = row["feedback"] if isinstance(row["feedback"], dict) else {}
    response, article = required_text(row, "candidate"), required_text(row, "article")
    explanation, instruction, corrected, evidence = (
        optional_text(feedback, name) for name in ("explanation", "instruction", "summary", "evidence")
    )
    has_error = bool(row["has_error"])
    changed = has_error and bool(corrected)
    spans, omissions = diff_spans(response, corrected, instruction or explanation) if changed else ((), ())
    meta = drop_empty(
        has_error=has_error,
        errors=", ".join(name for name in ("intrinsic_error", "extrinsic_error") if row.get(name)),
        evidence=evidence,
        gold=optional_text(row, "abstract"),
        # Labelled as wrong but not corrected, so no words can be marked.
        unchanged=changed and not spans and not omissions,
    )
    yield Opinion(
        f"defacto-{fallback_id}",
        response,
        f"Write a short summary of this article.\n\n{article}",
        comments=[" ".join(filter(None, (explanation, instruction))) or NO_ERROR],
        spans=spans,
        score=span_score(response, spans, " ".join(omissions)) if has_error else 1.0,
        omissions=omissions,
        corrected=corrected or (response if not has_error else ""),
        meta=meta,
    )


DEFACTO = Importer("defacto", opinions, frozenset({"article", "candidate", "has_error", "feedback"}))
