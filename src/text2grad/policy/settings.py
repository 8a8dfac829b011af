"""What a policy is made of and how it speaks. Plain settings; importing this module imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from text2grad.settings import Settings as Settings


class LoraSettings(Settings):
    """Low-rank adapters (the paper's Table 9: r 16, alpha 32, dropout .1 on q_proj and v_proj)."""

    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    targets: tuple[str, ...] = ("q_proj", "v_proj")


class PolicySettings(Settings):
    """A Hugging Face causal language model by hub name or folder, and how it is adapted."""

    model: str
    lora: LoraSettings | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    device: str = "auto"
    chat_template: str | None = Field(default=None, description="file with a Jinja chat template")
    value_head: Literal["shared", "detached", "separate"] = "shared"


class GenerationSettings(Settings):
    """How responses are sampled. The policy is scored at the temperature at which it sampled."""

    max_new_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, ge=0.0)
    batch_size: int = Field(default=64, ge=1)
