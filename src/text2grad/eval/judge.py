"""Two critics compared by a chat model, each pair in both orders (paper, Table 1: win, tie, loss)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from text2grad.chat import Answer, Chat, Completion
from text2grad.critics.prompted import judge_messages
from text2grad.feedback import Critique, Example, Failure, Judgement, Message

_VERDICT = re.compile(r"\W*(first|second|tie)\W*", re.IGNORECASE)


class Pair(NamedTuple):
    """What two critics say of one response."""

    example: Example
    response: str
    ours: Judgement
    theirs: Judgement


def compare_critics(chat: Chat, prompt: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Ask the judge twice about each pair, once in each order.

    A critique wins if it is preferred in both orders. A preference that turns with the order is a tie, and counts
    into `position_bias`. A `Failure` loses against a critique without being shown. `prompt` is the text of
    `tasks/prompts/compare_critiques.txt` or one like it, with {{first}} and {{second}}.

    Returns:
        `win`, `tie`, `loss`: shares of the pairs that were judged; `position_bias`: the share of the pairs shown
        in which the judge preferred the first place both times, minus that for the second, in [-1, 1];
        `inconsistent`: the share in which its two verdicts differ at all; `judged`, `judge_failed`: pairs.

    Raises:
        ValueError: there is nothing to compare.
    """
    if not pairs:
        raise ValueError("no critiques to compare")
    shown = [pair for pair in pairs if isinstance(pair.ours, Critique) and isinstance(pair.theirs, Critique)]
    orders = [(pair, pair.ours, pair.theirs) for pair in shown] + [(pair, pair.theirs, pair.ours) for pair in shown]
    answers = chat.complete([_messages(prompt, *order) for order in orders])
    verdicts = [_verdict(answer) for answer in answers]
    both = list(zip(verdicts[: len(shown)], verdicts[len(shown) :], strict=True))
    read = [(one, other) for one, other in both if one and other]
    # Ours stood first in `one`, second in `other`: a preference counts if it does not turn with the order.
    points = [_POINTS[one] if one == _SWAPPED[other] else 0 for one, other in read] + [
        isinstance(pair.ours, Critique) - isinstance(pair.theirs, Critique)
        for pair in pairs
        if isinstance(pair.ours, Failure) or isinstance(pair.theirs, Failure)
    ]
    places = [(one == other == "first") - (one == other == "second") for one, other in read]
    return {
        "win": points.count(1) / max(1, len(points)),
        "tie": points.count(0) / max(1, len(points)),
        "loss": points.count(-1) / max(1, len(points)),
        "position_bias": sum(places) / max(1, len(read)),
        "inconsistent": sum(one != _SWAPPED[other] for one, other in read) / max(1, len(read)),
        "judged": float(len(points)),
        "judge_failed": float(len(both) - len(read)),
    }


_SWAPPED = {"first": "second", "second": "first", "tie": "tie"}
_POINTS = {"first": 1, "second": -1, "tie": 0}


def _verdict(answer: Answer) -> str:
    """first, second or tie; empty when the judge did not say."""
    said = _VERDICT.fullmatch(answer.text) if isinstance(answer, Completion) else None
    return said[1].lower() if said else ""


def _messages(prompt: str, pair: Pair, first: Judgement, second: Judgement) -> list[Message]:
    critiques = {"first": _shown(first), "second": _shown(second)}
    # The critiques are filled in by the same single pass as everything else: they are data too.
    example = pair.example.model_copy(update={"meta": {**pair.example.meta, **critiques}})
    asked = re.sub(r"\{\{(first|second)\}\}", r"{{meta.\1}}", prompt)
    return judge_messages(asked, example, pair.response)


def _shown(judgement: Judgement) -> str:
    assert isinstance(judgement, Critique)
    value = {
        "critique": judgement.text,
        "good_spans": [span.text for span in judgement.spans if span.label > 0],
        "poor_spans": [span.text for span in judgement.spans if span.label < 0],
    }
    return json.dumps(value, ensure_ascii=False)
