"""The changing state of a training loop, saved so that it resumes bit for bit.

Constant inputs (starting weights, data, settings) are checked instead (`durable.identity`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from text2grad.errors import UserError
from text2grad.policy.model import Policy

MASTER = "master."


class Stateful(Protocol):
    """A part of a loop with its own state (a loss floor), saved and restored as JSON."""

    def numbers(self) -> dict[str, Any]: ...

    def restore(self, numbers: Mapping[str, Any]) -> None: ...


@dataclass
class Training:
    """The state of a loop: weights, optimizers, learning rate, KL coefficient, finished steps.

    `step` is also the position in the data, whose order depends on the seed alone. `schedule`
    belongs to one of the optimizers; its learning rate depends on the number of updates alone.
    """

    policy: Policy
    optimizers: Sequence[Optimizer]
    schedule: LambdaLR
    kl_coefficient: float = 0.0
    step: int = 0
    keeper: Stateful | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return trained weights, float32 master weights and optimizer moments by name."""
        named = {f"policy.{name}": tensor.detach() for name, tensor in self.policy.trainable_parameters().items()}
        named |= {name: master.detach() for name, master in self._masters().items()}
        return named | {name: value for name, value in self._moments() if isinstance(value, Tensor)}

    def numbers(self) -> dict[str, Any]:
        """Return the remaining state, as JSON."""
        return {
            "step": self.step,
            "kl_coefficient": self.kl_coefficient,
            "updates": self.schedule.last_epoch,
            "counts": {name: value for name, value in self._moments() if not isinstance(value, Tensor)},
            "threads": torch.get_num_threads(),
            **({"keeper": self.keeper.numbers()} if self.keeper else {}),
        }

    def _moments(self) -> Iterator[tuple[str, Any]]:
        """Yield the optimizers' state of each parameter: tensors, and counts of some optimizers."""
        for number, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                yield from ((f"optimizer.{number}.{index}.{key}", value) for key, value in values.items())

    def _masters(self) -> dict[str, Tensor]:
        """Return the float32 tensors that optimizers update in place of half-precision weights."""
        weights = {id(parameter) for parameter in self.policy.parameters()}
        return {
            f"{MASTER}{number}.{index}": parameter
            for number, optimizer in enumerate(self.optimizers)
            for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
            if id(parameter) not in weights
        }

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Restore the state that `tensors` and `numbers` returned; learning rates are recomputed.

        Raises:
            UserError: the names or shapes of the weights differ.
        """
        parameters = self.policy.trainable_parameters()
        current = {f"policy.{name}": weight for name, weight in parameters.items()} | self._masters()
        saved = {name: tensor for name, tensor in tensors.items() if name.startswith(("policy.", MASTER))}
        if {name: t.shape for name, t in current.items()} != {name: t.shape for name, t in saved.items()}:
            raise UserError("the checkpoint's weights are not those of this policy", "--restart starts over")
        with torch.no_grad():
            for name, parameter in current.items():
                parameter.copy_(saved[name])
        for number, optimizer in enumerate(self.optimizers):
            moments = _by_parameter({**tensors, **numbers["counts"]}, f"optimizer.{number}.")
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        if self.keeper and "keeper" in numbers:
            self.keeper.restore(numbers["keeper"])
        self.step, self.kl_coefficient = numbers["step"], numbers["kl_coefficient"]
        _set_schedule(self.schedule, numbers["updates"])


def _by_parameter(named: Mapping[str, Any], prefix: str) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for name, value in named.items():
        if name.startswith(prefix):
            index, key = name.removeprefix(prefix).split(".")
            # A checkpoint's tensors are views of a file that will be removed.
            state.setdefault(int(index), {})[key] = value.clone() if isinstance(value, Tensor) else value
    return state


def _set_schedule(schedule: LambdaLR, updates: int) -> None:
    rates = [base * factor(updates) for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule.load_state_dict({**schedule.state_dict(), "last_epoch": updates, "_last_lr": rates})


@dataclass(frozen=True)
class Randomness:
    """The states of the random generators of Python, numpy and torch (CPU and CUDA)."""

    python: tuple[Any, ...]
    numpy: Any
    torch: Tensor
    cuda: list[Tensor]

    @classmethod
    def capture(cls) -> Randomness:
        """Return the current states."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), cuda)

    def tensors(self) -> dict[str, Tensor]:
        """Return torch's states by name."""
        return {"random.torch": self.torch, **{f"random.cuda.{n}": state for n, state in enumerate(self.cuda)}}

    def numbers(self) -> dict[str, Any]:
        """Return Python's and numpy's states as JSON."""
        key = self.numpy["state"]["key"].tolist()
        return {"python": self.python, "numpy": {**self.numpy, "state": {**self.numpy["state"], "key": key}}}

    @staticmethod
    def restore(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Set the generators to the states that `tensors` and `numbers` returned."""
        kind, key, gauss = numbers["python"]
        random.setstate((kind, tuple(key), gauss))
        legacy = numbers["numpy"]
        key = np.array(legacy["state"]["key"], dtype=np.uint32)
        np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
        torch.set_rng_state(tensors["random.torch"].clone())
        for index in range(torch.cuda.device_count()):
            if (state := tensors.get(f"random.cuda.{index}")) is not None:
                torch.cuda.set_rng_state(state.clone(), index)


@contextmanager
def preserve_randomness() -> Iterator[None]:
    """Restore the random generators at the end of the block."""
    before = Randomness.capture()
    try:
        yield
    finally:
        Randomness.restore(before.tensors(), before.numbers())


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch.

    Args:
        seed: from 0 to 2**32 - 1.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
