"""Muon (Jordan et al. 2024) for matrices and AdamW for other weights, used for the demo's SFT.

Muon orthogonalises the momentum of a weight matrix. All directions then learn at the same speed,
also those with rare gradients, so a model trained from scratch needs fewer steps. The updates equal
those of `torch.optim.Muon`, which iterates in bfloat16: that differs by 1 %, and CPUs without
bfloat16 instructions emulate it (3.7 instead of 0.3 seconds per step of the tiny model). Here the
iteration is in float32 on a CPU, matrices of the same shape share a product, and one optimizer with
one learning rate serves the whole model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
MOMENTUM = 0.95
BETAS = (0.9, 0.999)
EPSILON = 1e-8
RMS = 0.2
"""The usual root mean square of an AdamW update, which Muon's updates are scaled to.

One learning rate then serves both (Liu et al. 2025).
"""


class Muon(torch.optim.Optimizer):
    """An optimizer that updates `matrices` (2-d) with Muon and `others` with AdamW."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], others: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0
    ) -> None:
        groups = [{"params": list(matrices), "by": "muon"}, {"params": list(others), "by": "adamw"}]
        super().__init__([g for g in groups if g["params"]], {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in trained:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            (self._step_muon if group["by"] == "muon" else self._step_adamw)(trained, group["lr"])
        return loss

    def _step_muon(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
        by_shape: dict[Any, list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
        for parameter in parameters:
            assert parameter.grad is not None
            momentum = self._state(parameter, "momentum")
            momentum.lerp_(parameter.grad, 1 - MOMENTUM)
            update = parameter.grad.lerp(momentum, MOMENTUM)  # Nesterov
            by_shape[parameter.shape, parameter.dtype].append((parameter, update))
        for (shape, _), pairs in by_shape.items():
            scale = RMS * max(shape) ** 0.5  # an orthogonal (A, B) has a root mean square of 1 / sqrt(max(A, B))
            updates = orthogonalise(torch.stack([update for _, update in pairs]))
            for (parameter, _), update in zip(pairs, updates, strict=True):
                parameter.add_(update, alpha=-lr * scale)

    def _step_adamw(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            first, second = self._state(parameter, "first"), self._state(parameter, "second")
            self.state[parameter]["steps"] = steps = self.state[parameter].get("steps", 0) + 1
            first.lerp_(parameter.grad, 1 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(parameter.grad, parameter.grad, value=1 - BETAS[1])
            root = (second / (1 - BETAS[1] ** steps)).sqrt_().add_(EPSILON)
            parameter.addcdiv_(first, root, value=-lr / (1 - BETAS[0] ** steps))

    def _state(self, parameter: nn.Parameter, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        average: Tensor = state[name]
        return average


def orthogonalise(matrices: Tensor) -> Tensor:
    """Replace the singular values of matrices (N, A, B) by values near 1 (about 0.7 to 1.2).

    Uses the quintic Newton-Schulz iteration of Jordan et al., in float32 on a CPU and in bfloat16
    elsewhere.
    """
    a, b, c = COEFFICIENTS
    dtype = torch.float32 if matrices.device.type == "cpu" else torch.bfloat16
    tall = matrices.shape[1] > matrices.shape[2]  # the shorter side first: smaller products
    x = matrices.to(dtype).transpose(1, 2) if tall else matrices.to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)  # (N, a, a), a the shorter side
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    orthogonal: Tensor = x.transpose(1, 2) if tall else x
    return orthogonal.to(matrices.dtype)


def muon(model: Any, lr: float, weight_decay: float) -> Muon:
    """Return an optimizer with Muon for the matrices in a model's layers and AdamW for the others.

    Embeddings and head, although matrices, are among the others.
    """
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    excluded = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim == 2 and id(parameter) not in excluded
            (matrices if is_matrix else others).append(parameter)
    return Muon(matrices, others, lr, weight_decay)
