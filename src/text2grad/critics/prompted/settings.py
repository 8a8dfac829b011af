"""Settings of critics that are chat models: an endpoint with its prompt, and the trained reward
model."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from text2grad.chat.settings import EndpointSettings
from text2grad.settings import Settings


class PromptedSettings(EndpointSettings):
    """The prompted critic: a chat model behind an endpoint, and its prompt."""

    prompt: str | None = Field(
        default=None,
        description="what replaces the task's critic prompt: a prompt by its name, a text file of your own, or"
        " module:NAME of a Prompt, whose answers may have a format of their own",
    )


class RewardModelCriticSettings(Settings):
    """The trained reward model as a critic."""

    folder: Path | None = Field(
        default=None, description="of the model, or with base_url its name at the server; null: this run's own"
    )
    base_url: str | None = Field(
        default=None, description="an OpenAI-compatible server that holds the model; null: loaded in this process"
    )
    gate: bool = Field(
        default=True, description="train refuses a reward model that train-reward found unfit; false: trains"
    )
