"""BERTScore (Zhang et al. 2020): how well the tokens of two texts match by their states in an
encoder.

Own lines, because the package bert-score 0.3.13 crashes on an empty text under transformers 5, and
reads the first word of a text for RoBERTa without the space that its published scores were made
with.
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
"""Layer and baseline (precision, recall, F1) that the bert-score package takes for English, by hub
name."""


class Match(NamedTuple):
    """Precision, recall and F1 of one text against its reference; cosines, so at most 1."""

    precision: float
    recall: float
    f1: float


class EncodedText(NamedTuple):
    """The states of one text (L, H), and how much each token counts (L,): 0 of special tokens."""

    states: Tensor
    weights: Tensor


def match_tokens(text: EncodedText, reference: EncodedText) -> Match:
    """Each token is matched with the most similar one of the other text (the paper's equation 1).

    Special tokens may be matched with and do not count themselves, as in the authors' code. A text
    in which no token counts scores 0.
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
    """(score - baseline) / (1 - baseline), each with its own baseline; what is empty stays 0."""
    if match == (0.0, 0.0, 0.0):
        return match
    return Match(*[(score - low) / (1 - low) for score, low in zip(match, baseline, strict=True)])


class Encoder:
    """A model, a folder or hub name, that turns texts into the states of one layer.

    The layer is the one of `KNOWN`, else the last; `baseline`: precision, recall and F1 of
    unrelated texts.

    Raises:
        UserError: the model or its tokenizer cannot be loaded.
    """

    def __init__(
        self, model: str, device: str = "cpu", baseline: Baseline | None = None, batch_size: int = 32
    ) -> None:
        try:
            # Without the space the first word is another token than the same word elsewhere.
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
        """Tokens after which a text is cut, as the package cuts it; None: no limit is known."""
        limit = int(self._tokenizer.model_max_length)
        places = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        # RoBERTa counts positions from the padding id, and so has fewer places than its embeddings.
        pad = self._model.config.pad_token_id or 0
        shift = pad + 1 if "roberta" in self._model.config.model_type else 0
        limits = [value for value in (limit if limit < 1_000_000 else None, places and places - shift) if value]
        return min(limits, default=None)

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """The texts in their order, a batch at a time."""
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
        mask = batch["attention_mask"].bool()  # (n, L): the padding is cut off again
        return [
            EncodedText(row[here], (~marks[here]).float())
            for row, here, marks in zip(states, mask, special, strict=True)
        ]


def bert_figures(encoder: Encoder, references: Sequence[str], texts: Sequence[str]) -> dict[str, float | None]:
    """Mean `bertscore_precision`, `_recall` and `_f1`, as they are and `_rescaled` (None without a
    baseline).

    An empty text is 0 in all of them, and not left out.
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
