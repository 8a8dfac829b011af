"""DeFacto: what people found wrong in a summary of a news article, and their corrected summary.

The faults are not marked: the difference between the summary and the mended one tells where they
are. The verdict is `span_score` of those spans and of what was put in; a summary without error has
1.

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
    """The opinion on a summary."""
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
        # Marked as wrong, but not corrected: there is no word to point at.
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
