"""DeFacto: what people found wrong in a summary of a news article, and their corrected summary.

The faults are not marked: the difference between the summary and the mended one tells where they are. The verdict
is `span_score` of those spans and of what was put in; a summary without error has 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from text2grad.feedback import Critique, Feedback
from text2grad.formats.datasets.finegrained import span_score
from text2grad.formats.marks import edits, human_record
from text2grad.tasks.loaders import Row, optional_text, text_of

KEYS = frozenset({"article", "candidate", "has_error", "feedback"})


def records(row: Row, fallback_id: str) -> Iterator[Feedback]:
    """The record of a summary.

    Raises:
        ValueError: a text is missing.
    """
    feedback: Mapping[str, Any] = row["feedback"] if isinstance(row["feedback"], dict) else {}
    response, article = text_of(row, "candidate"), text_of(row, "article")
    explanation, instruction = optional_text(feedback, "explanation"), optional_text(feedback, "instruction")
    corrected = optional_text(feedback, "summary")
    wrong = bool(row["has_error"]) and bool(corrected)
    spans, omissions = edits(response, corrected, instruction or explanation) if wrong else ((), ())
    critique = Critique(
        text=" ".join(filter(None, (explanation, instruction))) or "No error was found.",
        spans=spans,
        score=span_score(response, spans, " ".join(omissions)) if row["has_error"] else 1.0,
        omissions=omissions,
    )
    kinds = [name for name in ("intrinsic_error", "extrinsic_error") if row.get(name)]
    meta = {
        "dataset": "defacto",
        "has_error": bool(row["has_error"]),
        "errors": ", ".join(kinds),
        "evidence": optional_text(feedback, "evidence"),
        "corrected": corrected or (response if not row["has_error"] else ""),
        "gold": optional_text(row, "abstract"),
        # Marked as wrong, but not corrected: there is no word to point at.
        "unchanged": wrong and not spans and not omissions,
    }
    prompt = f"Write a short summary of this article.\n\n{article}"
    yield human_record(f"defacto-{fallback_id}", prompt, response, critique, meta)
