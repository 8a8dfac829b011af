"""The scalar critic: a reward model that was trained on preferences gives a verdict, and no span (appendix N)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import Field

from text2grad.critics.spec import CriticSpec
from text2grad.feedback import Critique, Example, Failure, Judgement, Message, Source, tokens_of
from text2grad.settings import Settings


class ScalarModelCriticSettings(Settings):
    """The trained scalar reward model as a critic: a verdict without spans."""

    folder: Path | None = Field(default=None, description="of the model; null: this run's own")


class Scorer(Protocol):
    """Scores answers with unbounded numbers, higher is better; None if it cannot."""

    def scores(self, prompts: Sequence[Sequence[Message]], answers: Sequence[str]) -> list[float | None]:
        """The score of `answers[i]` to `prompts[i]`."""
        ...


class Scale(NamedTuple):
    """Mean and standard deviation of a model's scores of the answers that it was trained on."""

    mean: float
    spread: float


class ScalarCritic:
    """A scorer as a critic: the verdict is 2 sigmoid(z) - 1, z being the standardised score.

    It is what the model says of the chance that this answer is preferred to an average one, from -1 to 1, with a
    spread of one. `meta` has the score (`reward`) and `z` (`standardised`).
    """

    def __init__(self, scorer: Scorer, scale: Scale, source: Source) -> None:
        self.source = source
        self._scorer, self._scale = scorer, scale

    @property
    def tokens(self) -> float:
        """Read by the scorer, where it counts them."""
        return tokens_of(self._scorer)

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Score all responses; one that is too long for the model, or has no finite score, is a failure."""
        scores = self._scorer.scores([example.prompt for example in examples], responses)
        return [self._judgement(score) for score in scores]

    def _judgement(self, score: float | None) -> Judgement:
        if score is None:
            return Failure(kind="unsupported", message="prompt and response are longer than the model's context")
        if not math.isfinite(score):
            return Failure(kind="invalid", message=f"the score is {score}")
        standardised = (score - self._scale.mean) / self._scale.spread
        meta = {"reward": score, "standardised": standardised}
        return Critique(text="", score=math.tanh(standardised / 2), meta=meta)


SCALAR_MODEL = CriticSpec(
    "scalar_model",
    make=lambda materials: materials.opened(),
    settings=ScalarModelCriticSettings,
    inputs=lambda materials: {"the scalar reward model": materials.digest(materials.model)},
    source="reward_model",
    words=False,
    about="trained here on preference pairs, gives a verdict without spans",
)
