"""People's corrected answers: what a reward model learns to praise."""

from __future__ import annotations

from collections.abc import Sequence

from text2grad.data.spans.marks import diff_spans
from text2grad.feedback import Critique, Example, Feedback, Span, Transcript, response_key, turns_of

PRAISE, QUOTED_WHOLE = "Right as it is.", 60
"""What the reward model learns to say of an answer that people corrected, and up to how many words
it quotes it."""


def corrections(records: Sequence[Feedback]) -> list[tuple[Feedback, str]]:
    """Each record that people corrected, with the answer as they corrected it (of several turns the
    last), once."""
    answers: dict[tuple[object, str], tuple[Feedback, str]] = {}
    for record in records:
        text = str(record.meta.get("corrected") or "")
        if text.strip():
            answer = _ending_in(record.response, text)
            answers.setdefault((record.prompt, response_key(answer).strip()), (record, answer))
    return list(answers.values())


def _ending_in(response: str, text: str) -> str:
    """`text`, behind all but the last turn of a transcript."""
    if not isinstance(response, Transcript):
        return text
    *before, last = response.turns
    turns = [(turn.messages, response[turn.start : turn.end]) for turn in before]
    return Transcript.of([*turns, (last.messages, text)])


def with_corrections(records: Sequence[Feedback]) -> list[Feedback]:
    """The records, and after them praise of every answer as people corrected it, where no record
    has that answer.

    Of an answer too long to be quoted whole, what was put in is praised. The verdict is the best
    one where people gave verdicts at all.
    """
    known = {(record.prompt, response_key(record.response).strip()) for record in records}
    score = 1.0 if any(record.score is not None for record in records) else None
    return [
        *records,
        *(
            _praise(record, text, score)
            for record, text in corrections(records)
            if (record.prompt, response_key(text).strip()) not in known
        ),
    ]


def _praise(record: Feedback, text: str, score: float | None) -> Feedback:
    first = turns_of(text)[-1].start
    words = text[first:]
    whole = Span(start=0, end=len(words), label=1, text=words)
    spans = (whole,) if len(words.split()) <= QUOTED_WHOLE else diff_spans(words, record.response[first:])[0]
    praise = tuple(
        span.model_copy(update={"label": 1, "reason": "", "start": first + span.start, "end": first + span.end})
        for span in spans
    )
    # Without its meta: what was sampled and said is about the other answer.
    example = Example(id=f"{record.id}:corrected", prompt=record.prompt, meta={"corrected": words})
    return Feedback.of(example, text, Critique(text=PRAISE, spans=praise, score=score), record.source)
