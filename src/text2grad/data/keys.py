"""Names of keys and columns, written exactly as here, by what they hold.

The first of a tuple that a row has counts. Headers that people write themselves, in several
languages, are in `spreadsheets/columns.yaml`.
"""

from __future__ import annotations

# Exchanges: prompts, conversations and answers.

PROMPT_KEYS = ("prompt", "question", "instruction", "query")
"""Keys of a prompt. Alpaca's `input` belongs to its `instruction`."""
SYSTEM_KEYS = ("system", "system_prompt", "system_message")
CONVERSATION_KEYS = ("messages", "conversation", "chat_history", "history", "trajectory")
"""Keys of a whole conversation, or of the turns before a response."""
ANSWER_KEYS = ("response", "completion", "output")
"""Keys of a response. `output` only counts with an `instruction`, or as a list of messages."""
EXCHANGE_KEYS = frozenset({*PROMPT_KEYS, *SYSTEM_KEYS, *CONVERSATION_KEYS, *ANSWER_KEYS, "input"})

# Exports of annotation tools.

TOOL_RESPONSE_KEYS = ("response", "text", "completion", "answer", "summary", "candidate", "output")
TOOL_PROMPT_KEYS = (*PROMPT_KEYS, "source", "post", "input")
COMMENT_KEYS = tuple(
    ["critique", "comment", "comments", "feedback", "reason", "explanation", "note", "notes", "user_input"]
)
CORRECTED_KEYS = tuple(
    ["corrected", "correction", "corrected_response", "improved", "improved_response", "rewrite"]
)
OVERALL_RATINGS = tuple(
    ["score", "overall", "overall_rating", "overall_score", "rating", "overall_quality", "quality", "verdict"]
)
"""Names of the rating of the whole response, where a row has several ratings."""

# Remarks.

JUDGEMENT_COLUMNS = ("critique", "good", "poor", "spans", "score", "corrected")
"""A remark fills at least one of these columns, or has mark-up in its response."""
COLUMNS = ("id", "prompt", "response", "critique", "good", "poor", "score", "corrected", "annotator", "spans")
"""The columns of a table of remarks, in the order in which `export` writes them."""
RATING_COLUMNS = ("rating", "stars", "thumbs", "reward")
"""Columns that are read as a score if `score` is missing; their scale has to be declared."""
FIELDS = (*COLUMNS, *RATING_COLUMNS)

# Our own records.

RECORD_KEYS = frozenset({"id", "prompt", "response", "source"})
