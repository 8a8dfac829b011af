"""Settings of chat-model critics: an endpoint with its prompt, and the trained reward model."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from text2grad.chat.settings import EndpointSettings
from text2grad.settings import Settings


class PromptedSettings(EndpointSettings):
    """The prompted critic: a chat model behind an endpoint, and its prompt."""

    prompt: str | None = Field(
        default=None,
        description="replaces the task's critic prompt: the name of a bundled prompt, a text file, or module:NAME"
        " of a Prompt, which may define its own answer format",
    )


class RewardModelCriticSettings(Settings):
    """The trained reward model as a critic."""

    folder: Path | None = Field(
        default=None,
        description="folder of the model, or with base_url its name on the server; null: the model of this run",
    )
    base_url: str | None = Field(
        default=None, description="an OpenAI-compatible server of the model; null: load it in this process"
    )
    gate: bool = Field(
        default=True, description="refuse to train with a reward model that train-reward found unfit"
    )
