"""How programs are run, as a section of a larger configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from codeverdict.launch import TierChoice


class SandboxSettings(BaseModel):
    """How programs are run. Immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tier: TierChoice = Field(
        default="auto",
        description="auto: the best protection that works here; none: run programs without protection",
    )
    seconds: float = Field(default=2.0, gt=0, description="processor time of one program under all its tests")
