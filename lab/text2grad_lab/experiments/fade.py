"""Fade out the words during a PPO run: their weight is 1 at the first step, 0 at the last.

    python -m text2grad_lab.experiments.fade train --name faded --config FILE.yaml

takes the words of `text2grad train`. The verdict keeps its weight, so the last steps are scalar
PPO. TRACE (arXiv 2605.10194) reports that this helps. Interrupted runs resume.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from text2grad.align import Aligned, Credit, CreditSettings, credit
from text2grad.cli import main
from text2grad.feedback import Critique, Example
from text2grad.train import ppo
from text2grad.train.learner import Learner

SCHEME = "text2grad_lab.experiments.fade:faded"
plain_step = ppo.ppo_step


class FadedCredit(CreditSettings):
    """Credit with a weight of the words, which falls from step to step."""

    words: float


def faded(critique: Critique, aligned: Aligned, settings: FadedCredit) -> Credit:
    """Return the rewards of the scheme `spans` with the words' part of them weighted."""
    paid = credit(critique, aligned, settings.model_copy(update={"scheme": "spans"}))
    return replace(paid, delta=paid.delta - (1 - settings.words) * paid.word_rewards)


def weight_of_words(step: int, steps: int) -> float:
    """Return the weight at a step: 1 at the first, 0 at the last, linear between them."""
    return 1 - step / max(1, steps - 1)


def faded_step(
    learner: Learner, examples: Sequence[Example], prompts: Sequence[Sequence[int]], step: int, beta: float
) -> dict[str, float]:
    """Take a step of PPO with the weight of the words at that step."""
    words = weight_of_words(step, learner.settings.steps)
    values = learner.credit.model_dump() | {"scheme": SCHEME, "words": words}
    learner.credit = FadedCredit.model_validate(values)
    return plain_step(learner, examples, prompts, step, beta)


if __name__ == "__main__":
    ppo.ppo_step = faded_step
    main(sys.argv[1:])
