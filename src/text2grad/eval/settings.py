"""Settings of text measures that need a model."""

from __future__ import annotations

from pydantic import Field, model_validator

from text2grad.settings import Settings

KNOWN = {
    "roberta-large": (17, (0.83150584, 0.8314941, 0.83122575)),
    "FacebookAI/roberta-large": (17, (0.83150584, 0.8314941, 0.83122575)),
}
"""Layer and baseline (precision, recall, F1) that the bert-score package takes for English, by hub name."""


class BertScoreSettings(Settings):
    """BERTScore: which encoder reads the texts, at which layer, and what unrelated texts score."""

    model: str = Field(
        default="", description="encoder, a folder or hub name; empty: no BERTScore; usual: roberta-large"
    )
    layer: int | None = Field(
        default=None, ge=0, description="whose states are compared; null: as the bert-score package, else the last"
    )
    baseline: tuple[float, float, float] | None = Field(
        default=None,
        description="precision, recall, F1 of unrelated texts, for the rescaled scores; null: the package's of"
        " roberta-large at layer 17, else none",
    )
    batch_size: int = Field(default=32, ge=1, description="texts read at once")

    @model_validator(mode="after")
    def _below_one(self) -> BertScoreSettings:
        if self.baseline is not None and not all(-1 <= each < 1 for each in self.baseline):
            raise ValueError("a baseline is at least -1 and below 1")
        return self

    def with_usual(self) -> BertScoreSettings:
        """The same with the layer and baseline that are usual for the model, where they are not given."""
        layer, baseline = KNOWN.get(self.model, (None, None))
        chosen = layer if self.layer is None else self.layer
        usual = baseline if chosen == layer else None
        return self.model_copy(update={"layer": chosen, "baseline": self.baseline or usual})
