"""The unit critic: a model that labels each step or each token of an answer, and writes nothing (appendix N)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from pydantic import Field

from text2grad.critics.spec import CriticSpec, Ready
from text2grad.errors import UserError
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
from text2grad.json_text import from_json
from text2grad.settings import Settings
from text2grad.train.settings import SupervisedSettings
from text2grad_lab.baselines.steps import steps_of

UnitKind = Literal["steps", "tokens"]
"""Steps of an answer (PRM-PPO), or the model's own tokens (dense reward)."""
UNITS_FILE = "units.json"
"""Beside a unit model: the kind of units it labels, and its figures on held-out answers."""


class UnitModelSettings(Settings):
    """`extra.unit_model`: the unit model, its training and its use as a critic."""

    units: UnitKind = Field(default="steps", description="the units the critic labels")
    folder: Path | None = Field(default=None, description="of the model; null: this run's own")
    poor_threshold: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="probability from which a step or token is poor; null: where poor is the likeliest label",
    )
    training: SupervisedSettings = SupervisedSettings()


class Labeller(Protocol):
    """Labels the units of answers."""

    def label(
        self,
        prompts: Sequence[Sequence[Message]],
        answers: Sequence[str],
        places: Sequence[Sequence[Place]] | None,
    ) -> list[list[LabelledPlace] | Failure]:
        """Return the units of `answers[i]` to `prompts[i]` with labels: those at `places[i]`; None: the tokens."""
        ...


class UnitCritic:
    """A labeller as a critic: a span per good or poor unit, no words, and the poor share as the verdict."""

    def __init__(self, labeller: Labeller, units: UnitKind, source: Source) -> None:
        self.source = source
        self._labeller, self._units = labeller, units

    @property
    def tokens(self) -> float:
        """Tokens read by the labeller, where it counts them."""
        return tokens_of(self._labeller)

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Label all responses; one that the labeller cannot read is a failure."""
        places = None
        if self._units == "steps":
            places = [steps_of(example, text) for example, text in zip(examples, responses, strict=True)]
        labelled = self._labeller.label([example.prompt for example in examples], responses, places)
        return [judgement_of(text, units) for text, units in zip(responses, labelled, strict=True)]


def judgement_of(response: str, units: list[LabelledPlace] | Failure) -> Judgement:
    """Convert labelled units to a critique."""
    if isinstance(units, Failure):
        return units
    return Critique(text="", spans=spans_at(units, response), score=_verdict(units))


def _verdict(units: Sequence[LabelledPlace]) -> float | None:
    """1 - 2 * (share of the units' characters that are poor), in [-1, 1]; None for an answer without units.

    A share, since a sum of faults would favour short answers.
    """
    total = sum(unit.end - unit.start for unit in units)
    poor = sum(unit.end - unit.start for unit in units if unit.label < 0)
    return round(1 - 2 * poor / total, 2) if total else None


def model_folder(settings: UnitModelSettings, run: Path) -> Path:
    """Return the folder of the trained model: the configured one, or this run's own."""
    return settings.folder or run / "unit_model" / settings.units / "policy"


def make_critic(settings: UnitModelSettings, ready: Ready) -> UnitCritic:
    """Load the unit model that was trained on this run's feedback.

    Raises:
        UserError: there is none, its training was not finished, or it labels other units.
    """
    from text2grad_lab.baselines.unit_model import UnitModel, load_unit_head

    folder = model_folder(settings, ready.run.path)
    file = folder / UNITS_FILE
    if not file.is_file():
        cure = f"python -m text2grad_lab train-units {settings.units} --run.folder {ready.run.path}"
        raise UserError(f"no unit model of {settings.units} in {folder}", cure)
    units = from_json(file.read_text(encoding="utf-8"))["units"]
    if units != settings.units:
        raise UserError(f"the unit model in {folder} labels {units}", f"--extra.unit_model.units {units}")
    policy = load_unit_head(ready.run.load_model(folder), folder)
    source = Source(kind="reward_model", model=str(folder), prompt_version=units)
    return UnitCritic(UnitModel(policy, poor_threshold=settings.poor_threshold), units, source)


UNIT_MODEL = CriticSpec(
    "unit_model",
    make=make_critic,
    settings=UnitModelSettings,
    manner=("training",),
    files=lambda settings, run: {"the unit model": model_folder(settings, run)},
    source="reward_model",
    words=False,
    about="trained on feedback, labels steps or tokens",
)
