"""FineGrainedRLHF's QA feedback: error spans marked by people, and missing information.

Every error span is poor; text outside is neutral, since good text was not marked. Offsets are
characters of "prediction 1", as published. The verdict is `span_score`.

    text2grad import dev_feedback.json --kind text2grad_lab.readers.finegrained:FINEGRAINED \\
        --config human_qa
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from text2grad.data.files import Row, optional_text, required_text
from text2grad.data.opinions import NO_ERROR, Importer, Names, Opinion
from text2grad.feedback import Example, Message, Span

FINEGRAINED_KEYS = frozenset({"question", "passages", "prediction 1", "feedback"})
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
"""The sentence of the critique for an error type."""


def opinions(row: Row, fallback_id: str, names: Names) -> Iterator[Opinion]:
    """Yield the opinion on a published answer."""
    example = finegrained_example(row, fallback_id, names.context_characters)
    response, passages = required_text(row, "prediction 1"), row["passages"]
    errors, missing = (_objects(row["feedback"], key) for key in ("errors", "missing-info"))
    spans = sorted((_span(error, response, passages) for error in errors), key=lambda span: span.start)
    left_out = [passage_sentence(passages, item) for item in missing]
    sentences = [_sentence(span.reason.partition(":")[0], shortened(span.text)) for span in spans]
    for item, text in zip(missing, left_out, strict=True):
        sentences.append(_sentence(required_text(item, "error type"), shortened(text, 30)))
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
    """Return a verdict in [-1, 1]: 1 - 2 · (share of wrong or missing characters).

    The share is taken of the response and the `missing` passage text together; overlaps count once.
    Missing text counts because spans cannot quote it: by spans alone shorter answers would be
    better. Rounded to two digits, because a model has to learn to write it.
    """
    poor = {position for span in spans if span.label == -1 for position in range(span.start, span.end)}
    length = len(response) + len(missing)
    return round(1 - 2 * (len(poor) + len(missing)) / length, 2) if length else 0.0


def shortened(text: str, words: int = 8) -> str:
    """Return the text on one line, in quotes, truncated after this many words."""
    parts = text.split()
    return f'"{" ".join(parts[:words])}{" …" if len(parts) > words else ""}"'


def _sentence(kind: str, quote: str) -> str:
    return SENTENCES.get(kind, kind + ": {quote}").replace("{quote}", quote)


def _span(error: Mapping[str, Any], response: str, passages: Sequence[Sequence[str]]) -> Span:
    start, end = error.get("start"), error.get("end")
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start < end <= len(response):
        raise ValueError(f"error span [{start}, {end}) is not inside the {len(response)} characters")
    kind, explanation = required_text(error, "error type"), str(error.get("explanation", ""))
    evidence = " ".join(explanation.split())
    if explanation.startswith("{"):  # for wrong grounding, a pointer to the correct sentence
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


FINEGRAINED = Importer("finegrained_qa", opinions, FINEGRAINED_KEYS)


# The question with its passages


def finegrained_example(row: Row, fallback_id: str, context_characters: int | None = None) -> Example:
    """Return a FineGrainedRLHF question with its passages.

    The reference is the corrected answer, or the gold answer if the correction is empty (13 of 500
    in dev_feedback.json).
    """
    question = required_text(row, "question")
    feedback = row["feedback"]
    if not isinstance(feedback, dict):
        raise ValueError("feedback is not an object")
    corrected, gold = optional_text(feedback, "corrected-prediction"), optional_text(row, "gold")
    meta = {"dataset": "finegrained_qa", "question": question, "corrected": corrected, "gold": gold}
    prompt = (Message(role="user", content=_with_passages(question, row["passages"], context_characters)),)
    return Example(id=fallback_id, prompt=prompt, reference=corrected or gold, meta=meta)


def passage_sentence(passages: Sequence[Sequence[str]], pointer: Mapping[str, Any]) -> str:
    """Return the text of a pointer `{"passage_id": p, "sentence_id": [s, ...]}`.

    Passages count from 1; sentence 0 is the title.

    Raises:
        ValueError: there is no such sentence.
    """
    try:
        passage = _without_repeated_title(passages[_index(pointer["passage_id"], 1)])
        return " ".join(passage[_index(number, 0)].strip() for number in pointer["sentence_id"])
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no sentence {dict(pointer)} in the passages") from error


def _index(number: Any, first: int) -> int:
    if not isinstance(number, int) or number < first:
        raise IndexError(number)
    return number - first


def _with_passages(question: str, passages: Any, context_characters: int | None) -> str:
    if not isinstance(passages, list) or not all(isinstance(p, list) and len(p) > 1 for p in passages):
        raise ValueError("passages is not a list of [title, sentence, ...]")
    if not all(isinstance(sentence, str) for passage in passages for sentence in passage):
        raise ValueError("a passage has an element that is not text")
    remaining = context_characters
    parts = [question]
    for passage in passages:
        title, *sentences = _without_repeated_title(passage)
        if remaining is not None:
            sentences = _fitting(sentences, remaining)
            remaining -= sum(map(len, sentences))
        if sentences:
            parts.append(f"{title}: {' '.join(sentences)}")
    return "\n\n".join(parts)


def _without_repeated_title(passage: Sequence[str]) -> list[str]:
    """Remove the title that about half of the published passages repeat in the first sentence."""
    title, first, *sentences = passage
    return [title, first.removeprefix(f"{title}\n\n"), *sentences]


def _fitting(sentences: Sequence[str], characters: int) -> list[str]:
    """Return the complete sentences that fit into this many characters."""
    lengths = accumulate(map(len, sentences))
    return [sentence for sentence, end in zip(sentences, lengths, strict=True) if end <= characters]
