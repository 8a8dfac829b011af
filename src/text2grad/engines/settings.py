"""Which engine trains, and what is passed on to it. Plain settings; importing this module imports
no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from text2grad.settings import MAY_CHANGE, Settings

EngineName = Literal["local", "trl", "verl"]


class VerlSettings(Settings):
    """The Python and the options of verl."""

    python: Path | None = Field(
        default=None,
        description="Python of the environment that has verl; null: this one",
        json_schema_extra=MAY_CHANGE,
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="verl's own configuration keys, over those that are written for it",
        json_schema_extra=MAY_CHANGE,
    )


class EngineSettings(Settings):
    """The trainer that runs the recipe (docs/engines.md)."""

    name: EngineName = Field(
        default="local", description="local: one process, exact; trl: one machine; verl: a cluster"
    )
    trl: dict[str, Any] = Field(
        default_factory=dict,
        description="fields of TRL's GRPOConfig (use_vllm, gradient_checkpointing, bf16, ...)",
        json_schema_extra=MAY_CHANGE,
    )
    verl: VerlSettings = VerlSettings()
