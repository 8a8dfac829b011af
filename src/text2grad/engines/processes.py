"""The processes that `torchrun` or `accelerate launch` started for an engine, this one among
them."""

from __future__ import annotations

import os
from typing import Any

from text2grad.errors import UserError


def joined(device: Any) -> Any:
    """Join them, and return accelerate's state of them; alone where there are none. `device` is the
    policy's."""
    from accelerate import PartialState

    how = how_of(device)
    return PartialState(cpu=how["use_cpu"], **{"backend": how["ddp_backend"]} if how["ddp_backend"] else {})


def how_of(device: Any) -> dict[str, Any]:
    """The fields of transformers' arguments that say how processes on this device are joined.

    With `use_cpu` accelerate drops DeepSpeed silently; without, it needs the name of the backend.
    """
    on_cpu = device.type == "cpu"
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    return {"use_cpu": on_cpu and not deepspeed, "ddp_backend": "gloo" if on_cpu and deepspeed else None}


def is_split(model: Any) -> bool:
    """True where no process has all weights of a model that was trained: FSDP2, and DeepSpeed's
    ZeRO-3."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(weight, DTensor) or hasattr(weight, "ds_id") for weight in model.parameters())


def refuse_lost_launch() -> None:
    """Refuse to be one process where several were asked for: `accelerate launch --cpu` starts one,
    silently.

    Raises:
        UserError: the environment has the address of a group, and no group.
    """
    if "MASTER_PORT" in os.environ and "WORLD_SIZE" not in os.environ:
        cure = "torchrun --standalone --nproc_per_node N -m text2grad.cli train ..."
        raise UserError("several processes were asked for, and the launcher started one", cure)
