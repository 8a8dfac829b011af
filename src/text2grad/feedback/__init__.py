"""The vocabulary of text2grad: examples, critiques, feedback records, critics, environments.

Plain data, no tensors. A critique marks characters of a response, by offset or by quotation
(`quotes`); `align` maps characters to tokens. `jsonl` reads and writes the records.
"""

from text2grad.feedback.critics import Critic as Critic
from text2grad.feedback.critics import Environment as Environment
from text2grad.feedback.critics import Overlap as Overlap
from text2grad.feedback.critics import count_critic_tokens as count_critic_tokens
from text2grad.feedback.critics import get_judgements as get_judgements
from text2grad.feedback.critics import get_overlap as get_overlap
from text2grad.feedback.critiques import Critique as Critique
from text2grad.feedback.critiques import Failure as Failure
from text2grad.feedback.critiques import FailureKind as FailureKind
from text2grad.feedback.critiques import Judgement as Judgement
from text2grad.feedback.records import DRAFT as DRAFT
from text2grad.feedback.records import HUMAN_FEEDBACK as HUMAN_FEEDBACK
from text2grad.feedback.records import JUDGEMENT_KEYS as JUDGEMENT_KEYS
from text2grad.feedback.records import Example as Example
from text2grad.feedback.records import Feedback as Feedback
from text2grad.feedback.records import Preference as Preference
from text2grad.feedback.records import Source as Source
from text2grad.feedback.records import SourceKind as SourceKind
from text2grad.feedback.records import escapes_folder as escapes_folder
from text2grad.feedback.records import human_feedback_on as human_feedback_on
from text2grad.feedback.spans import Label as Label
from text2grad.feedback.spans import LabelledPlace as LabelledPlace
from text2grad.feedback.spans import Place as Place
from text2grad.feedback.spans import QuoteCounts as QuoteCounts
from text2grad.feedback.spans import Span as Span
from text2grad.feedback.spans import Tolerance as Tolerance
from text2grad.feedback.spans import spans_at as spans_at
from text2grad.feedback.spans import within_turns as within_turns
from text2grad.feedback.transcripts import BETWEEN_TURNS as BETWEEN_TURNS
from text2grad.feedback.transcripts import Message as Message
from text2grad.feedback.transcripts import Record as Record
from text2grad.feedback.transcripts import ResponseText as ResponseText
from text2grad.feedback.transcripts import Transcript as Transcript
from text2grad.feedback.transcripts import Turn as Turn
from text2grad.feedback.transcripts import conversation_of as conversation_of
from text2grad.feedback.transcripts import conversation_text as conversation_text
from text2grad.feedback.transcripts import is_foreign as is_foreign
from text2grad.feedback.transcripts import response_key as response_key
from text2grad.feedback.transcripts import turn_at as turn_at
from text2grad.feedback.transcripts import turns_of as turns_of
