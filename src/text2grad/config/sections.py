"""All settings of a run, a section for each part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from text2grad.align import CreditSettings
from text2grad.critics.program.critic import ProgramSettings
from text2grad.critics.prompted.settings import PromptedSettings, RewardModelCriticSettings
from text2grad.critics.reference import ReferenceSettings
from text2grad.critics.scalar import ScalarModelCriticSettings
from text2grad.critics.table import CRITICS
from text2grad.durable.settings import CourseSettings
from text2grad.named import known_name
from text2grad.policy.settings import (
    GenerationSettings,
    Grounding,
    ModelSettings,
    PolicySettings,
    SamplingSettings,
    TinySettings,
)
from text2grad.sandbox import SandboxSettings
from text2grad.settings import MAY_CHANGE, Settings
from text2grad.tasks.base import TaskSettings
from text2grad.train.ppo_settings import PPOSettings
from text2grad.train.settings import (
    DPOSettings,
    NextTokenSettings,
    OfflineSettings,
    PairSettings,
    SFTSettings,
)

TINY = "tiny"
Damage = Literal["shuffled", "repeated", "degenerate", "truncated", "other"]


class RunSettings(Settings):
    """Where a run is written, and what makes it repeatable."""

    folder: Path = Field(
        default=Path("runs/default"),
        description="everything a run writes goes here",
        json_schema_extra=MAY_CHANGE,
    )
    seed: int = Field(default=0, ge=0, description="of everything that is drawn at random")
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of torch; null: the cores idle at the start, at most 4, shared by the processes",
    )
    loggers: list[Literal["tensorboard", "trackio", "wandb"]] = Field(
        default_factory=list,
        description="where metrics go beside metrics.jsonl: tensorboard, trackio, wandb",
        json_schema_extra=MAY_CHANGE,
    )
    parallel: Literal["auto", "ddp", "fsdp"] = Field(
        default="auto",
        description="weights in several processes: ddp: whole in each; fsdp: split; auto: as accelerate's profile"
        " says, else ddp",
        json_schema_extra=MAY_CHANGE,
    )


class RewardModelSettings(Settings):
    """The reward model: a chat model trained to write the critique and its span map (paper, section 3.4)."""

    policy: ModelSettings | None = Field(default=None, description="null: start from the SFT policy")
    critique: bool = Field(
        default=True, description="z begins with the critique; false: the span map alone (the paper's ablation)"
    )
    reasons: Literal["full", "short", "none"] = Field(
        default="full", description="of each span, in z; short: up to the first colon or stop, at most 4 words"
    )
    improvable: bool = Field(
        default=False, description="z has a list of what is right and could be better, where annotations have it"
    )
    repeats: int | None = Field(
        default=None,
        ge=1,
        description="train on at most this many records of one response to one prompt; null: all",
    )
    damaged: float | None = Field(
        default=None,
        ge=0,
        description="spoiled answers taught as poor, as a share of the training records; null: .5 where these are"
        " fewer than 500, else none",
    )
    damage: tuple[Damage, ...] = Field(
        default=("shuffled", "repeated", "degenerate"),
        description="how answers are spoiled, in turns; truncated and other (another prompt's answer) take more"
        " records to learn, for their words are in order",
    )
    verdict: Literal["written", "head", "spans"] = Field(
        default="written",
        description="where the verdict is. written: a number at the end of z; head: a linear map reads it off the"
        " state before z, which a pretrained model learns from a few hundred critiques; spans: the characters that"
        " its head praises less those it blames, as a share of both (spans head)",
    )
    spans: Literal["written", "head"] = Field(
        default="written",
        description="where the spans are. written: quotes in z; head: a linear map labels each token of the"
        " response where it stands in the prompt, learned beside z with label_weight (0: 1)",
    )
    poor_weight: float = Field(
        default=1.0,
        gt=0,
        description="weight of the list of poor spans in the loss: they are the rare class",
    )
    label_weight: float = Field(
        default=0.0,
        ge=0,
        description="of a second loss: the label of every response token, read off a middle layer; it teaches a"
        " small model to look at the response",
    )
    shared: bool = Field(
        default=False,
        description="an adapter beside the policy's: policy, reference, reward model on one set of base weights",
    )
    training: NextTokenSettings = NextTokenSettings()
    early_stopping: int | None = Field(
        default=None,
        ge=1,
        description="optimizer steps between measurements on critiques of some training prompts, set apart; three"
        " without improvement end training; null: all of reward_model.training.epochs",
    )
    generation: SamplingSettings = SamplingSettings(temperature=0.0)
    grounded: Grounding = Field(
        default="auto",
        description="critiques can only quote text of the response; auto: if llguidance is installed",
    )
    whole_quotes: bool = Field(
        default=False,
        description="grounded: the model decides whether a quote continues, the response with which words",
    )

    @model_validator(mode="after")
    def _verdict_has_marks(self) -> RewardModelSettings:
        if self.verdict == "spans" and self.spans != "head":
            raise ValueError("reward_model.verdict spans is what a head marks: reward_model.spans head")
        return self

    @property
    def weight_of_labels(self) -> float:
        """`label_weight`, or 1 where a head marks the spans and nothing else is said."""
        return self.label_weight or float(self.spans == "head")


class ScalarModelSettings(Settings):
    """A scalar reward model, trained on preference pairs: one number for an answer (paper, appendix N)."""

    training: PairSettings = PairSettings()


def _critic_name(name: str) -> str:
    return known_name(name, CRITICS, "module:Class")


CriticKind = Annotated[str, AfterValidator(_critic_name)]
"""One of `CRITICS`, or a class of one's own written as `module:Class`."""


