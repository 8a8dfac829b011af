"""The base of all settings. Nothing here imports torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of all settings: immutable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
