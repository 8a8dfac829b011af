"""What all training on a fixed set of examples shares. Plain settings; importing this module
imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from text2grad.settings import Settings

Schedule = Literal["constant", "linear", "cosine"]


class CourseSettings(Settings):
    """The course of the learning rate over a run, and the decay of weights."""

    schedule: Schedule = Field(default="linear", description="of the learning rate, in all training but PPO")
    warmup: float = Field(default=0.03, ge=0, lt=1, description="share of the steps")
    weight_decay: float = Field(default=0.0, ge=0)
