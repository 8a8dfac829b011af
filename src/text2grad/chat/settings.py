"""Which chat model is asked, and how."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from text2grad.settings import Settings


class EndpointSettings(Settings):
    """A chat model behind an OpenAI-compatible server: OpenAI, Azure, vLLM, Ollama, a LiteLLM
    proxy."""

    model: str = Field(default="", description="its name at the server")
    base_url: str | None = Field(default=None, description="null: the OpenAI service; the key is in OPENAI_API_KEY")
    temperature: float | None = Field(default=0.0, ge=0, le=2, description="null: the server's own")
    max_tokens: int = Field(default=1024, ge=1, description="of one answer")
    concurrency: int = Field(default=8, ge=1, description="requests open at once")
    prices: Path | None = Field(default=None, description="file of prices; null: those that come with text2grad")
    budget_usd: float | None = Field(
        default=None, ge=0, description="never spend more on one journal of answers; null: no limit"
    )
