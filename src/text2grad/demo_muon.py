"""Muon, the optimizer of the demo's supervised training (Jordan et al. 2024); AdamW for what is not
a matrix.

Every update of a weight matrix is momentum made orthogonal: all directions learn at the same speed,
also those in which gradients are rare, so a model made from scratch needs fewer steps.
`torch.optim.Muon` makes the same updates but iterates in bfloat16, which differs by 1 % and which
CPUs without such instructions emulate (3.7 instead of 0.3 seconds a step of the tiny model). Here
the iteration is in float32 on a CPU, equal shapes share one product, and one optimizer with one
learning rate serves the whole model.
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
"""Root mean square of an AdamW update in practice; Muon's are scaled to it (Liu et al. 2025), so
that one learning rate serves both."""


class Muon(torch.optim.Optimizer):
    """One optimizer for a whole model: `matrices` (each 2-d) by Muon, `others` by AdamW, at one
    learning rate."""

    def __init__(
        self, matrices: Iterable[nn.Parameter], others: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0
    ) -> None:
        groups = [{"params": list(matrices), "by": "muon"}, {"params": list(others), "by": "adamw"}]
        super().__init__([g for g in groups if g["params"]], {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in trained:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            (self._matrices if group["by"] == "muon" else self._others)(trained, group["lr"])
        return loss

    def _matrices(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
        by_shape: dict[Any, list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
        for parameter in parameters:
            assert parameter.grad is not None
            momentum = self._state(parameter, "momentum")
            momentum.lerp_(parameter.grad, 1 - MOMENTUM)
            update = parameter.grad.lerp(momentum, MOMENTUM)  # Nesterov
            by_shape[parameter.shape, parameter.dtype].append((parameter, update))
        for (shape, _), pairs in by_shape.items():
            scale = RMS * max(shape) ** 0.5  # an orthogonal (A, B) has a root mean square of 1 / sqrt(max(A, B))
            updates = orthogonalised(torch.stack([update for _, update in pairs]))
            for (parameter, _), update in zip(pairs, updates, strict=True):
                parameter.add_(update, alpha=-lr * scale)

    def _others(self, parameters: Sequence[nn.Parameter], lr: float) -> None:
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
        held: Tensor = state[name]
        return held


def orthogonalised(matrices: Tensor) -> Tensor:
    """(N, A, B) -> (N, A, B): the same singular vectors, singular values near 1 (between about 0.7
    and 1.2).

    Newton-Schulz iteration of the quintic of Jordan et al.; float32 on a CPU, bfloat16 elsewhere.
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
    found: Tensor = x.transpose(1, 2) if tall else x
    return found.to(matrices.dtype)


def muon(model: Any, lr: float, weight_decay: float) -> Muon:
    """Return Muon for the matrices in a model's layers; AdamW for embeddings, head, norms and
    biases."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    apart = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in apart]
    chosen = {id(parameter) for parameter in matrices}
    return Muon(matrices, [parameter for parameter in trained if id(parameter) not in chosen], lr, weight_decay)
