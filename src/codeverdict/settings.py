"""Settings of the sandbox, for use as a section of a larger configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from codeverdict.launch import TierChoice


class SandboxSettings(BaseModel):
    """Settings of the sandbox; immutable, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tier: TierChoice = Field(
        default="auto",
        description="protection of the machine; auto: the best that works on it; none: no protection",
    )
    seconds: float = Field(
        default=2.0, gt=0, description="seconds of processor time of a program for all its tests"
    )
