"""The process group that `torchrun` or `accelerate launch` started for an engine."""

from __future__ import annotations

import os
from typing import Any

from text2grad.errors import UserError


def join_processes(device: Any) -> Any:
    """Join the process group, if any, and return accelerate's state; `device` is the policy's."""
    from accelerate import PartialState

    arguments = process_arguments(device)
    backend = {"backend": arguments["ddp_backend"]} if arguments["ddp_backend"] else {}
    return PartialState(cpu=arguments["use_cpu"], **backend)


def process_arguments(device: Any) -> dict[str, Any]:
    """Return the fields of transformers' arguments for a process group on this device.

    With `use_cpu` accelerate silently disables DeepSpeed, so DeepSpeed on a CPU needs the backend.
    """
    on_cpu = device.type == "cpu"
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    return {"use_cpu": on_cpu and not deepspeed, "ddp_backend": "gloo" if on_cpu and deepspeed else None}


def is_split(model: Any) -> bool:
    """Return True if the weights of a trained model are sharded (FSDP2, DeepSpeed's ZeRO-3)."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in model.parameters())


def refuse_failed_launch() -> None:
    """Refuse a launch that silently started one process, like `accelerate launch --cpu`.

    Raises:
        UserError: the environment has the port of a process group, but no group.
    """
    if "MASTER_PORT" in os.environ and "WORLD_SIZE" not in os.environ:
        cure = "torchrun --standalone --nproc_per_node N -m text2grad.cli train ..."
        raise UserError("several processes were requested, but the launcher started one", cure)
