"""The vocabulary of text2grad: examples, critiques, feedback records, critics, environments.

Plain data, no tensors. A critique marks characters of a response, by offset or by quotation
(`quotes`); `align` maps characters to tokens. `jsonl` reads and writes the records.
"""

from text2grad.feedback.critics import (
    Critic,
    Environment,
    Overlap,
    count_critic_tokens,
    get_judgements,
    get_overlap,
)
from text2grad.feedback.critiques import Critique, Failure, FailureKind, Judgement
from text2grad.feedback.records import (
    DRAFT,
    HUMAN_FEEDBACK,
    JUDGEMENT_KEYS,
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
    response_key,
    turn_at,
    turns_of,
)

__all__ = [
    "BETWEEN_TURNS",
    "DRAFT",
    "HUMAN_FEEDBACK",
    "JUDGEMENT_KEYS",
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
    "count_critic_tokens",
    "escapes_folder",
    "get_judgements",
    "get_overlap",
    "human_feedback_on",
    "is_foreign",
    "response_key",
    "spans_at",
    "turn_at",
    "turns_of",
    "within_turns",
]
