"""What a job would cost, before a cent is spent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from text2grad.chat.client import OpenAIChat
from text2grad.chat.prices import tokens_of, unknown_price
from text2grad.chat.questions import Question

GUESSED_ANSWER = 300
"""Tokens of an answer, where nothing has been answered yet to tell from."""
GUESSED_SECONDS = 5.0


def plan(chat: OpenAIChat, questions: Iterable[Question]) -> dict[str, Any]:
    """What is still to be asked would cost: tokens at 4 characters each of the requests as they will be sent.

    How long answers are is known from those in the journal.
    """
    settings, totals, price = chat.settings, chat.journal.totals, chat.asker.price
    answer, seconds = float(min(GUESSED_ANSWER, settings.max_tokens)), GUESSED_SECONDS
    if totals.answers:
        answer, seconds = totals.completion_tokens / totals.answers, totals.seconds / totals.answers
    waiting = {each.id: each.characters for each in questions if not chat.asker.is_settled(each)}
    requests = len(waiting)
    usage = {
        "prompt_tokens": float(tokens_of(sum(waiting.values()))),
        "completion_tokens": float(round(requests * answer)),
    }
    return {
        "requests": requests,
        "prompt_tokens": int(usage["prompt_tokens"]),
        "completion_tokens": int(usage["completion_tokens"]),
        "usd": round(price.cost(usage), 4) if price else None,
        "usd_batch": round(price.cost(usage, batch=True), 4) if price else None,
        "usd_paid_so_far": round(totals.usd, 6),
        "minutes": round(requests * seconds / settings.concurrency / 60, 2),
        "price": "known" if price else unknown_price(settings.model, settings.prices),
        "spent_now": 0,
    }
