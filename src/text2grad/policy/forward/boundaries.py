"""Boundaries inside of a model: each layer, forward and backward, looks for a signal that asks to stop."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from text2grad.signals import stop_here


def add_boundaries(model: Any) -> None:
    """Have every layer of a model, and its head, be a boundary (`signals.stop_here`); once is enough.

    On a slow machine a pass of a large batch takes minutes, and a layer of it seconds. No number is changed.
    """
    names, head = set(getattr(model, "_no_split_modules", None) or ()), model.get_output_embeddings()
    for module in model.modules():
        if type(module).__name__ in names or module is head:
            _add(module)


def _add(module: nn.Module) -> None:
    if _forward not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(_forward)


def _forward(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    stop_here()
    if inputs and isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
        inputs[0].register_hook(_backward)  # type: ignore[no-untyped-call]


def _backward(gradient: Tensor) -> None:
    stop_here()
