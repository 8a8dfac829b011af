"""The vocabulary of text2grad: examples, critiques and their spans, feedback records, critics,
environments.

Plain data, no tensors. A critique points at characters of a response, also by quoting it
(`quotes`); `align` turns characters into tokens. `jsonl` reads and writes the records.
"""

from text2grad.feedback.critics import Critic, Environment, Overlap, judgements_of, overlap_of, tokens_of
from text2grad.feedback.critiques import Critique, Failure, FailureKind, Judgement
from text2grad.feedback.records import (
    DRAFT,
    HUMAN_FEEDBACK,
    OF_A_JUDGEMENT,
    Example,
    Feedback,
    Preference,
    Source,
    SourceKind,
    escapes_folder,
    human_feedback_on,
)
from text2grad.feedback.spans import (
    Label,
    LabelledPlace,
    Place,
    QuoteCounts,
    Span,
    Tolerance,
    spans_at,
    within_turns,
)
from text2grad.feedback.transcripts import (
    BETWEEN_TURNS,
    Message,
    Record,
    ResponseText,
    Transcript,
    Turn,
    conversation_of,
    conversation_text,
    is_foreign,
    key_of,
    turn_at,
    turns_of,
)

__all__ = [
    "BETWEEN_TURNS",
    "DRAFT",
    "HUMAN_FEEDBACK",
    "OF_A_JUDGEMENT",
    "Critic",
    "Critique",
    "Environment",
    "Example",
    "Failure",
    "FailureKind",
    "Feedback",
    "Judgement",
    "Label",
    "LabelledPlace",
    "Message",
    "Overlap",
    "Place",
    "Preference",
    "QuoteCounts",
    "Record",
    "ResponseText",
    "Source",
    "SourceKind",
    "Span",
    "Tolerance",
    "Transcript",
    "Turn",
    "conversation_of",
    "conversation_text",
    "escapes_folder",
    "human_feedback_on",
    "is_foreign",
    "judgements_of",
    "key_of",
    "overlap_of",
    "spans_at",
    "tokens_of",
    "turn_at",
    "turns_of",
    "within_turns",
]
