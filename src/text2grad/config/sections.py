"""Declare all settings of a run, one section per part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from text2grad.align import CreditSettings
from text2grad.critics.program.critic import ProgramSettings
from text2grad.critics.prompted.settings import PromptedSettings, RewardModelCriticSettings
from text2grad.critics.reference import ReferenceSettings
from text2grad.critics.served import is_address, parse_address
from text2grad.critics.table import CRITICS
from text2grad.durable.settings import CourseSettings
from text2grad.engines.settings import EngineSettings
from text2grad.named import check_name
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
"""The most CPU threads; the operating system refuses to start more."""


class RunSettings(Settings):
    """Output folder, seed, threads and loggers of a run."""

    folder: Path = Field(
        default=Path("runs/default"),
        description="folder for everything that the run writes",
        json_schema_extra=MAY_CHANGE,
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of all random draws")
    threads: int | None = Field(
        default=None,
        ge=1,
        le=THREAD_LIMIT,
        description="CPU threads of torch; null: OMP_NUM_THREADS if set, else the available cores, at most 4",
    )
    loggers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(
        default_factory=list,
        description="loggers that receive the metrics in addition to metrics.jsonl",
        json_schema_extra=MAY_CHANGE,
    )


class RewardModelSettings(Settings):
    """The reward model, which writes a critique and its span map (paper, section 3.4)."""

    kind: Literal["generative", "tagger"] = Field(
        default="generative",
        description="generative: writes the critique, the span map and the verdict as its output z (paper); tagger:"
        " writes nothing, a linear layer labels each response token, and the verdict is (good - poor) /"
        " (good + poor) characters",
    )
    model: str | None = Field(
        default=None,
        description="another model to start from, trained with policy.lora and policy.dtype; null: the SFT policy",
        json_schema_extra=MAY_CHANGE,
    )
    critique: bool = Field(
        default=True, description="write a critique before the span map; false: omit it (the paper's ablation)"
    )
    reasons: bool = Field(default=True, description="write the reason of each span if the annotations have reasons")
    score_head: bool = Field(
        default=False,
        description="predict the verdict with a linear layer on the state before z, not as a number at its end; a"
        " pretrained model learns this from a few hundred critiques (generative only)",
    )
    damaged: float | None = Field(
        default=None,
        ge=0,
        description="corrupted answers added as poor examples, as a share of the training records; null: 0.5 with"
        " fewer than 500 records, else 0",
    )
    label_weight: float = Field(
        default=0.0,
        ge=0,
        description="weight of a second loss, which predicts the label of every response token from a middle layer"
        " and teaches a small model to look at the response; a tagger has no other loss (0 then counts as 1)",
    )
    shared: bool = Field(
        default=False,
        description="keep the reward model as a second adapter, so that policy, reference and reward model share"
        " one set of base weights",
    )
    training: NextTokenSettings = NextTokenSettings()
    keep_every: int | None = Field(
        default=None,
        ge=1,
        description="steps between saved models, reward_model/reward_model-step-K; null: only the last is saved",
        json_schema_extra=MAY_CHANGE,
    )
    max_new_tokens: int = Field(default=256, ge=1, description="maximum tokens of a critique")
    grounded: Grounding = Field(
        default="auto",
        description="let critiques quote only text of the response; auto: on if llguidance is installed",
    )

    @model_validator(mode="after")
    def _one_verdict(self) -> RewardModelSettings:
        if self.score_head and self.tags:
            raise ValueError("a tagger computes its verdict from its spans: set score_head to false")
        return self

    @property
    def tags(self) -> bool:
        """True if the reward model is a tagger."""
        return self.kind == "tagger"

    @property
    def weight_of_labels(self) -> float:
        """The weight of the label loss: `label_weight`, or 1 for a tagger without one."""
        return self.label_weight or float(self.tags)


def _critic_name(name: str) -> str:
    if is_address(name):
        return parse_address(name)
    return check_name(name, CRITICS, "module:Class or http://HOST:PORT")


CriticKind = Annotated[str, AfterValidator(_critic_name)]
"""One of `CRITICS`, a user's class as `module:Class`, or the address of `text2grad serve`."""


class CriticSettings(Settings):
    """The critic that gives feedback while annotating and in the training loop."""

    kind: CriticKind = Field(
        default="reward_model",
        description="; ".join(f"{kind}: {spec.about}" for kind, spec in CRITICS.items())
        + "; module:Class: a critic of your own; http://HOST:PORT: a critic served by text2grad serve",
    )
    prompted: PromptedSettings = PromptedSettings()
    program: ProgramSettings = ProgramSettings()
    reference: ReferenceSettings = ReferenceSettings()
    reward_model: RewardModelCriticSettings = RewardModelCriticSettings()


class AnnotateSettings(Settings):
    """The responses that `annotate` samples and the critic that judges them."""

    critic: CriticKind | None = Field(default=None, description="critic that annotates; null: critic.kind")
    prompts: int | None = Field(default=None, ge=1, description="number of training prompts; null: all")
    heldout: int | None = Field(
        default=None,
        ge=1,
        description="number of held-out prompts, to measure reward models on; null: evaluate.limit",
    )
    samples_per_prompt: int = Field(default=1, ge=1, description="responses sampled for each prompt")
    run_tests: bool = Field(
        default=False,
        description="run the tests of sampled programs and show the outcome to the chat model that judges them",
    )


class EvaluateSettings(Settings):
    """The measurement of a policy on held-out prompts."""

    samples: int = Field(default=4, ge=1, description="sampled answers per prompt, in addition to the greedy one")
    limit: int | None = Field(default=None, ge=1, description="number of held-out prompts; null: all")
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        default=(),
        description="temperatures to try on training prompts, e.g. [0.3, 0.5, 0.7, 1.0]; the policy also answers"
        " at the best one, which distinguishes learning from sharpening; empty: none",
    )
    validation: int = Field(
        default=64,
        ge=1,
        description="number of training prompts, the last ones, used to choose the temperature",
    )
    judge: str = Field(
        default="",
        description="chat model that compares answers (--against) or critiques of the reward model with others;"
        " empty: none",
    )
    judge_url: str | None = Field(
        default=None, description="address of the judge; null: OPENAI_BASE_URL, else the OpenAI service"
    )
    token_reward: bool = Field(
        default=True, description="also score the answers with the reward model if the run has one"
    )


class JudgeSettings(Settings):
    """The prompt and token limit of `evaluate.judge` when it compares two answers or critiques."""

    prompt: str | None = Field(
        default=None,
        description="name of a prompt (summarization_e1, code_e2, qa_e3: the paper's ratings from 0 to 10) or a"
        " text file of your own; null: ask for one word (first, second or tie)",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="maximum tokens of a judgement; null: 16 for one word, 1024 for ratings; reasoning models need"
        " more",
    )


class Config(Settings):
    """All settings of a run, one section per part."""

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
        description="settings of your own critics and commands, one section for each name (docs/extend.md)",
    )
