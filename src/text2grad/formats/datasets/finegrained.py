"""FineGrainedRLHF's QA feedback: error spans that people marked in an answer, and what they found missing.

Every error span is poor; text outside is neutral, since good text was not marked. Offsets are characters
of "prediction 1", as published. The verdict is `span_score`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from text2grad.feedback import Span
from text2grad.formats.importer import NO_ERROR, Importer, Names, Opinion
from text2grad.tasks.loaders import Row, text_of
from text2grad.tasks.qa import FINEGRAINED_KEYS, finegrained_example, passage_sentence

SENTENCES = {
    "Irrelevant": "{quote} does not answer the question.",
    "Redundant": "{quote} is redundant.",
    "Wrong-Grounding": "{quote} contradicts the passages.",
    "Unverifiable": "{quote} is not supported by the passages.",
    "Incoherent": "{quote} is incoherent.",
    "Missing-Answer": "The answer is missing: {quote}",
    "Missing-Major-Auxiliary": "Important context is missing: {quote}",
    "Missing-Minor-Auxiliary": "Helpful context is missing: {quote}",
}
"""What an error type says, as a sentence of the critique."""


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """The opinion on a published answer."""
    example = finegrained_example(row, fallback_id, names.context_characters)
    response, passages = text_of(row, "prediction 1"), row["passages"]
    errors, missing = (_objects(row["feedback"], key) for key in ("errors", "missing-info"))
    spans = sorted((_span(error, response, passages) for error in errors), key=lambda span: span.start)
    left_out = [passage_sentence(passages, item) for item in missing]
    sentences = [_sentence(span.reason.partition(":")[0], shortened(span.text)) for span in spans]
    for item, text in zip(missing, left_out, strict=True):
        sentences.append(_sentence(text_of(item, "error type"), shortened(text, 30)))
    yield Opinion(
        fallback_id,
        response,
        example.prompt,
        comments=[" ".join(sentences) or NO_ERROR],
        spans=tuple(spans),
        score=span_score(response, spans, "".join(left_out)),
        meta=example.meta,
    )


def span_score(response: str, spans: Sequence[Span], missing: str = "") -> float:
    """A verdict from what is wrong and what is missing: 1 - 2 · (share of either), so in [-1, 1].

    The share is of characters, of the response and of the `missing` passage text together. No error and nothing
    missing is 1, an answer wrong from end to end is -1; overlaps count once. What is missing has to count: spans
    cannot quote it, and by spans alone the shorter answer is the better one. Rounded to two digits, because a
    model has to learn to write it.
    """
    poor = {position for span in spans if span.label == -1 for position in range(span.start, span.end)}
    whole = len(response) + len(missing)
    return round(1 - 2 * (len(poor) + len(missing)) / whole, 2) if whole else 0.0


def shortened(text: str, words: int = 8) -> str:
    """The text on one line, in quotes, cut after this many words."""
    parts = text.split()
    return f'"{" ".join(parts[:words])}{" …" if len(parts) > words else ""}"'


def _sentence(kind: str, quote: str) -> str:
    return SENTENCES.get(kind, kind + ": {quote}").replace("{quote}", quote)


def _span(error: Mapping[str, Any], response: str, passages: Sequence[Sequence[str]]) -> Span:
    start, end = error.get("start"), error.get("end")
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start < end <= len(response):
        raise ValueError(f"error span [{start}, {end}) is not inside the {len(response)} characters")
    kind, explanation = text_of(error, "error type"), str(error.get("explanation", ""))
    evidence = " ".join(explanation.split())
    if explanation.startswith("{"):  # of wrong grounding, a pointer to the sentence that is right
        try:
            pointer = json.loads(explanation)
        except json.JSONDecodeError as fault:
            raise ValueError(f"explanation is neither text nor a pointer: {fault.msg}") from fault
        evidence = f"the passage says: {passage_sentence(passages, pointer)}"
    reason = f"{kind}: {evidence}" if evidence else kind
    return Span(start=start, end=end, label=-1, text=response[start:end], reason=reason)


def _objects(feedback: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = feedback.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"feedback.{key} is not a list of objects")
    return value


IMPORTER = Importer("finegrained_qa", opinions, FINEGRAINED_KEYS, noun="FineGrainedRLHF record")
