"""A critic that labels the steps (PRM-PPO, appendix N) or the tokens of answers.

It is the tagger of text2grad (`reward_model.kind: tagger`), trained by `train-units`. A step has
the label of its last labelled token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from text2grad.critics.prompted import TaggerCritic
from text2grad.critics.spec import CriticSpec, Ready
from text2grad.errors import UserError
from text2grad.feedback import Critic, Example, Failure, Judgement, Place, Source, Span, count_critic_tokens
from text2grad.json_text import from_json
from text2grad.policy.settings import GenerationSettings
from text2grad.settings import Settings
from text2grad.tasks.base import read_prompt
from text2grad_lab.baselines.steps import steps_of

UnitKind = Literal["steps", "tokens"]
"""Steps of an answer (PRM-PPO), or the model's own tokens (dense reward)."""
UNITS_FILE = "units.json"
"""The kind of units and the figures on held-out answers, in the folder of the model."""
TAGGER = {"kind": "tagger", "model": None, "score_head": False, "shared": False, "damaged": 0.0}
"""Settings of a reward model that is a unit model."""


class UnitModelSettings(Settings):
    """`extra.unit_model`: the unit model as a critic; `reward_model.training` trains it."""

    units: UnitKind = Field(default="steps", description="the units the critic labels")
    folder: Path | None = Field(default=None, description="the model's folder; null: the one of this run")


def label_steps(judgement: Judgement, places: Sequence[Place], response: str) -> Judgement:
    """Return a span for every step with the label of its last labelled token, by default good."""
    if isinstance(judgement, Failure):
        return judgement
    spans = []
    for start, end in places:
        labels = [span.label for span in judgement.spans if span.label and span.start < end and span.end > start]
        spans.append(Span(start=start, end=end, label=(labels or [1])[-1], text=response[start:end]))
    return judgement.model_copy(update={"spans": tuple(spans)})


class StepCritic:
    """A critic whose spans are widened to the steps of each answer."""

    def __init__(self, critic: Critic) -> None:
        self.critic, self.source = critic, critic.source

    @property
    def tokens(self) -> float:
        """Tokens read by the critic."""
        return count_critic_tokens(self.critic)

    def critique(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Judgement]:
        """Judge all responses; failures are unchanged."""
        judgements = self.critic.critique(examples, responses)
        triples = zip(examples, responses, judgements, strict=True)
        return [label_steps(judgement, steps_of(example, text), text) for example, text, judgement in triples]


def model_folder(settings: UnitModelSettings, run: Path) -> Path:
    """Return the folder of the trained model: the configured one, or this run's own."""
    return settings.folder or run / "unit_model" / settings.units / "reward_model" / "policy"


def make_critic(settings: UnitModelSettings, ready: Ready) -> Critic:
    """Load the unit model that was trained on this run's feedback.

    Raises:
        UserError: there is no trained model, or it labels other units.
    """
    from text2grad.policy.heads.tagger import Tagger
    from text2grad.stages.critics import REWARD_MODEL_PROMPT

    folder = model_folder(settings, ready.run.path)
    file = folder / UNITS_FILE
    if not file.is_file():
        cure = f"python -m text2grad_lab train-units {settings.units} --run.folder {ready.run.path}"
        raise UserError(f"no unit model of {settings.units} in {folder}", cure)
    units = from_json(file.read_text(encoding="utf-8"))["units"]
    if units != settings.units:
        raise UserError(f"the unit model in {folder} labels {units}", f"--extra.unit_model.units {units}")
    source = Source(kind="reward_model", model=str(folder), prompt_version=units)
    tagger = Tagger(ready.run.load_model(folder), GenerationSettings().batch_size)
    critic = TaggerCritic(tagger, read_prompt(REWARD_MODEL_PROMPT), source)
    return StepCritic(critic) if units == "steps" else critic


UNIT_MODEL = CriticSpec(
    "unit_model",
    make=make_critic,
    settings=UnitModelSettings,
    files=lambda settings, run: {"the unit model": model_folder(settings, run)},
    source="reward_model",
    about="trained on feedback, labels steps or tokens",
)
