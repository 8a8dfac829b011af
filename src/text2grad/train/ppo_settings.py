"""Define the settings of PPO; docs/method.md names the paper's choice for each. No torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from text2grad.durable.settings import Schedule
from text2grad.errors import UserError
from text2grad.policy.settings import GenerationSettings
from text2grad.settings import MAY_CHANGE, Settings


class PPOSettings(Settings):
    """NL-gradient PPO (paper, section 3.5 and Algorithm 4)."""

    steps: int = Field(default=50, ge=1, description="rollout batches")
    rollouts: int = Field(default=64, ge=1, description="responses per step (the update batch)")
    samples_per_prompt: int = Field(default=1, ge=1, description="responses to one prompt within a step")
    epochs: int = Field(default=4, ge=1, description="passes over one batch of rollouts")
    mini_batches: int = Field(default=1, ge=1, description="optimizer steps per pass")
    micro_batch_size: int = Field(default=64, ge=1, description="responses per forward pass")
    lr: float = Field(default=1e-6, gt=0, description="learning rate")
    value_lr: float | None = Field(default=None, gt=0, description="learning rate of the value head; null: lr")
    schedule: Schedule = Field(default="constant", description="schedule of the learning rate")
    advantage: Literal["gae", "returns", "group"] = Field(
        default="returns",
        description="returns: rewards to come, discounted by gamma x lam; gae: the same with a value function"
        " (paper); group: the verdict compared with the other answers to the prompt, on every token, plus the"
        " returns of the spans",
    )
    drop_equal_groups: bool = Field(
        default=False,
        description="remove answers from the loss if all answers to their prompt earned the same (DAPO); they"
        " still count as rollouts",
    )
    lost_groups: Literal["paid", "shared"] = Field(
        default="paid",
        description="for prompts whose answers all have the same verdict below 0. paid: no special case; shared:"
        " drop the verdict, which is identical across the group, and let the poor words of an answer share -1 (no"
        " effect where only a verdict is paid)",
    )
    mask_truncated: bool = Field(
        default=False, description="remove answers cut at generation.max_new_tokens from the loss"
    )
    gamma: float = Field(
        default=0.7, ge=0, le=1, description="discount of later rewards; 1 for a score at the end (paper: 1)"
    )
    lam: float = Field(
        default=0.95, ge=0, le=1, description="lambda of GAE; returns and group discount by gamma x lam"
    )
    clip_high: float | None = Field(
        default=None, gt=0, description="epsilon for ratios above 1; null: 0.2, as below 1"
    )
    value_warmup: int = Field(
        default=5, ge=0, description="steps that train only the value function (advantage gae)"
    )
    normalisation: Literal["none", "scale", "whiten"] = Field(
        default="scale",
        description="normalisation of advantages; scale: divide by their RMS; whiten: also subtract their mean",
    )
    kl: Literal["full", "k1", "k3"] = Field(
        default="k1",
        description="k1, k3: estimates from the sampled token; full: over the whole vocabulary (paper), which as a"
        " reward does not pull tokens back to the reference (docs/method.md)",
    )
    kl_coefficient: float = Field(default=0.4, ge=0, description="initial beta, the weight of the KL")
    kl_target: float | None = Field(
        default=None, gt=0, description="target of the mean KL per response; null: beta is fixed"
    )
    max_failed: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of failed critiques that stops the run",
        json_schema_extra=MAY_CHANGE,
    )
    max_unmatched: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="share of quotes not in the answers, over ten steps, that stops the run",
        json_schema_extra=MAY_CHANGE,
    )
    max_kl: float | None = Field(
        default=3.0,
        gt=0,
        description="nats per token from the reference at which the run stops as diverged; null: no limit",
        json_schema_extra=MAY_CHANGE,
    )
    heldout_every: int | None = Field(
        default=None,
        ge=1,
        description="steps between evaluations on held-out prompts, added to the metrics of a step; the run"
        " returns the best policy; null: no evaluations, and the run returns the last policy",
        json_schema_extra=MAY_CHANGE,
    )
    keep_every: int | None = Field(
        default=None,
        ge=1,
        description="steps between saved policies, ppo/NAME/NAME-step-K; null: only the last is saved",
        json_schema_extra=MAY_CHANGE,
    )

    @model_validator(mode="after")
    def _groups_are_whole(self) -> PPOSettings:
        if self.advantage == "group" and self.samples_per_prompt < 2:
            raise ValueError("advantage group compares answers to one prompt: set samples_per_prompt to 4")
        if self.drop_equal_groups and self.samples_per_prompt < 2:
            raise ValueError("drop_equal_groups compares answers to one prompt: set samples_per_prompt to 4")
        if self.rollouts % self.samples_per_prompt:
            raise ValueError(
                f"rollouts {self.rollouts} is not a multiple of samples_per_prompt {self.samples_per_prompt}"
            )
        return self

    @property
    def valued(self) -> bool:
        """True if there is a value function."""
        return self.advantage == "gae"

    @property
    def warmup_steps(self) -> int:
        """Steps that train only the value function; 0 without one."""
        return self.value_warmup if self.valued else 0

    @property
    def no_update_reason(self) -> str:
        """The reason why no step would change the policy; empty if one does."""
        if self.warmup_steps < self.steps:
            return ""
        return (
            f"all ppo.steps ({self.steps}) would be warm-up of the value function (ppo.value_warmup"
            f" {self.value_warmup}), so the policy would not change"
        )


def refuse_greedy(generation: GenerationSettings) -> None:
    """Raise a `UserError` if the temperature is 0."""
    if generation.temperature <= 0:
        raise UserError("PPO needs a temperature above 0, because it samples", "set generation.temperature")
