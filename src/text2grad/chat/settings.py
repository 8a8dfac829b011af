"""Settings of a chat model behind a server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from text2grad.settings import Settings


class EndpointSettings(Settings):
    """A model of an OpenAI-compatible server: OpenAI, Azure, vLLM, Ollama, a LiteLLM proxy."""

    model: str = Field(default="", description="name of the model at the server")
    base_url: str | None = Field(
        default=None,
        description="base URL of the server; null: OPENAI_BASE_URL, else the OpenAI service; the key is read from"
        " OPENAI_API_KEY",
    )
    temperature: float | None = Field(
        default=0.0, ge=0, le=2, description="sampling temperature; null: the default of the server"
    )
    max_tokens: int = Field(default=1024, ge=1, description="maximum tokens of one answer")
    concurrency: int = Field(default=8, ge=1, description="maximum number of open requests")
    prices: Path | None = Field(default=None, description="file of prices; null: the prices in text2grad")
    budget_usd: float | None = Field(
        default=None, ge=0, description="the most to spend on one journal of answers; null: no limit"
    )
