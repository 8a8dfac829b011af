"""A policy whose weights are split over processes (torch's FSDP2), and how to have them whole again.

Each process keeps a part of every weight, gradient and moment. A forward pass gathers one layer at a time, so all
processes must make the same number of passes. Sampling cannot guarantee that, and runs with the whole model
`gathered`. A function here that communicates says so: all processes must call it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from text2grad.policy.model import Policy


def shard(policy: Policy, count: int) -> None:
    """Split the weights over `count` processes: each layer by itself, the rest of each model together.

    The reference is split too, so it must be there. Parameters are replaced: optimizers come afterwards.
    """
    empty = {p: nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for p in policy.parameters()}
    policy.outline = (policy.with_parameters(empty),)
    policy.reader.in_halves = False
    mesh = init_device_mesh(policy.device.type, (count,))
    for part in policy.parts():
        layers = set(getattr(part, "_no_split_modules", None) or ())
        for module in part.modules():
            if type(module).__name__ in layers:
                fully_shard(module, mesh=mesh)
        fully_shard(part, mesh=mesh)
    for module in (each for part in policy.parts() for each in part.modules()):
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # a sum: the denominators are those of the whole batch
            module.set_force_sum_reduction_for_comms(True)
    # Outputs are views here, and nothing is done to them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


@contextmanager
def gathered(policy: Policy) -> Iterator[None]:
    """The whole model in every process, for passes without gradient whose number differs; all must enter."""
    modules = [module for module in policy.model.modules() if isinstance(module, FSDPModule)]
    for module in modules:
        module.unshard()
        module.set_reshard_after_forward(False)
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(True)
            module.reshard()


def assembled(policy: Policy, keep: bool) -> Policy | None:
    """The policy with whole weights, to be written, where `keep` is true; all must call.

    One that is not split is returned as it is. Of an adapted model the base weights, which are not written, stay
    split, and their place empty.
    """
    if not policy.outline:
        return policy if keep else None
    outline = policy.outline[0]
    weights = {}
    adapted = isinstance(policy.model, PeftModel)
    written = policy.trained() if adapted else dict(policy.named_parameters())
    for name, parameter in written.items():
        full = whole(parameter.detach())
        if keep:
            weights[outline.get_parameter(name)] = nn.Parameter(full.cpu(), parameter.requires_grad)
    return outline.with_parameters(weights) if keep else None


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be split; all must call."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def split_as(full: Tensor, like: Tensor) -> Tensor:
    """This process's part of `full`, split as `like` is; `full` itself where it is not. No communication."""
    if not isinstance(like, DTensor):
        return full
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
