"""People's corrected answers, which a reward model learns to praise."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.data.spans.marks import diff_spans
from text2grad.feedback import Critique, Example, Feedback, Span, Transcript, response_key, turns_of

PRAISE, MOST_WORDS_MARKED = "Right as it is.", 60
"""The critique of a corrected answer, and the number of words up to which all of it is marked."""


def corrections(records: Sequence[Feedback]) -> list[tuple[Feedback, str]]:
    """Return each corrected record with its corrected answer, without duplicates.

    Of an answer with several turns, the last is the corrected one.
    """
    answers: dict[tuple[object, str], tuple[Feedback, str]] = {}
    for record in records:
        text = str(record.meta.get("corrected") or "")
        if text.strip():
            answer = _ending_in(record.response, text)
            answers.setdefault((record.prompt, response_key(answer).strip()), (record, answer))
    return list(answers.values())


def _ending_in(response: str, text: str) -> str:
    """Return the response with `text` as its last turn."""
    if not isinstance(response, Transcript):
        return text
    *before, last = response.turns
    turns = [(turn.messages, response[turn.start : turn.end]) for turn in before]
    return Transcript.of([*turns, (last.messages, text)])


def with_corrections(records: Sequence[Feedback]) -> list[Feedback]:
    """Return the records followed by praise of every corrected answer that no record has.

    In a long answer only the inserted words are marked. The score is 1.0 if any record has a score.
    """
    answers = {(record.prompt, response_key(record.response).strip()) for record in records}
    score = 1.0 if any(record.score is not None for record in records) else None
    praise = [
        _praise(record, text, score)
        for record, text in corrections(records)
        if (record.prompt, response_key(text).strip()) not in answers
    ]
    return [*records, *praise]


def _praise(record: Feedback, text: str, score: float | None) -> Feedback:
    first = turns_of(text)[-1].start
    words = text[first:]
    full = Span(start=0, end=len(words), label=1, text=words)
    spans = (full,) if len(words.split()) <= MOST_WORDS_MARKED else diff_spans(words, record.response[first:])[0]
    praise = tuple(
        span.model_copy(update={"label": 1, "reason": "", "start": first + span.start, "end": first + span.end})
        for span in spans
    )
    # The record's meta is dropped: it describes the uncorrected answer.
    example = Example(id=f"{record.id}:corrected", prompt=record.prompt, meta={"corrected": words})
    return Feedback.of(example, text, Critique(text=PRAISE, spans=praise, score=score), record.source)
