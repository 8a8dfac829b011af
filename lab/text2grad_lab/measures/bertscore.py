"""BERTScore (Zhang et al. 2020): similarity of texts by the states of their tokens in an encoder.

The package bert-score 0.3.13 is not used: it crashes on an empty text under transformers 5, and for
RoBERTa it reads the first word of a text without the leading space of its published scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from text2grad.errors import UserError
from text2grad.eval.metrics import mean

Baseline = tuple[float, float, float]
BERT_NAMES = ("precision", "recall", "f1")
_ENGLISH: tuple[int, Baseline] = (17, (0.83150584, 0.8314941, 0.83122575))
MODELS = {"roberta-large": _ENGLISH, "FacebookAI/roberta-large": _ENGLISH}
"""Layer and baseline (precision, recall, F1) of the bert-score package for English, by hub name."""


class Match(NamedTuple):
    """Precision, recall and F1 of one text against its reference; cosines, so at most 1."""

    precision: float
    recall: float
    f1: float


class EncodedText(NamedTuple):
    """The states of a text (L, H) and the weights of its tokens (L,), 0 for special tokens."""

    states: Tensor
    weights: Tensor


def match_tokens(text: EncodedText, reference: EncodedText) -> Match:
    """Match each token with the most similar one of the other text (equation 1 of the paper).

    Special tokens are candidates for a match but have no weight, as in the authors' code. A text
    without weighted tokens scores 0.
    """
    similar = torch.nn.functional.normalize(text.states, dim=-1) @ (
        torch.nn.functional.normalize(reference.states, dim=-1).T
    )
    if not text.weights.sum() or not reference.weights.sum():
        return Match(0.0, 0.0, 0.0)
    precision = float((similar.amax(dim=1) * text.weights).sum() / text.weights.sum())
    recall = float((similar.amax(dim=0) * reference.weights).sum() / reference.weights.sum())
    total = precision + recall
    return Match(precision, recall, 2 * precision * recall / total if total else 0.0)


def rescale(match: Match, baseline: Sequence[float]) -> Match:
    """Return (score - baseline) / (1 - baseline) for each score; 0 for an empty text."""
    if match == (0.0, 0.0, 0.0):
        return match
    return Match(*[(score - low) / (1 - low) for score, low in zip(match, baseline, strict=True)])


class Encoder:
    """A model, a folder or hub name, that turns texts into the states of one layer.

    The layer is the one in `MODELS`, else the last; `baseline`: precision, recall and F1 of
    unrelated texts.

    Raises:
        UserError: the model or its tokenizer cannot be loaded.
    """

    def __init__(
        self, model: str, device: str = "cpu", baseline: Baseline | None = None, batch_size: int = 32
    ) -> None:
        try:
            # Without the space the first word has a different token than the same word elsewhere.
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, add_prefix_space=True)
            self._model: Any = AutoModel.from_pretrained(model).to(device).eval()
        except (OSError, ValueError, KeyError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"no encoder {model!r}: {reason[:200]}", "--bertscore FOLDER or a hub name") from error
        layers = int(self._model.config.get_text_config().num_hidden_layers)
        self.layer, usual = MODELS.get(model, (layers, None))
        self.baseline, self._batch_size = baseline or usual, batch_size
        self.name = f"{model} layer {self.layer}, baseline {_format_baseline(self.baseline)}"

    @property
    def longest(self) -> int | None:
        """Maximum number of tokens, as in the package; None if unknown."""
        limit = int(self._tokenizer.model_max_length)
        places = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        # RoBERTa counts positions from the padding id, and so has fewer places than its embeddings.
        pad = self._model.config.pad_token_id or 0
        shift = pad + 1 if "roberta" in self._model.config.model_type else 0
        limits = [value for value in (limit if limit < 1_000_000 else None, places and places - shift) if value]
        return min(limits, default=None)

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Encode texts in batches."""
        return [
            encoded
            for n in range(0, len(texts), self._batch_size)
            for encoded in self._batch(texts[n:][: self._batch_size])
        ]

    def _batch(self, texts: Sequence[str]) -> list[EncodedText]:
        batch = self._tokenizer(
            [text.strip() for text in texts],
            padding=True,
            truncation=self.longest is not None,
            max_length=self.longest,
            return_special_tokens_mask=True,
            return_tensors="pt",
        )
        special = batch.pop("special_tokens_mask").bool()
        with torch.no_grad():
            inputs = {name: tensor.to(self._model.device) for name, tensor in batch.items()}
            states = self._model(**inputs, output_hidden_states=True).hidden_states[self.layer].float().cpu()
        mask = batch["attention_mask"].bool()  # (n, L), false for padding
        return [
            EncodedText(row[present], (~marks[present]).float())
            for row, present, marks in zip(states, mask, special, strict=True)
        ]


def bert_figures(encoder: Encoder, references: Sequence[str], texts: Sequence[str]) -> dict[str, float | None]:
    """Return mean `bertscore_precision`, `_recall` and `_f1`, raw and `_rescaled`.

    Rescaled figures are None without a baseline. An empty text counts as 0.
    """
    pairs = zip(encoder.encode(texts), encoder.encode(references), strict=True)
    raw = [match_tokens(text, reference) for text, reference in pairs]
    figures: dict[str, float | None] = _means(raw, "")
    if encoder.baseline is None:
        return figures | dict.fromkeys(f"bertscore_{name}_rescaled" for name in BERT_NAMES)
    return figures | _means([rescale(match, encoder.baseline) for match in raw], "_rescaled")


def _means(matches: Sequence[Match], end: str) -> dict[str, float | None]:
    return {f"bertscore_{name}{end}": mean([m[place] for m in matches]) for place, name in enumerate(BERT_NAMES)}


def _format_baseline(baseline: Sequence[float] | None) -> str:
    return "none" if baseline is None else "/".join(f"{value:g}" for value in baseline)
