"""Whether a run learns nothing but how long to answer."""

from __future__ import annotations

import sys

from text2grad.durable.processes import Ranks
from text2grad.durable.run import OnStep

LENGTHS_APART, MOST_CORRELATION = 2.0, 0.8
"""How many times as long or short answers are, and how well their length tells their reward, before a warning."""


def length_watched(ranks: Ranks) -> OnStep:
    """Warn once that a run learns how long to answer, compared with its first step since it was started."""
    first: list[float] = []
    named: list[str] = []

    def look(step: int, metrics: dict[str, float]) -> None:
        if not first:
            first.append(metrics["response_length"])
        words = learns_length(first[0], metrics["response_length"], metrics["reward_length_correlation"])
        if words and not named and ranks.first:
            cure = "credit.scheme spans with credit.weighting span or balanced pays no more for more words"
            print(f"{words} ({cure}; or raise ppo.kl_coefficient, or stop)", file=sys.stderr)
            named.append(words)

    return look


def learns_length(before: float, now: float, correlation: float) -> str:
    """That the mean length of answers, in tokens, went to where the reward is, and hardly anything else pays; empty
    where it did not. `correlation` is that of the summed token rewards with the length, -1 to 1."""
    shorter = correlation <= -MOST_CORRELATION and now * LENGTHS_APART <= before
    longer = correlation >= MOST_CORRELATION and now >= before * LENGTHS_APART
    if not shorter and not longer:
        return ""
    return (
        f"answers went from {before:.0f} to {now:.0f} tokens, and their reward is their length: r {correlation:.2f}"
    )
