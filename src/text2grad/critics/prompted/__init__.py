"""The prompted critic: `messages` builds its questions, `reading` interprets the answers."""

from text2grad.critics.prompted.critic import Pair, PromptedCritic, TaggerCritic
from text2grad.critics.prompted.messages import (
    CUT,
    PLACES,
    SPAN_MAP,
    AnswerFormat,
    Prompt,
    fitted_messages,
    judge_messages,
)
from text2grad.critics.prompted.reading import Reader
from text2grad.critics.prompted.settings import PromptedSettings

__all__ = [
    "CUT",
    "PLACES",
    "SPAN_MAP",
    "AnswerFormat",
    "Pair",
    "Prompt",
    "PromptedCritic",
    "PromptedSettings",
    "Reader",
    "TaggerCritic",
    "fitted_messages",
    "judge_messages",
]
