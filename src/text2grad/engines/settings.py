"""Settings of the engine that trains.

This module does not import torch.
"""

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
        description="Python interpreter of the environment with verl; null: the current one",
        json_schema_extra=MAY_CHANGE,
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="configuration keys of verl that override the generated ones",
        json_schema_extra=MAY_CHANGE,
    )


class EngineSettings(Settings):
    """The trainer that runs the recipe (docs/engines.md)."""

    name: EngineName = Field(
        default="local",
        description="trainer that runs the recipe; local: one process, exactly reproducible; trl: one machine;"
        " verl: a cluster",
    )
    trl: dict[str, Any] = Field(
        default_factory=dict,
        description="fields of TRL's GRPOConfig (use_vllm, gradient_checkpointing, bf16, ...)",
        json_schema_extra=MAY_CHANGE,
    )
    verl: VerlSettings = VerlSettings()
