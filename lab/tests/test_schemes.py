"""The credit schemes of the lab."""

from __future__ import annotations

import pytest

from span_cases import TEXT, critique, word_span, words_aligned
from text2grad.align import CreditSettings, credit
from text2grad_lab.experiments import fade

SCHEME = CreditSettings(scheme="text2grad_lab.schemes:verdict_signs", outcome_weight=0.0)


@pytest.mark.parametrize(("score", "sign"), [(-1.0, -1), (0.5, 1), (0.0, 0), (None, 0)])
def test_the_verdict_gives_marked_tokens_their_sign(score: float | None, sign: int) -> None:
    scored = critique(word_span(1, 0, 0), word_span(-1, 2, 2)).model_copy(update={"score": score})
    rewards = credit(scored, words_aligned(TEXT), SCHEME).delta
    assert rewards.tolist() == [sign, 0, sign] + [0] * (len(rewards) - 3)


def test_poor_spans_pays_blame_and_the_verdict_but_no_praise() -> None:
    marked = critique(word_span(1, 0, 0), word_span(-1, 2, 2)).model_copy(update={"score": -0.5})
    settings = CreditSettings(scheme="text2grad_lab.schemes:poor_spans")
    rewards = credit(marked, words_aligned(TEXT), settings).delta.tolist()
    assert rewards == [0, 0, -1] + [0] * (len(rewards) - 4) + [-0.5]


@pytest.mark.parametrize(("step", "praise"), [(0, 1.0), (5, 0.5), (10, 0.0)])
def test_faded_words_lose_their_weight_and_the_verdict_does_not(step: int, praise: float) -> None:
    marked = critique(word_span(1, 0, 0)).model_copy(update={"score": -1.0})
    words = fade.weight_of_words(step, steps=11)
    rewards = credit(marked, words_aligned(TEXT), fade.FadedCredit(scheme=fade.SCHEME, words=words)).delta
    assert rewards.tolist() == [praise] + [0] * (len(rewards) - 2) + [-1]
