"""Everything that changes while a loop trains, taken down so that it can go on bit for bit.

What does not change is not saved but checked: the weights it started from, the data, the settings (`identity`).
"""

from __future__ import annotations

import hashlib
import platform
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from text2grad.errors import UserError
from text2grad.policy.model import Policy
from text2grad.policy.shard import split_as, whole

VERSIONS = ("torch", "transformers", "peft", "safetensors", "numpy")


class Keeper(Protocol):
    """A part of a loop with a state of its own, saved and restored with the rest (`stopping.EarlyStopping`)."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the state, under names of its own."""
        ...

    def numbers(self) -> dict[str, Any]:
        """The rest, as JSON."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what the two gave; `tensors` holds others as well."""
        ...


@dataclass
class Training:
    """What a loop changes: weights, optimizers, learning rate, KL coefficient, and how many steps are done.

    The position in the data is `step`: the order is drawn from the seed alone. `schedule` belongs to one of the
    optimizers; its learning rate is a function of how often it was stepped.
    """

    policy: Policy
    optimizers: Sequence[Optimizer]
    schedule: LambdaLR
    kl_coefficient: float = 0.0
    step: int = 0
    keeper: Keeper | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The trained weights and the optimizers' moments, by name, whole; where they are split, all must call."""
        named = {f"policy.{name}": tensor.detach() for name, tensor in _trained(self.policy)}
        named |= {name: value for name, value in self._moments() if isinstance(value, Tensor)}
        named |= self.keeper.tensors() if self.keeper else {}
        return {name: whole(tensor) for name, tensor in named.items()}

    def numbers(self) -> dict[str, Any]:
        """The rest, as JSON."""
        return {
            "step": self.step,
            "kl_coefficient": self.kl_coefficient,
            "updates": self.schedule.last_epoch,
            "counts": {name: value for name, value in self._moments() if not isinstance(value, Tensor)},
            "threads": torch.get_num_threads(),
            **({"keeper": self.keeper.numbers()} if self.keeper else {}),
        }

    def _moments(self) -> Iterator[tuple[str, Any]]:
        """What the optimizers remember of each parameter: tensors, and with some of them counts."""
        for number, optimizer in enumerate(self.optimizers):
            for index, values in optimizer.state_dict()["state"].items():
                yield from ((f"optimizer.{number}.{index}.{key}", value) for key, value in values.items())

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Take over what `tensors` and `numbers` gave; the learning rate is that of today's settings.

        Raises:
            UserError: the weights are not of this shape, or not of these names.
        """
        mine = dict(_trained(self.policy))
        saved = {name.removeprefix("policy."): t for name, t in tensors.items() if name.startswith("policy.")}
        if {name: t.shape for name, t in mine.items()} != {name: t.shape for name, t in saved.items()}:
            raise UserError("the checkpoint's weights are not those of this policy", "--restart begins anew")
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(split_as(saved[name], parameter))
        for number, optimizer in enumerate(self.optimizers):
            moments = _by_parameter({**tensors, **numbers["counts"]}, f"optimizer.{number}.")
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for index, values in moments.items():
                for key, value in values.items():
                    if isinstance(value, Tensor) and value.shape == parameters[index].shape:
                        values[key] = split_as(value, parameters[index])
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        if self.keeper and "keeper" in numbers:
            self.keeper.restore(tensors, numbers["keeper"])
        self.step, self.kl_coefficient = numbers["step"], numbers["kl_coefficient"]
        _move_schedule(self.schedule, numbers["updates"])


def _trained(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    return ((name, parameter) for name, parameter in policy.named_parameters() if parameter.requires_grad)


def _by_parameter(named: Mapping[str, Any], prefix: str) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for name, value in named.items():
        if name.startswith(prefix):
            index, key = name.removeprefix(prefix).split(".")
            mine = (
                value.clone() if isinstance(value, Tensor) else value
            )  # not a view of a file that will be removed
            state.setdefault(int(index), {})[key] = mine
    return state


def _move_schedule(schedule: LambdaLR, updates: int) -> None:
    rates = [base * factor(updates) for base, factor in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule.load_state_dict({**schedule.state_dict(), "last_epoch": updates, "_last_lr": rates})


@dataclass(frozen=True)
class Randomness:
    """The states of the random generators of Python, numpy and torch, on the CPU and on every CUDA device."""

    python: tuple[Any, ...]
    numpy: Any
    torch: Tensor
    cuda: list[Tensor]

    @classmethod
    def now(cls) -> Randomness:
        """The present states."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), cuda)

    def tensors(self, owner: str = "random") -> dict[str, Tensor]:
        """torch's states, by name."""
        return {f"{owner}.torch": self.torch, **{f"{owner}.cuda.{n}": each for n, each in enumerate(self.cuda)}}

    def numbers(self) -> dict[str, Any]:
        """Python's and numpy's states, as JSON."""
        key = self.numpy["state"]["key"].tolist()
        return {"python": self.python, "numpy": {**self.numpy, "state": {**self.numpy["state"], "key": key}}}

    @staticmethod
    def restore(tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], owner: str = "random") -> None:
        """Set the generators to what `tensors` and `numbers` gave."""
        kind, key, gauss = numbers["python"]
        random.setstate((kind, tuple(key), gauss))
        legacy = numbers["numpy"]
        key = np.array(legacy["state"]["key"], dtype=np.uint32)
        np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})
        torch.set_rng_state(tensors[f"{owner}.torch"].clone())
        for index in range(torch.cuda.device_count()):
            if (state := tensors.get(f"{owner}.cuda.{index}")) is not None:
                torch.cuda.set_rng_state(state.clone(), index)


def versions() -> dict[str, str]:
    """The versions on which equality to the bit depends."""
    return {
        "text2grad": version("text2grad"),
        "python": platform.python_version(),
        **{name: version(name) for name in VERSIONS},
    }


def flatten(without: Collection[str], **sections: BaseModel) -> dict[str, str]:
    """Settings as `section.key` -> text, some keys left out."""
    return {
        f"{section}.{key}": str(value)
        for section, settings in sections.items()
        for key, value in settings.model_dump(mode="json").items()
        if f"{section}.{key}" not in without
    }


def digest_of_reference(policy: Policy) -> str:
    """SHA-256 over the weights a run starts from: of the base alone where adapters are trained."""
    digest = hashlib.sha256()
    weights = list(policy.model.named_parameters())
    frozen = [(name, parameter) for name, parameter in weights if not parameter.requires_grad]
    for name, parameter in frozen or weights:
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_of_texts(texts: Iterable[str]) -> str:
    """SHA-256 over texts, one after the other; where one ends counts."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.hexdigest()
