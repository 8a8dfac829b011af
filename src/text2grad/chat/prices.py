"""Prices of tokens, read from a file that users can edit; prices are never guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from text2grad.chat.journal import amount
from text2grad.errors import UserError, first_error
from text2grad.feedback import Record
from text2grad.strict_yaml import YAMLMistakeError, parse_yaml

DEFAULT_PRICES = Path(__file__).with_name("prices.yaml")
CHARACTERS_PER_TOKEN = 4
"""An estimate for English."""
TEMPLATE_TOKENS = 16
"""Maximum tokens that a chat template adds to a message."""
IMPLAUSIBLE = 10.0
"""A count of a server is ignored if it exceeds the possible maximum by this factor."""


class Price(Record):
    """USD per million tokens; `batch` is the factor of the batch API."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    batch: float = Field(default=1.0, gt=0, le=1)

    def cost(self, usage: Mapping[str, float], batch: bool = False) -> float:
        """Return the price of one answer in USD."""
        tokens = usage.get("prompt_tokens", 0) * self.input + usage.get("completion_tokens", 0) * self.output
        return tokens / 1e6 * (self.batch if batch else 1.0)


def read_prices(file: Path | None) -> dict[str, Price]:
    """Read the prices by the exact names of models; None: the prices in text2grad.

    Raises:
        UserError: the file cannot be read, or an entry is invalid.
    """
    path = file or DEFAULT_PRICES
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLMistakeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"cannot read the prices {path}: {reason}", "check critic.prompted.prices") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: no prices", "write MODEL: {input: 2.5, output: 10}")
    prices = {}
    for model, entry in content.items():
        try:
            prices[str(model)] = Price.model_validate(entry)
        except ValidationError as error:
            raise UserError(f"{path}: {model}: {first_error(error)}", "write {input: 2.5, output: 10}") from error
    return prices


def max_tokens_of(texts: Sequence[str], max_tokens: int) -> dict[str, float]:
    """Return an upper bound of a request's usage, with one token per byte of its texts."""
    return {
        "prompt_tokens": float(sum(len(text.encode("utf-8", "replace")) + TEMPLATE_TOKENS for text in texts)),
        "completion_tokens": float(max_tokens),
    }


def plausible_usage(usage: Mapping[str, Any], most: Mapping[str, float]) -> dict[str, float]:
    """Return the plausible counts of a server: above 0 and not far above the maximum in `most`."""
    counts = {name: amount(usage.get(name)) or 0.0 for name in most}
    return {name: count for name, count in counts.items() if 0 < count <= IMPLAUSIBLE * most[name]}
