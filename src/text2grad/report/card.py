"""The model card of an exported model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined


@dataclass(frozen=True)
class Card:
    """What a model card says. `base` is empty for a model made on the spot; `metrics` by name."""

    title: str
    role: str
    base: str
    license: str
    data: str
    command: str
    versions: Mapping[str, str]
    metrics: Mapping[str, float]


def model_card(card: Card) -> str:
    """The README.md of a model folder, in Markdown with the front matter of the Hugging Face hub."""
    template = (resources.files("text2grad.report") / "card.md.j2").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    return environment.from_string(template).render(asdict(card))
