"""Settings of the sandbox."""

from __future__ import annotations

from pydantic import Field

from text2grad.sandbox.launch import TierChoice
from text2grad.settings import Settings


class SandboxSettings(Settings):
    """How generated programs are run."""

    tier: TierChoice = Field(
        default="auto",
        description="auto: the best protection that works here; none: run programs without protection",
    )
    workers: int = Field(default=1, ge=1, description="programs at a time")
    seconds: float = Field(default=2.0, gt=0, description="wall clock of one program with all its tests")
    memory_mb: int = Field(default=1024, ge=128, description="MiB that one process of a program may use")
