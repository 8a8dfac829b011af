"""All settings of a run, a section for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from text2grad.align import CreditSettings
from text2grad.critics.program.critic import ProgramSettings
from text2grad.critics.prompted.settings import PromptedSettings, RewardModelCriticSettings
from text2grad.critics.reference import ReferenceSettings
from text2grad.critics.served import checked_address, is_address
from text2grad.critics.table import CRITICS
from text2grad.durable.settings import CourseSettings
from text2grad.engines.settings import EngineSettings
from text2grad.named import known_name
from text2grad.policy.settings import (
    GenerationSettings,
    Grounding,
    PolicySettings,
    TinySettings,
)
from text2grad.sandbox import SandboxSettings
from text2grad.settings import MAY_CHANGE, Settings
from text2grad.tasks.base import TaskSettings
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.settings import (
    NextTokenSettings,
    OfflineSettings,
    SFTSettings,
)

TINY = "tiny"
THREAD_LIMIT = 1024
"""More are a mistake, and the system refuses to start them."""


class RunSettings(Settings):
    """Where a run is written, and what makes it repeatable."""

    folder: Path = Field(
        default=Path("runs/default"),
        description="everything a run writes goes here",
        json_schema_extra=MAY_CHANGE,
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="of everything that is drawn at random")
    threads: int | None = Field(
        default=None,
        ge=1,
        le=THREAD_LIMIT,
        description="CPU threads of torch; null: OMP_NUM_THREADS, or the cores that may be used, at most 4",
    )
    loggers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(
        default_factory=list,
        description="where metrics go beside metrics.jsonl: tensorboard, trackio, wandb",
        json_schema_extra=MAY_CHANGE,
    )


class RewardModelSettings(Settings):
    """The reward model: a chat model trained to write the critique and its span map (paper, section
    3.4)."""

    kind: Literal["generative", "tagger"] = Field(
        default="generative",
        description="generative: writes the critique, the span map and the verdict as z (paper); tagger: writes"
        " nothing, a linear map labels each token of the response where it stands in the prompt, and the verdict is"
        " the characters praised less those blamed, as a share of both",
    )
    model: str | None = Field(
        default=None,
        description="another model to start from, with policy.lora and policy.dtype; null: the SFT policy",
        json_schema_extra=MAY_CHANGE,
    )
    critique: bool = Field(
        default=True, description="z begins with the critique; false: the span map alone (the paper's ablation)"
    )
    reasons: bool = Field(default=True, description="z gives the reason of each span, where annotations have one")
    score_head: bool = Field(
        default=False,
        description="a linear map reads the verdict off the state before z, instead of a number at its end; a"
        " pretrained model learns it from a few hundred critiques (generative)",
    )
    damaged: float | None = Field(
        default=None,
        ge=0,
        description="spoiled answers taught as poor, as a share of the training records; null: .5 where these are"
        " fewer than 500, else none",
    )
    label_weight: float = Field(
        default=0.0,
        ge=0,
        description="of a second loss: the label of every response token, read off a middle layer; it teaches a"
        " small model to look at the response (a tagger learns by it, with weight 1 where this is 0)",
    )
    shared: bool = Field(
        default=False,
        description="an adapter beside the policy's: policy, reference, reward model on one set of base weights",
    )
    training: NextTokenSettings = NextTokenSettings()
    max_new_tokens: int = Field(default=256, ge=1, description="longest critique")
    grounded: Grounding = Field(
        default="auto",
        description="critiques can only quote text of the response; auto: if llguidance is installed",
    )

    @model_validator(mode="after")
    def _one_verdict(self) -> RewardModelSettings:
        if self.score_head and self.tags:
            raise ValueError("the verdict of a tagger is what its spans come to: set score_head to false")
        return self

    @property
    def tags(self) -> bool:
        """True for a tagger."""
        return self.kind == "tagger"

    @property
    def weight_of_labels(self) -> float:
        """`label_weight`, or 1 for a tagger, which learns nothing else."""
        return self.label_weight or float(self.tags)


def _critic_name(name: str) -> str:
    if is_address(name):
        return checked_address(name)
    return known_name(name, CRITICS, "module:Class or http://HOST:PORT")


CriticKind = Annotated[str, AfterValidator(_critic_name)]
"""One of `CRITICS`, a class of one's own written as `module:Class`, or the address of
`text2grad serve`."""


class CriticSettings(Settings):
    """Who gives the feedback: while annotating, and in the training loop."""

    kind: CriticKind = Field(
        default="reward_model",
        description="; ".join(f"{kind}: {spec.about}" for kind, spec in CRITICS.items())
        + "; module:Class: a critic of your own; http://HOST:PORT: one that text2grad serve holds",
    )
    prompted: PromptedSettings = PromptedSettings()
    program: ProgramSettings = ProgramSettings()
    reference: ReferenceSettings = ReferenceSettings()
    reward_model: RewardModelCriticSettings = RewardModelCriticSettings()


class AnnotateSettings(Settings):
    """Which responses are sampled for feedback, and who judges them."""

    critic: CriticKind | None = Field(default=None, description="who annotates; null: critic.kind")
    prompts: int | None = Field(default=None, ge=1, description="null: every training prompt")
    heldout: int | None = Field(
        default=None, ge=1, description="held-out prompts, to measure reward models on; null: as evaluate.limit"
    )
    samples_per_prompt: int = Field(default=1, ge=1)
    run_tests: bool = Field(
        default=False, description="of sampled programs, before a chat model judges them: it is shown the outcome"
    )


class EvaluateSettings(Settings):
    """How a policy is measured on the held-out prompts."""

    samples: int = Field(default=4, ge=1, description="sampled answers to a prompt, beside the greedy one")
    limit: int | None = Field(default=None, ge=1, description="held-out prompts; null: all")
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        default=(),
        description="also answer at the best of these, e.g. [0.3, 0.5, 0.7, 1.0], chosen on training prompts, to"
        " tell learning from sharpening; empty: no",
    )
    validation: int = Field(
        default=64,
        ge=1,
        description="prompts to choose the temperature on: the last of the training prompts",
    )
    judge: str = Field(
        default="",
        description="chat model that compares answers (--against), or the reward model's critiques with others;"
        " empty: none",
    )
    judge_url: str | None = Field(default=None, description="of the judge; null: the OpenAI service")
    token_reward: bool = Field(
        default=True, description="have the reward model judge the answers too, where the run has one"
    )


class JudgeSettings(Settings):
    """How the judge of `evaluate.judge` is asked to compare two answers, or two critiques."""

    prompt: str | None = Field(
        default=None,
        description="a prompt by its name (summarization_e1, code_e2, qa_e3: the paper's, rated from 0 to 10) or a"
        " text file of your own; null: one word, first, second or tie",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="of one answer; null: 16 for a word, 1024 for ratings; a model that reasons needs more",
    )


class Config(Settings):
    """All settings of a run, a section for each part."""

    run: RunSettings = RunSettings()
    task: TaskSettings
    policy: PolicySettings
    tiny: TinySettings = TinySettings()
    training: CourseSettings = CourseSettings()
    sft: SFTSettings = SFTSettings()
    reward_model: RewardModelSettings = RewardModelSettings()
    critic: CriticSettings = CriticSettings()
    credit: CreditSettings = CreditSettings()
    ppo: PPOSettings = PPOSettings()
    engine: EngineSettings = EngineSettings()
    offline: OfflineSettings = OfflineSettings()
    generation: GenerationSettings = GenerationSettings()
    annotate: AnnotateSettings = AnnotateSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    judge: JudgeSettings = JudgeSettings()
    sandbox: SandboxSettings = SandboxSettings()
    extra: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="settings of your own critics and commands, a section for each by its name (docs/extend.md)",
    )
