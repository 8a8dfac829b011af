"""Faster layers for models in half precision: equal up to rounding, with less memory traffic.

A model in float32 is not changed, so that its runs are reproducible bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

HALF = (torch.float16, torch.bfloat16)
PLAIN, IN_FLOAT32 = "sdpa", "text2grad_float32"


def in_half(model: nn.Module) -> bool:
    """Whether most of a model computes in half precision."""
    return getattr(model, "dtype", None) in HALF


def quicken(model: Any) -> None:
    """Replace what is slow in a half-precision model: its low-rank layers, and on a CPU its attention.

    The class of a layer is replaced and not its method, so that a copy of the model uses its own weights. On a GPU
    this process no longer asks cuDNN for attention: with a mask its gradient can be NaN at lengths of 64 modulo 128
    (torch 2.11 to 2.13; github.com/pytorch/pytorch/issues/196678).
    """
    if not in_half(model):
        return
    if model.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    for module in model.modules():
        if type(module) is Linear and type(module.base_layer) is nn.Linear:
            module.__class__ = HalfLinear
    config = model.config.get_text_config()
    if model.device.type == "cpu" and config._attn_implementation == PLAIN:
        config._attn_implementation = IN_FLOAT32


class HalfLinear(Linear):
    """PEFT's low-rank layer, W x + s B A x, without a copy of its input in float32.

    PEFT keeps A and B in float32 and converts input, output and gradient of every layer to float32 and back, the
    largest part of a training pass on a CPU. Here A and B are converted, which are small. Parameters, gradients and
    moments stay in float32. Unless exactly one plain adapter is active, the layer computes as PEFT's does.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """(..., in) -> (..., out)."""
        name = self._only()
        if args or kwargs or name is None or x.dtype not in HALF:
            result: Tensor = super().forward(x, *args, **kwargs)
            return result
        base: Tensor = self.base_layer(x)
        inner = nn.functional.linear(self.lora_dropout[name](x), self._weight(self.lora_A, name).to(x.dtype))
        scaled = (self._weight(self.lora_B, name) * self.scaling[name]).to(x.dtype)
        return torch.addmm(base.flatten(0, -2), inner.flatten(0, -2), scaled.t()).view_as(base)

    def _weight(self, matrices: nn.ModuleDict, name: str) -> Tensor:
        weight: Any = matrices[name].weight
        return weight  # type: ignore[no-any-return]

    def _only(self) -> str | None:
        """The one adapter to add; None: none, several, one of another kind, or already merged."""
        here = [name for name in self.active_adapters if name in self.lora_A]
        if self.disable_adapters or self.merged or len(here) != 1:
            return None
        return None if here[0] in self.lora_variant or self.lora_bias[here[0]] else here[0]


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention on a CPU, without a copy of keys and values for every query head.

    Torch's own takes longer in half precision than in float32: its gradient up to three times, by processor. So it
    is asked in float32, but for one query of each row, which is two products in the type of the states. Answers
    behind a prompt that they share are read one by one where their lengths are given, and not with all that the
    mask hides. Anything unusual is left to transformers' own road.

    Args:
        query: (B, heads, L, D).
        key, value: (B, key heads, S, D).
        attention_mask: (B, 1, L, S), True or 0 where a key may be read; None: every key up to the query's own.
        kwargs: `blocks`, of each row the lengths of its prompt, of the answers to it and of the padding; then the
            mask says the same (`policy.forward.prefix`).

    Returns:
        (B, L, heads, D).
    """
    length, keys = query.shape[2], key.shape[2]  # L and S
    usual = query.dtype in HALF and query.device.type == "cpu" and not kwargs.get("dropout")
    odd = any(kwargs.get(name) is not None for name in ("softcap", "s_aux", "position_bias", "cache"))
    causal = length == keys and kwargs.get("is_causal", True) is not False
    known = causal or length == 1 if attention_mask is None else attention_mask.shape[1] == 1
    if not usual or odd or not known:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    scale, blocks = kwargs.get("scaling"), kwargs.get("blocks")
    if length == 1:
        return _of_one(query, key, value, attention_mask, scale).transpose(1, 2), None
    dtype = query.dtype
    query, key, value = (each.float() for each in (query, key, value))
    if blocks is not None:
        rows = zip(*(torch.split(each, 1) for each in (query, key, value)), blocks, strict=True)
        mixed = torch.cat([_of_row(q, k, v, lengths, scale) for q, k, v, lengths in rows])
    else:
        mixed = _of_all(query, key, value, attention_mask, scale)
    return mixed.to(dtype).transpose(1, 2), None


def _of_one(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Attention of one query a row, (B, heads, 1, D): the heads that share a key are the rows of one product.

    Its scores are rounded to the type of the states, as those of transformers' plain road are.
    """
    heads = key.shape[1]
    grouped = query.reshape(len(query), heads, query.shape[1] // heads, -1)  # (B, key heads, queries of each, D)
    scores = (grouped @ key.transpose(2, 3)).float() * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores + _added(mask, torch.float32)
    return (scores.softmax(dim=-1).to(value.dtype) @ value).view_as(query)


def _of_row(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float | None) -> Tensor:
    """Attention of one row, a prompt and the answers to it: each answer reads the prompt and itself so far.

    Nothing is read by the padding.
    """
    queries, keys, values = (torch.split(each, list(lengths), dim=2) for each in (query, key, value))
    found = [_of_all(queries[0], keys[0], values[0], None, scale)]
    for asked, own_keys, own_values in zip(queries[1:-1], keys[1:-1], values[1:-1], strict=True):
        seen = torch.ones(asked.shape[2], lengths[0] + asked.shape[2], dtype=torch.bool).tril(lengths[0])
        key, value = torch.cat([keys[0], own_keys], dim=2), torch.cat([values[0], own_values], dim=2)
        found.append(_of_all(asked, key, value, seen[None, None], scale))
    return torch.cat([*found, torch.zeros_like(queries[-1])], dim=2)


def _of_all(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Torch's own attention; without a mask it is causal."""
    return nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if mask is None else _added(mask, query.dtype),
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to scores. A padded row that may read nothing then reads all, and stays finite."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


AttentionInterface.register(IN_FLOAT32, attend)
AttentionMaskInterface.register(IN_FLOAT32, sdpa_mask)
