"""A cache of keys and values with spare capacity.

Hugging Face's dynamic cache is copied for every token, a third of the time of sampling on a CPU.
Here a layer is copied once in `SPARE` tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from text2grad.errors import UserError

SPARE = 64
"""Columns that are allocated in advance."""


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Full attention; `keys` and `values` (B, heads, L, head size) are views of longer buffers."""

    _layer_type = None  # unregistered, so that Hugging Face's caches do not use it

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        self._buffers: tuple[Tensor, ...] = ()
        self._length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append states (B, heads, l, head size); return all (B, heads, L + l, head size)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = (key_states[:, :, :0], value_states[:, :, :0])
        new = (key_states, value_states)
        self._buffers = tuple(_append(b, self._length, n) for b, n in zip(self._buffers, new, strict=True))
        self._length += key_states.shape[2]
        return self._update_views()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows of the batch."""
        self._buffers = tuple(buffer[indices] for buffer in self._buffers)
        self._update_views()

    def _update_views(self) -> tuple[Tensor, Tensor]:
        keys, values = (buffer[:, :, : self._length] for buffer in self._buffers)
        self.keys, self.values = keys, values
        return keys, values


def _append(buffer: Tensor, start: int, states: Tensor) -> Tensor:
    end = start + states.shape[2]
    if end > buffer.shape[2]:
        batch, heads, _, size = states.shape
        # L tokens cost L / SPARE copies of the buffer instead of L.
        longer = torch.empty(batch, heads, end + SPARE, size, dtype=states.dtype, device=states.device)
        longer[:, :, :start] = buffer[:, :, :start]
        buffer = longer
    buffer[:, :, start:end] = states
    return buffer


def make_cache(model: Any) -> DynamicCache:
    """Return an empty cache; other layers than full attention stay Hugging Face's."""
    cache = DynamicCache(config=model.config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def can_drop_rows(cache: DynamicCache) -> bool:
    """Return True if all layers support `batch_select_indices`.

    A layer that has the state of a linear attention too selects its keys and values alone.
    """
    return all(isinstance(layer, DynamicLayer) and not hasattr(layer, "conv_states") for layer in cache.layers)


def refuse_uncached(model: Any) -> None:
    """Raise a `UserError` for a model without a cache of keys and values (state-space models).

    It would silently continue from the last token alone, or read the padding of a batch.
    """
    attends = any(isinstance(layer, DynamicLayer) for layer in make_cache(model).layers)
    if not attends or cache_keyword(model) not in _parameters(model):
        problem = f"a model of type {model.config.model_type!r} takes no cache of keys and values"
        raise UserError(problem, "use a model with attention, such as Llama, Qwen, Gemma or Mistral")


def cache_keyword(model: Any) -> str:
    """Return the cache argument of a model's forward, which transformers 5.24 renamed."""
    return "cache" if "cache" in _parameters(model) else "past_key_values"


def _parameters(model: Any) -> Collection[str]:
    plain: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    return inspect.signature(plain.forward).parameters
