"""The credit schemes of the lab."""

from __future__ import annotations

import pytest

from span_cases import TEXT, critique, word_span, words_aligned
from text2grad.align import CreditSettings, credit

SCHEME = CreditSettings(scheme="text2grad_lab.schemes:verdict_signs", outcome_weight=0.0)


@pytest.mark.parametrize(("score", "sign"), [(-1.0, -1), (0.5, 1), (0.0, 0), (None, 0)])
def test_the_verdict_gives_marked_tokens_their_sign(score: float | None, sign: int) -> None:
    scored = critique(word_span(1, 0, 0), word_span(-1, 2, 2)).model_copy(update={"score": score})
    rewards = credit(scored, words_aligned(TEXT), SCHEME).delta
    assert rewards.tolist() == [sign, 0, sign] + [0] * (len(rewards) - 3)
