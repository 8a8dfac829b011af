"""Settings shared by all training on a fixed set of examples.

This module does not import torch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from text2grad.settings import Settings

Schedule = Literal["constant", "linear", "cosine"]


class CourseSettings(Settings):
    """The learning-rate schedule and weight decay of a run."""

    schedule: Schedule = Field(default="linear", description="schedule of the learning rate, except in PPO")
    warmup: float = Field(
        default=0.03, ge=0, lt=1, description="share of the steps in which the learning rate rises to its peak"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay")
