"""The unit critic: a model that labels each step or each token of an answer, and says nothing else (appendix N)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from text2grad.critics.spec import CriticSpec
from text2grad.critics.steps import steps_of
from text2grad.feedback import (
    Critique,
    Example,
    Failure,
    Judgement,
    LabelledPlace,
    Message,
    Place,
    Source,
    spans_at,
    tokens_of,
)
from text2grad.settings import Settings

Units = Literal["steps", "tokens"]
"""What is labelled: the steps of an answer (PRM-PPO), or each of the model's own tokens (dense reward)."""


class UnitModelCriticSettings(Settings):
    """The trained unit model as a critic: a label for each step or token, no words, how much is poor as verdict."""

    units: Units = Field(default="steps", description="what it labels; must match its training")
    folder: Path | None = Field(default=None, description="of the model; null: this run's own")
    poor_threshold: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="probability from which a step or token is poor; null: where poor is the likeliest label",
    )


class Labeller(Protocol):
    """Labels the units of answers."""

    def label(
        self,
        prompts: Sequence[Sequence[Message]],
        answers: Sequence[str],
        places: Sequence[Sequence[Place]] | None,
    ) -> list[list[LabelledPlace] | Failure]:
        """The units of `answers[i]` to `prompts[i]` with their labels: those at `places[i]`; None: the tokens."""
        ...


class UnitCritic:
    """A labeller as a critic: one span for each unit that is good or poor, no words, and how much of it is poor as
    the verdict."""

    def __init__(self, labeller: Labeller, units: Units, source: Source) -> None:
        self.source = source
        self._labeller, self._units = labeller, units

    @property
    def tokens(self) -> float:
        """Read by the labeller, where it counts them."""
        return tokens_of(self._labeller)

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Label all responses; one that the labeller cannot read is a failure."""
        places = None
        if self._units == "steps":
            places = [steps_of(*each) for each in zip(examples, responses, strict=True)]
        found = self._labeller.label([example.prompt for example in examples], responses, places)
        return [judgement_of(*each) for each in zip(responses, found, strict=True)]


def judgement_of(response: str, found: list[LabelledPlace] | Failure) -> Judgement:
    """Convert labelled units to a critique."""
    if isinstance(found, Failure):
        return found
    return Critique(text="", spans=spans_at(found, response), score=_verdict(found))


def _verdict(found: Sequence[LabelledPlace]) -> float | None:
    """1 - 2 · (share of the units' characters that are poor), in [-1, 1]; None for an answer without units.

    A share, since a sum of faults would favour short answers. People's verdicts on error
    spans are computed alike, over all characters and with omissions, which no unit shows.
    """
    whole = sum(each.end - each.start for each in found)
    poor = sum(each.end - each.start for each in found if each.label < 0)
    return round(1 - 2 * poor / whole, 2) if whole else None


UNIT_MODEL = CriticSpec(
    "unit_model",
    make=lambda materials: materials.opened(),
    settings=UnitModelCriticSettings,
    inputs=lambda materials: {"the unit model": materials.digest(materials.model)},
    source="reward_model",
    words=False,
    about="trained here on feedback, labels steps or tokens",
)
