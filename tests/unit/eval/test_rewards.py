"""The held-out token reward, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from text2grad.align import Aligned, CreditSettings
from text2grad.eval.critics.reward_model import reward_report
from text2grad.feedback import Critique, Failure, QuoteCounts, Span


def words(text: str) -> Aligned:
    """One token per character pair: `aabbcc` has three."""
    starts = np.arange(0, len(text), 2)
    return Aligned(text, starts, starts + 2, starts, starts + 2)


def critique(*labels: int, score: float | None = None, unmatched: int = 0) -> Critique:
    """One span of one token for each label, from the front."""
    spans = [
        Span(start=2 * i, end=2 * i + 2, label=label, text="aabbccdd"[2 * i : 2 * i + 2])
        for i, label in enumerate(labels)
        if label
    ]
    return Critique(text="", spans=tuple(spans), score=score, quotes=QuoteCounts(unmatched=unmatched))


def test_means_over_tokens_and_answers() -> None:
    judgements = [critique(-1, -1, 0, 1, score=-0.5, unmatched=3), critique(1, score=1.0)]
    report = reward_report(judgements, [words("aabbccdd"), words("aa")], CreditSettings(outcome_weight=2.0))
    assert report == pytest.approx(
        {
            "token_reward": (-1 - 1.0 + 1 + 2.0) / 5,
            "span_reward": (-1 + 1) / 5,
            "answer_reward": ((-1 - 1.0) + (1 + 2.0)) / 2,
            "good_tokens": 2 / 5,
            "poor_tokens": 2 / 5,
            "verdict": 0.25,
            "length": 2.5,
            "critic_failed": 0.0,
            "unmatched": 1.5,
        }
    )


def test_a_score_is_no_reward_of_spans() -> None:
    report = reward_report([critique(-1, score=0.5)], [words("aa")], CreditSettings(scheme="last_token"))
    assert (report["token_reward"], report["span_reward"]) == (0.5, 0.0)


def test_a_failed_critique_is_counted_and_nothing_else() -> None:
    failed = Failure(kind="truncated", message="cut")
    both = reward_report([critique(-1), failed], [words("aabb"), words("aabbccdd")], CreditSettings())
    alone = reward_report([critique(-1)], [words("aabb")], CreditSettings())
    assert both == {**alone, "critic_failed": 0.5}
    nothing = reward_report([failed], [words("aa")], CreditSettings())
    assert (nothing["critic_failed"], nothing["token_reward"], nothing["length"]) == (1.0, 0.0, 0.0)


def test_no_answers_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no answers"):
        reward_report([], [], CreditSettings())