class CriticSettings(Settings):
    """Who gives the feedback: while annotating, and in the training loop."""

    kind: CriticKind = Field(
        default="reward_model",
        description="; ".join(f"{kind}: {spec.about}" for kind, spec in CRITICS.items())
        + "; module:Class: a critic of your own",
    )
    prompted: PromptedSettings = PromptedSettings()
    program: ProgramSettings = ProgramSettings()
    reference: ReferenceSettings = ReferenceSettings()
    reward_model: RewardModelCriticSettings = RewardModelCriticSettings()
    scalar_model: ScalarModelCriticSettings = ScalarModelCriticSettings()


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


class BertScoreSettings(Settings):
    """BERTScore: which encoder reads the texts."""

    model: str = Field(
        default="", description="encoder, a folder or hub name; empty: no BERTScore; usual: roberta-large"
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
    reference: str = Field(
        default="",
        description="another policy (sft, a run, a folder, a hub name) that reads the answers: entropy, KL,"
        " perplexity; empty: none",
    )
    perplexity: str = Field(
        default="",
        description="model (sft, a run, a folder, a hub name) that tells the perplexity of answers; empty: none",
    )
    bertscore: BertScoreSettings = BertScoreSettings()
    marks: Path | None = Field(
        default=None, description="JSON Lines of people's marks of the reward model's critiques: id, correct"
    )
    judge: str = Field(
        default="",
        description="chat model that compares the reward model's critiques with others, compares answers"
        " (--against), and rates those to MT-Bench; empty: none",
    )
    judge_url: str | None = Field(default=None, description="of the judge; null: the OpenAI service")
    against: Path | None = Field(
        default=None, description="the others: reward_model.said.jsonl of another run; null: the annotations"
    )
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
    scalar_model: ScalarModelSettings = ScalarModelSettings()
    critic: CriticSettings = CriticSettings()
    credit: CreditSettings = CreditSettings()
    ppo: PPOSettings = PPOSettings()
    offline: OfflineSettings = OfflineSettings()
    dpo: DPOSettings = DPOSettings()
    generation: GenerationSettings = GenerationSettings()
    annotate: AnnotateSettings = AnnotateSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    judge: JudgeSettings = JudgeSettings()
    sandbox: SandboxSettings = SandboxSettings()
    extra: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="settings of your own critics and commands, a section for each by its name (docs/extend.md)",
    )

    @property
    def words_are_written(self) -> bool:
        """Whether the reward model writes in the training loop: not where heads mark spans and give the verdict."""
        by_heads = self.reward_model.spans == "head" and self.reward_model.verdict != "written"
        asked = self.critic.reward_model.words
        return asked if asked is not None else not by_heads

    @model_validator(mode="after")
    def _words_are_not_missed(self) -> Config:
        if self.critic.kind != "reward_model" or self.words_are_written:
            return self
        if self.reward_model.verdict == "written":
            raise ValueError("critic.reward_model.words false needs reward_model.verdict head: else it is written")
        if not self.credit.by_score and self.reward_model.spans != "head":
            raise ValueError(f"credit.scheme {self.credit.scheme} pays for words: critic.reward_model.words true")
        return self
